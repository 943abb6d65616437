"""The public reference's reading of a response, for `preset: reference` only.

It differs from `ranks` on purpose: a line that does not parse is dropped and later items move up a rank, every
parenthesis in a title is removed, and `*`, `_`, `-`, `#` are taken off both ends. Written from the recorded behaviour.
"""

import re
from functools import lru_cache

from convrec.titles.item import Item

_ITEM = re.compile(r"(.+?)\s+\((\d{4})\)")
_PARENTHESES = re.compile(r"\([^()]*\)")
_MARKS = "*_-#"
_NUMBERING = re.compile(r"\d+\s*[.)、—–-]\s+")


def parse_items_reference(text: str) -> list[Item]:
    """The items of a response, packed to the left: the reference's rank is a place in this list, not a line."""
    items = map(parse_item_reference, text.split("\n"))
    return [item for item in items if item]


@lru_cache(maxsize=1 << 17)
def parse_item_reference(line: str) -> Item | None:
    match = _ITEM.match(_bare(line))
    if not match:
        return None
    title = match[1]
    previous = None
    while title != previous:
        title, previous = _bare(_PARENTHESES.sub("", title.strip())), title
    return Item(title, int(match[2]))


def _bare(text: str) -> str:
    """White space collapsed, marks and numbering off the front, marks off the end, one pair of straight quotes off."""
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
