"""Parse an item from a line of a list: `Title (Year)`, with any decoration around it."""

import re
from functools import lru_cache
from typing import NamedTuple

from convrec.titles.marks import decode_marks

# The year of every item in a catalog without years. With 0, years stay comparable numbers.
NO_YEAR = 0


class Item(NamedTuple):
    """A recommended item as the model wrote it.

    Attributes:
        title: the title without decoration.
        year: four digits, or NO_YEAR.
    """

    title: str
    year: int


def format_item(title: str, year: int) -> str:
    """Write an item as the prompt asks for it, the inverse of `parse_item`.

    Args:
        title: the title, with its `display` if it has one.
        year: the year; with NO_YEAR, only the title is written.
    """
    return f"{title} ({year})" if year != NO_YEAR else title


# \d is any Unicode decimal digit and int() reads it; full-width parentheses come with CJK punctuation.
_YEAR = re.compile(r"[(（]\s*(\d{4})\s*[)）]")
# Tried if there is no plain year: ranges and notes, `(2014-2024)`, `(2014–)`, `(1995 film)`.
_LOOSE_YEAR = re.compile(r"[(（]\s*(\d{4})(?!\w)[^()（）]*[)）]")
# Tried if there is neither: `(US, 1995)`, `(December 1995)`, `[1995]`, ` - 1995` before the end or before another dash,
# a colon or a comma, and `, 1995` at the end.
_OTHER_YEAR = re.compile(
    r"[(（](?:[^()（）]*[,;]|[^()（）]*\b(?:jan|feb|mar|apr|may|june?|july?|aug|sep|oct|nov|dec)[a-z]*\.?\s)\s*"
    r"(?P<last>\d{4})\s*[)）]"
    r"|\[\s*(?P<square>\d{4})\s*\]"
    r"|\s[-–—]\s*(?P<dash>(?:1[89]|20)\d\d)(?=\W*$|\s+[-–—]|[:,])"
    r"|,\s(?P<comma>(?:1[89]|20)\d\d)(?=\W*$)",
    re.IGNORECASE,
)
# Most lines: they start with a letter and have no quotes, stars or double spaces, so there is nothing to strip.
_PLAIN = re.compile(r"([A-Za-z][a-zA-Z0-9À-ɏ,.:!?&' -]*) \((\d{4})\)")

# Markup around a line's text: links, HTML or XML tags, the first cell of a table row.
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])+)\]\((?:https?:|www\.|/)[^()]*(?:\([^()]*\)[^()]*)*\)")
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_TABLE_NUMBER = re.compile(r"^\|\s*#?\d{1,3}[.)]?\s*(?=\|)")
# Any Unicode space: a no-break or zero-width space next to a title is never part of it.
_SPACE = re.compile(r"[\s\u200b\u200e\u200f\u2060\ufeff]+")
# Circled numbers and keycaps never begin a title, so they count as bullets.
_BULLET = re.compile(
    r"(?:[-–—*•‣▪●○◦·➤►>+]|#{1,6})\s+|[•‣▪●○◦➤►]|[-–—](?=[^\W\d_])"
    r"|(?:[①-⒛⓪-⓿❶-➓㉑-㉟㊱-㊿🔟]|(?:[0-9]\ufe0f?\u20e3)+)[.):]?\s*"
)
# `1.` `1)` `1 -` `#1` `(1)` `[1]` `**1.**`. Not `1:` (2001: A Space Odyssey) and not a bare `1` (3 Idiots, 8 Mile);
# without a space, only before a letter (11.22.63 and 8-Bit Christmas are titles).
_NUMBER = re.compile(
    r"(?P<bold>[*_]{2})?(?:"
    r"#\s?(?P<hash>\d{1,3})\s?[.):]?\s"
    r"|[(\[](?P<paren>\d{1,2})[)\]]\s"
    r"|(?P<plain>\d{1,3})(?:\s?[.)](?:[*_]{2}|\s|(?=[^\W\d_\"“'‘*]|[\"“*]))|\s?[-–—]\s)"
    r")(?(bold)(?:[*_]{2})?)\s*"
)
_QUOTES = {'"': '"”“', "“": '”"“', "„": '“”"', "'": "'’", "‘": "’'", "`": "`'"}
_QUOTES |= dict(zip("«»「『《", "»«」』》", strict=True))
_DOUBLE_QUOTES = '"“”„'
_DECORATION = frozenset(" \"'“”‘’„«»`*_-–—•.,:;()[]{}#<>|/\\")
_ONLY_NUMBERING = re.compile(r"#?\d{1,3}[.)]")


@lru_cache(maxsize=1 << 17)
def parse_item(line: str, dated: bool = True) -> Item | None:
    """Parse `Title (1999)` in any of the variants that models write.

    Numbering, bullets, bold and italics, quotes, links, tags, table bars and text after the year are stripped. Anything
    that may be part of a title stays: `(500) Days of Summer`, `3 Idiots`, `#Alive`, `*batteries not included`, `'71`,
    other parentheses. The year is the first `(1999)` that has a title before it.

    Args:
        line: a line of a list.
        dated: whether items have years; if not, the whole line is the title, including any parentheses.

    Returns:
        The item, None if the line has no title with a year (or no title, if not `dated`).
    """
    if not dated:
        title = _undecorate(_unwrap(line), after="")
        return Item(title, NO_YEAR) if title else None
    plain = _PLAIN.fullmatch(line)
    if plain and "  " not in line:
        return Item(plain[1], int(plain[2]))
    line = _unwrap(line)
    for pattern in (_YEAR, _LOOSE_YEAR, _OTHER_YEAR):
        for year in pattern.finditer(line):
            title = _undecorate(line[: year.start()], after=line[year.end() :])
            if title:
                return Item(title, int(year[year.lastgroup or 1]))
    return None


def _unwrap(line: str) -> str:
    """Return a line's text: single spaces, no links, tags and entities, and dashes between the cells of a table row."""
    if "](" in line:
        line = _LINK.sub(r"\1", line)
    if "<" in line:
        line = _TAG.sub("", line)
    line = decode_marks(line).strip()
    if line[:1] == "|":
        line = _TABLE_NUMBER.sub("", line).strip("| ").replace("|", " - ")
    return _SPACE.sub(" ", line).strip()


def _undecorate(title: str, after: str) -> str:
    """Strip decoration from a title; `after` is the text after the year, where bold or quotes may close."""
    title = _strip_enumeration(title.strip())
    while title:
        bare, after = _strip_pair(title, after)
        if bare == title:
            break
        title = _strip_enumeration(bare.strip())  # `**1. Heat**`: the number can be inside the bold
    # `$ (1971)` and `? (2011)` are films; `** (1999)` and `- (1999)` are not.
    return "" if all(ch in _DECORATION for ch in title) or _ONLY_NUMBERING.fullmatch(title) else title


def _strip_enumeration(title: str) -> str:
    """Strip bullets and numbering as long as a title is left.

    A number is stripped once, or again if it repeats: `1. 1. Heat` is Heat, and `4. 9. April` is `9. April`.
    """
    number = None
    while True:
        if match := _BULLET.match(title):
            pass
        elif (match := _NUMBER.match(title)) and not (match["bold"] and match[0].count(match["bold"]) < 2):
            value = int(match["hash"] or match["paren"] or match["plain"])
            if number not in (None, value):
                return title
            number = value
        else:
            return title
        if match.end() == len(title):
            return title
        title = title[match.end() :]


def _strip_pair(title: str, after: str) -> tuple[str, str]:
    """Strip one layer of bold, italics or quotes from the title and from `after`; unchanged if there is none."""
    return _strip_emphasis(title, after) or _strip_quotes(title, after) or (_strip_lone_quote(title), after)


def _strip_emphasis(title: str, after: str) -> tuple[str, str] | None:
    """Strip bold or italics; None if there are none."""
    first = title[0]
    if first not in "*_":
        return (title.rstrip(title[-1]), after) if title.endswith(("**", "__")) else None
    num_opening = _count_leading(title, first)
    num_closing = _count_leading(title[::-1], first) if num_opening < len(title) else 0
    if num_closing:
        length = min(num_opening, num_closing)
        return title[length:-length], after
    # A lone `*` is part of the title (*batteries not included) unless its partner follows the year.
    # Quotes between the marks and the title close first: *"Heat (1995)"*.
    closers = _QUOTES.get(title[num_opening : num_opening + 1], "")
    quote = after[:1] if after and after[0] in closers else ""
    outside = after.removeprefix(quote)
    num_closing = _count_leading(outside, first)
    if num_closing or num_opening > 1:
        return title[min(num_opening, num_closing or num_opening) :], quote + outside[min(num_opening, num_closing) :]
    return None


def _strip_quotes(title: str, after: str) -> tuple[str, str] | None:
    """Strip a pair of quotes, the second of which may follow the year; None if there is no pair."""
    closers = _QUOTES.get(title[0])
    if closers is None:
        return None
    if len(title) > 1 and title[-1] in closers:
        return title[1:-1], after
    if after[:1] and after[0] in closers:
        return title[1:], after[1:]
    return None


def _strip_lone_quote(title: str) -> str:
    """Strip a double quote without a partner; `"Crocodile" Dundee` and `'71` keep theirs."""
    if sum(character in _DOUBLE_QUOTES for character in title) == 1:
        if title[0] in _DOUBLE_QUOTES:
            return title[1:]
        if title[-1] in _DOUBLE_QUOTES:
            return title[:-1]
    return title


def _count_leading(text: str, mark: str) -> int:
    """Return how often `mark` repeats at the start of the text."""
    return len(text) - len(text.lstrip(mark))
