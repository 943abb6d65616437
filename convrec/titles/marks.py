"""Decode replacements for special characters: HTML entities, and INSPIRED's own marks."""

import html
import re

MOST_LAYERS = 3  # a text may have been escaped more than once: `&amp;amp;` is `&`
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});")
_QUOTATION_MARK = "QUOTATION_MARK"  # in INSPIRED's texts and titles


def decode_marks(text: str) -> str:
    """Decode `&amp;`, `&#39;`, `&rsquo;` and `QUOTATION_MARK`; an `&` without a semicolon stays (AT&T)."""
    if _QUOTATION_MARK in text:
        text = text.replace(_QUOTATION_MARK, '"')
    for _ in range(MOST_LAYERS):
        if "&" not in text or ";" not in text:
            break
        decoded = _ENTITY.sub(lambda entity: html.unescape(entity[0]), text)
        if decoded == text:
            break
        text = decoded
    return text
