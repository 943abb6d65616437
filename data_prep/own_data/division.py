"""How a text with several items comes apart. docs/how-to/item-cells.md has the table of cells.

Line breaks, `|`, numbers and bullets always divide a text. `;` and `,` divide it by RULES, where that leaves items and
nothing else. What can be read in two ways is refused with both.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from convrec.data.damage import BadRecord
from convrec.titles.item import parse_item

AS_LIST = 'write a JSON list, ["...", "..."], or | between items'
LONGEST_TITLE = 6  # parts at commas and semicolons
_MARK = re.compile(r"\s*(?:\d{1,3}[.)]|[a-z]\)|[-–—*•])\s+(?=\S)")  # an item of a numbered or bulleted list
_COUNTED = re.compile(r"[(#]?(\d{1,3})\b\s*[-–.):]{0,2}\s*(?=\S)")  # and of one that counts 1, 2, ...
_NUMBER = re.compile(r"(?:^|\s)\(?(\d{1,3})[.)]\s+")
_AND = re.compile(r"(?<=\d\)), (?:and|or|&) ")  # `Heat (1995), Alien (1979), and Dune (2021)`
# what stands between items too, and in titles
_BETWEEN = re.compile(r"(?:^|\s+)(?:and|or|&|\+|/|•|·|[-–—])\s+|<br\s*/?>|\\n|\s*[\t、，；•]\s*")

TextPredicate: TypeAlias = Callable[[str], bool]


@dataclass(frozen=True)
class KnownTexts:
    """What the catalog says about a text. Nothing else decides how a cell is divided.

    Attributes:
        is_item: whether the catalog has it, as the cell is read: ground truth with its year, seen items by their title.
        is_title: whether it is a title or an id of the catalog.
        is_dated_item: whether it is `Title (1999)` and no more, in the catalog or not. Never without years.
        dated: whether the catalog has years.
    """

    is_item: TextPredicate
    is_title: TextPredicate
    is_dated_item: TextPredicate
    dated: bool


def divide(text: str, known: KnownTexts, *, is_entry: bool = False) -> list[str]:
    """Divide a text into the texts of its items.

    Args:
        text: a cell, or an entry of a list.
        known: what the catalog says.
        is_entry: whether it is an entry of a list, which is one item unless it can be none.

    Raises:
        BadRecord: The text is one item or several, and nothing says which.
    """
    pieces = _divide_at_lines(text, is_entry)
    if _is_broken_title(text, pieces, known):
        if not is_entry and all(map(known.is_item, pieces)):
            raise _two_readings_error(text, pieces)
        return [_join_lines(text)]
    numbered = [part for piece in pieces for part in _divide_at_numbers(piece, known)]
    marked = _replace_counts_by_bullets(numbered, known)
    is_list = len(marked) > 1 and all(map(_MARK.match, marked))
    items: list[str] = []
    for piece in marked:
        unmarked = _strip_mark(piece, known, is_list)
        for part in _divide_at_semicolons(Piece(unmarked, known, is_entry)):
            items += _apply_rules(Piece(part, known, is_entry))
    return items


# ---- lines, numbers and bullets


def _divide_at_lines(text: str, is_entry: bool) -> list[str]:
    """The pieces at line breaks and, outside of lists, at `|`."""
    lines = text.splitlines()
    if not is_entry:
        lines = "|".join(lines).split("|")
    return [line.strip() for line in lines if line.strip()]


def _join_lines(text: str) -> str:
    return " ".join(text.split())


def _is_broken_title(text: str, pieces: Sequence[str], known: KnownTexts) -> bool:
    """Whether the pieces are one title of the catalog, in which a line was broken."""
    return len(pieces) > 1 and not _MARK.match(pieces[-1]) and known.is_item(_join_lines(text))


def _divide_at_numbers(text: str, known: KnownTexts) -> list[str]:
    """`1. Heat 2. Alien` at its numbers, where they count 1, 2, ... and the whole is no item."""
    numbers = list(_NUMBER.finditer(text))
    if len(numbers) < 2 or text[: numbers[0].start()].strip():
        return [text]
    if not _count_up([number[1] for number in numbers]) or known.is_item(text):
        return [text]
    starts = [number.start() for number in numbers]
    ends = [*starts[1:], len(text)]
    return [text[start:end].strip() for start, end in zip(starts, ends, strict=True)]


def _count_up(numbers: Sequence[str]) -> bool:
    """Whether numbers are 1, 2, 3 and so on."""
    return [int(number) for number in numbers] == list(range(1, len(numbers) + 1))


def _replace_counts_by_bullets(pieces: Sequence[str], known: KnownTexts) -> Sequence[str]:
    """Pieces that count 1, 2, ... without a usual mark (`1 Heat`, `#2: Alien`) get a bullet instead of the number."""
    if len(pieces) < 2:
        return pieces
    marks = [_COUNTED.match(piece) for piece in pieces]
    numbers = [mark[1] for mark in marks if mark is not None]
    if numbers != [str(number) for number in range(1, len(pieces) + 1)] or all(map(known.is_item, pieces)):
        return pieces
    return [f"- {mark.string[mark.end() :]}" for mark in marks if mark is not None]


def _strip_mark(piece: str, known: KnownTexts, is_list: bool) -> str:
    """A piece without the number or bullet of a list, which is part of some titles: `1. FC Köln`.

    is_list: whether all pieces have a mark.
    """
    mark = _MARK.match(piece)
    if not mark or (known.is_item(piece) and not is_list):
        return piece
    rest = piece[mark.end() :]
    if known.is_item(rest):
        return rest
    if not is_list:
        return piece
    item = None if known.dated else parse_item(rest, dated=False)  # without bold and the like
    return item.title if item else rest


# ---- semicolons and commas


class Piece:
    """A text without line breaks, and what its dividers (`;`, `,` and `|`) could make of it."""

    def __init__(self, text: str, known: KnownTexts, is_entry: bool) -> None:
        self.text = _AND.sub(", ", text)
        self.known = known
        self.is_entry = is_entry
        self.cuts = [match.start() for match in re.finditer("[;,|]", self.text)]

    @cached_property
    def is_item(self) -> bool:
        """Whether the catalog has the whole."""
        return self.known.is_item(self.text)

    @cached_property
    def parts(self) -> list[str]:
        """The texts between all dividers."""
        return [part.strip() for part in re.split("[;,|]", self.text) if part.strip()]

    @cached_property
    def looks_whole(self) -> bool:
        """Whether nothing says that there are several items."""
        return self.is_entry or self.is_item or not any(map(self.known.is_title, self.parts))

    @cached_property
    def groupings(self) -> list[list[str]]:
        """At most two ways to divide it into items of the catalog or, if there is none, into items with years."""
        in_catalog = _find_groupings(self.text, self.cuts, self.known.is_item)
        return in_catalog or _find_groupings(self.text, self.cuts, self.known.is_dated_item)


def _divide_at_semicolons(piece: Piece) -> list[str]:
    """`Dune; Nowhere`: one title of the catalog is enough for semicolons to divide all."""
    if ";" not in piece.text or piece.looks_whole or piece.groupings:
        return [piece.text]
    return [part.strip() for part in piece.text.split(";")]


def _leave_undivided(piece: Piece) -> list[str] | None:
    """`Dune`; of a list also `Love, Rosie` that the catalog has. `Dune & Alien` can be two items: refused."""
    if piece.cuts and not (piece.is_entry and piece.is_item):
        return None
    others = [part for part in _BETWEEN.split(piece.text) if part]
    if len(others) > 1 and not piece.is_entry and not piece.is_item and all(map(piece.known.is_item, others)):
        raise _two_readings_error(piece.text, others)
    return [piece.text] if piece.text else []


def _divide_in_the_only_way(piece: Piece) -> list[str] | None:
    """`Lock, Stock and Two Smoking Barrels (1998), Heat (1995)`: one division leaves items and nothing else."""
    if len(piece.groupings) != 1:
        return None
    (parts,) = piece.groupings
    return parts if piece.looks_whole or parts != [piece.text] else None


def _refuse_two_readings(piece: Piece) -> list[str] | None:
    """`Dune, Nowhere`: one of the parts is a title. `Alien, Heat (1995)`: both are. `Nowhere; Nobody`: who knows."""
    is_divided = ";" in piece.text and not piece.is_entry
    if piece.looks_whole and not piece.groupings and not is_divided:
        return None
    raise _two_readings_error(piece.text, max([*piece.groupings, piece.parts], key=len))


def _leave_whole(piece: Piece) -> list[str]:
    """`Nowhere, Nobody`: the catalog has nothing of it."""
    return [piece.text]


# The first rule that has an answer decides.
RULES: Sequence[Callable[[Piece], list[str] | None]] = (
    _leave_undivided,
    _divide_in_the_only_way,
    _refuse_two_readings,
    _leave_whole,
)


def _apply_rules(piece: Piece) -> list[str]:
    for rule in RULES:
        items = rule(piece)
        if items is not None:
            return items
    raise AssertionError("the last rule has an answer for every piece")


def _find_groupings(text: str, cuts: Sequence[int], is_item: TextPredicate) -> list[list[str]]:
    """At most two ways to divide a text at some of the cuts so that every part is an item."""
    starts = [0, *(cut + 1 for cut in cuts)]
    ends = [*cuts, len(text)]
    ways: list[list[list[str]]] = [[[]]]  # of the text before each of the starts
    for last, end in enumerate(ends):
        found: list[list[str]] = []
        for first in range(last, max(-1, last - LONGEST_TITLE), -1):
            if not ways[first]:
                continue
            part = text[starts[first] : end].strip()
            if not part:
                found += ways[first]
            elif part == part.strip(";,| ") and is_item(part):
                found += [[*way, part] for way in ways[first]]
        ways.append(found[:2])
    return [way for way in ways[-1] if way]


def _two_readings_error(text: str, parts: Sequence[str]) -> BadRecord:
    return BadRecord(f"holds %r, which can be one item or {len(parts)} (%s); {AS_LIST}", text, " | ".join(parts))
