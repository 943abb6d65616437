"""The public reference's parser of responses, for `preset: reference` only.

It differs from `ranks` on purpose: a line that does not parse is dropped, so that later items move up a rank; every
parenthesis in a title is removed; and `*`, `_`, `-`, `#` are stripped from both ends. Written from recorded behaviour.
"""

import re
from functools import lru_cache

from convrec.titles.item import Item

_ITEM = re.compile(r"(.+?)\s+\((\d{4})\)")
_PARENTHESES = re.compile(r"\([^()]*\)")
_MARKS = "*_-#"
_NUMBERING = re.compile(r"\d+\s*[.)、—–-]\s+")


def parse_items_reference(text: str) -> list[Item]:
    """Return the items of a response; the reference's rank is the position in this list, not the line."""
    items = map(parse_item_reference, text.split("\n"))
    return [item for item in items if item]


@lru_cache(maxsize=1 << 17)
def parse_item_reference(line: str) -> Item | None:
    """Parse a line as the reference does; None for a line that is not an item."""
    match = _ITEM.match(_strip_marks(line))
    if not match:
        return None
    title = match[1]
    previous = None
    while title != previous:
        title, previous = _strip_marks(_PARENTHESES.sub("", title.strip())), title
    return Item(title, int(match[2]))


def _strip_marks(text: str) -> str:
    """Collapse white space; strip marks and numbering in front, marks at the end, and one pair of straight quotes."""
    text = " ".join(text.split())
    previous = None
    while text != previous:
        previous = text
        text = text.lstrip(_MARKS).strip().rstrip(_MARKS).strip()
        if number := _NUMBERING.match(text):
            text = text[number.end() :]
    for quote in ('"', "'"):
        if text.startswith(quote) and text.endswith(quote):
            return text[1:-1]
    return text
