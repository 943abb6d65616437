"""Split a text that names several items. docs/how-to/item-cells.md has the table of cells.

Line breaks, `|`, numbers and bullets always split a text. `;` and `,` split it according to RULES, if that leaves items
and nothing else. An ambiguous text is refused, and the message shows both readings.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from convrec.data.damage import BadRecord
from convrec.titles.item import parse_item

AS_LIST = 'write a JSON list, ["...", "..."], or | between items'
LONGEST_TITLE = 6  # parts between commas and semicolons
# The mark of an entry in a numbered or bulleted list, and its number in one that counts 1, 2, ...
_MARK = re.compile(r"\s*(?:\d{1,3}[.)]|[a-z]\)|[-–—*•])\s+(?=\S)")
_COUNTED = re.compile(r"[(#]?(\d{1,3})\b\s*[-–.):]{0,2}\s*(?=\S)")
_NUMBER = re.compile(r"(?:^|\s)\(?(\d{1,3})[.)]\s+")
_AND = re.compile(r"(?<=\d\)), (?:and|or|&) ")  # `Heat (1995), Alien (1979), and Dune (2021)`
# These separators also occur in titles.
_BETWEEN = re.compile(r"(?:^|\s+)(?:and|or|&|\+|/|•|·|[-–—])\s+|<br\s*/?>|\\n|\s*[\t、，；•]\s*")

TextPredicate: TypeAlias = Callable[[str], bool]


@dataclass(frozen=True)
class CatalogLookup:
    """What the catalog knows about a text; nothing else decides how a cell is split.

    Attributes:
        is_item: whether the catalog has this item: by title and year for ground truth, by title for seen items.
        is_title: whether the text is a title or an id of the catalog.
        is_dated_item: whether the text is exactly `Title (1999)`, in the catalog or not; never true without years.
        has_years: whether the catalog has years.
    """

    is_item: TextPredicate
    is_title: TextPredicate
    is_dated_item: TextPredicate
    has_years: bool


def split_items(text: str, lookup: CatalogLookup, *, is_entry: bool = False) -> list[str]:
    """Split a text into its items.

    Args:
        text: a cell, or an entry of a list.
        lookup: what the catalog knows.
        is_entry: whether the text is an entry of a list, which is taken as one item unless it cannot be one.

    Raises:
        BadRecord: The text can be one item or several.
    """
    pieces = _divide_at_lines(text, is_entry)
    if _is_broken_title(text, pieces, lookup):
        if not is_entry and all(map(lookup.is_item, pieces)):
            raise _two_readings_error(text, pieces)
        return [_join_lines(text)]
    numbered = [part for piece in pieces for part in _divide_at_numbers(piece, lookup)]
    marked = _replace_counts_by_bullets(numbered, lookup)
    is_list = len(marked) > 1 and all(map(_MARK.match, marked))
    items: list[str] = []
    for piece in marked:
        unmarked = _strip_mark(piece, lookup, is_list)
        for part in _divide_at_semicolons(Piece(unmarked, lookup, is_entry)):
            items += _apply_rules(Piece(part, lookup, is_entry))
    return items


# ---- lines, numbers and bullets


def _divide_at_lines(text: str, is_entry: bool) -> list[str]:
    """Split at line breaks and, outside of lists, at `|`."""
    lines = text.splitlines()
    if not is_entry:
        lines = "|".join(lines).split("|")
    return [line.strip() for line in lines if line.strip()]


def _join_lines(text: str) -> str:
    return " ".join(text.split())


def _is_broken_title(text: str, pieces: Sequence[str], lookup: CatalogLookup) -> bool:
    """Whether the pieces are one title of the catalog that a line break cut in two."""
    return len(pieces) > 1 and not _MARK.match(pieces[-1]) and lookup.is_item(_join_lines(text))


def _divide_at_numbers(text: str, lookup: CatalogLookup) -> list[str]:
    """Split `1. Heat 2. Alien` at its numbers if they count 1, 2, ... and the whole is not an item."""
    numbers = list(_NUMBER.finditer(text))
    if len(numbers) < 2 or text[: numbers[0].start()].strip():
        return [text]
    if not _is_counting_up([number[1] for number in numbers]) or lookup.is_item(text):
        return [text]
    starts = [number.start() for number in numbers]
    ends = [*starts[1:], len(text)]
    return [text[start:end].strip() for start, end in zip(starts, ends, strict=True)]


def _is_counting_up(numbers: Sequence[str]) -> bool:
    """Whether the numbers are 1, 2, 3, ..."""
    return [int(number) for number in numbers] == list(range(1, len(numbers) + 1))


def _replace_counts_by_bullets(pieces: Sequence[str], lookup: CatalogLookup) -> Sequence[str]:
    """Replace numbers that count 1, 2, ... without a usual mark (`1 Heat`, `#2: Alien`) by bullets."""
    if len(pieces) < 2:
        return pieces
    marks = [_COUNTED.match(piece) for piece in pieces]
    numbers = [mark[1] for mark in marks if mark is not None]
    if numbers != [str(number) for number in range(1, len(pieces) + 1)] or all(map(lookup.is_item, pieces)):
        return pieces
    return [f"- {mark.string[mark.end() :]}" for mark in marks if mark is not None]


def _strip_mark(piece: str, lookup: CatalogLookup, is_list: bool) -> str:
    """Strip the number or bullet of a list, unless it is part of a title such as `1. FC Köln`.

    is_list: whether all pieces have a mark.
    """
    mark = _MARK.match(piece)
    if not mark or (lookup.is_item(piece) and not is_list):
        return piece
    rest = piece[mark.end() :]
    if lookup.is_item(rest):
        return rest
    if not is_list:
        return piece
    item = None if lookup.has_years else parse_item(rest, dated=False)  # strips bold and other markup
    return item.title if item else rest


# ---- semicolons and commas


class Piece:
    """A text without line breaks, and the ways in which `;`, `,` and `|` could split it."""

    def __init__(self, text: str, lookup: CatalogLookup, is_entry: bool) -> None:
        self.text = _AND.sub(", ", text)
        self.lookup = lookup
        self.is_entry = is_entry
        self.cuts = [match.start() for match in re.finditer("[;,|]", self.text)]

    @cached_property
    def is_item(self) -> bool:
        """Whether the catalog has the whole text as an item."""
        return self.lookup.is_item(self.text)

    @cached_property
    def parts(self) -> list[str]:
        """The texts between the separators."""
        return [part.strip() for part in re.split("[;,|]", self.text) if part.strip()]

    @cached_property
    def looks_whole(self) -> bool:
        """Whether nothing indicates several items."""
        return self.is_entry or self.is_item or not any(map(self.lookup.is_title, self.parts))

    @cached_property
    def groupings(self) -> list[list[str]]:
        """At most two ways to split it into items of the catalog or, failing that, into items with years."""
        in_catalog = _find_groupings(self.text, self.cuts, self.lookup.is_item)
        return in_catalog or _find_groupings(self.text, self.cuts, self.lookup.is_dated_item)


def _divide_at_semicolons(piece: Piece) -> list[str]:
    """`Dune; Nowhere`: if one part is a title of the catalog, semicolons separate all parts."""
    if ";" not in piece.text or piece.looks_whole or piece.groupings:
        return [piece.text]
    return [part.strip() for part in piece.text.split(";")]


def _leave_undivided(piece: Piece) -> list[str] | None:
    """`Dune`, or in a list `Love, Rosie` if the catalog has it. `Dune & Alien` may be two items: refused."""
    if piece.cuts and not (piece.is_entry and piece.is_item):
        return None
    others = [part for part in _BETWEEN.split(piece.text) if part]
    if len(others) > 1 and not piece.is_entry and not piece.is_item and all(map(piece.lookup.is_item, others)):
        raise _two_readings_error(piece.text, others)
    return [piece.text] if piece.text else []


def _divide_unambiguously(piece: Piece) -> list[str] | None:
    """`Lock, Stock and Two Smoking Barrels (1998), Heat (1995)`: only one split leaves nothing but items."""
    if len(piece.groupings) != 1:
        return None
    (parts,) = piece.groupings
    return parts if piece.looks_whole or parts != [piece.text] else None


def _refuse_two_readings(piece: Piece) -> list[str] | None:
    """`Dune, Nowhere`: one part is a title. `Alien, Heat (1995)`: both are. `Nowhere; Nobody`: unknown."""
    is_divided = ";" in piece.text and not piece.is_entry
    if piece.looks_whole and not piece.groupings and not is_divided:
        return None
    raise _two_readings_error(piece.text, max([*piece.groupings, piece.parts], key=len))


def _leave_whole(piece: Piece) -> list[str]:
    """`Nowhere, Nobody`: the catalog knows no part of it."""
    return [piece.text]


# The first rule that returns a list decides.
RULES: Sequence[Callable[[Piece], list[str] | None]] = (
    _leave_undivided,
    _divide_unambiguously,
    _refuse_two_readings,
    _leave_whole,
)


def _apply_rules(piece: Piece) -> list[str]:
    for rule in RULES:
        items = rule(piece)
        if items is not None:
            return items
    raise AssertionError("the last rule splits every piece")


def _find_groupings(text: str, cuts: Sequence[int], is_item: TextPredicate) -> list[list[str]]:
    """Return at most two ways to split a text at some of the cuts so that every part is an item."""
    starts = [0, *(cut + 1 for cut in cuts)]
    ends = [*cuts, len(text)]
    ways: list[list[list[str]]] = [[[]]]  # to split the text before each start
    for last, end in enumerate(ends):
        extended: list[list[str]] = []
        for first in range(last, max(-1, last - LONGEST_TITLE), -1):
            if not ways[first]:
                continue
            part = text[starts[first] : end].strip()
            if not part:
                extended += ways[first]
            elif part == part.strip(";,| ") and is_item(part):
                extended += [[*way, part] for way in ways[first]]
        ways.append(extended[:2])
    return [way for way in ways[-1] if way]


def _two_readings_error(text: str, parts: Sequence[str]) -> BadRecord:
    return BadRecord(
        "cell.one-or-several-items",
        f"holds %r, which can be one item or {len(parts)} (%s); {AS_LIST}",
        text,
        " | ".join(parts),
    )
