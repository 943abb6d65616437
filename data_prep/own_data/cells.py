"""The one reader of cells with items: ground truth, seen, demonstration. docs/how-to/data.md has the table of cells.

A cell is a list, or a text that holds one: JSON, Python's or numpy's; else line breaks and `|` always divide its items,
`;` and `,` where that leaves items and nothing else. What can be read in two ways is a finding that shows both.
"""

import ast
import io
import json
import re
import tokenize
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, TypeAlias

from convrec.data.damage import BadRecord, BadRow, collected
from convrec.lists.catalog import NEWEST_YEAR, OLDEST_YEAR, parse_year
from convrec.lists.matching import Matcher
from convrec.lists.ranks import NO_YEAR, Item, format_item, parse_item
from convrec.lists.titles import CACHE_SIZE, normalise
from data_prep.own_data.catalog import ItemIds

Knows: TypeAlias = Callable[[str], bool]  # whether a text is an item, by what the catalog has
AS_LIST = 'write a JSON list, ["...", "..."], or | between items'
NO_ITEMS = ("none", "nan", "null", "n/a", "<na>")  # cells that programs write for an empty one
LONGEST_TITLE = 6  # parts at commas and semicolons
_MARK = re.compile(r"\s*(?:\d{1,3}[.)]|[a-z]\)|[-–—*•])\s+(?=\S)")  # an item of a numbered or bulleted list
_COUNTED = re.compile(r"[(#]?(\d{1,3})\b\s*[-–.):]{0,2}\s*(?=\S)")  # and of one that counts 1, 2, ...
_NUMBER = re.compile(r"(?:^|\s)\(?(\d{1,3})[.)]\s+")
_IN_BRACKETS, _IN_QUOTES = re.compile(r"[\[{][^\[\]{}]+[\]}]"), re.compile(r"([\"']).+\1", re.DOTALL)
_OPENS_LIST = re.compile(r"[\[({]\s*['\"]")
_CALL = re.compile(r"^(?:array|list|tuple|set|frozenset)\([\[{(]?(.*?)[\]})]?(?:,\s*dtype=\w+)?\)$", re.DOTALL)
_AND = re.compile(r"(?<=\d\)), (?:and|or|&) ")  # `Heat (1995), Alien (1979), and Dune (2021)`
# what stands between items too, and in titles
_BETWEEN = re.compile(r"(?:^|\s+)(?:and|or|&|\+|/|•|·|[-–—])\s+|<br\s*/?>|\\n|\s*[\t、，；•]\s*")
_NOTE = re.compile(r"\W*?(?:\s[-–—]\s|[-–—:.(\[])")  # after a year: `Heat (1995) - a heist`
_DECORATION = " -–—:.,;()[]*_\"'"
_YEAR = re.compile(r"[(（]\d{4}[)）]")
_SYNTAX = (ValueError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError)


class ItemReader:
    """Reads cells with a catalog at hand: what it knows decides where a text is divided."""

    def __init__(self, matcher: Matcher, ids: ItemIds) -> None:
        self.matcher, self.ids, self.dated = matcher, ids, matcher.catalog.dated
        self.editions: dict[str, list[Item]] = {}  # title without `display` -> its items, as lists write them
        catalog = matcher.catalog
        for row, (title, year) in enumerate(zip(catalog.titles, catalog.years, strict=True)):
            if catalog.displays and year is not None:
                self.editions.setdefault(normalise(catalog.clean_title(row)), []).append(Item(title, year))
        self._seen_in = lru_cache(maxsize=CACHE_SIZE)(self._titles_in)  # titles recur, and rows are read twice

    def items(self, cell: Any) -> list[Item]:
        """The items of a cell of ground truth or a demonstration. Raises BadRow with all that is wrong with it."""
        return _read_all(self.split(cell), self._item)

    def titles(self, cell: Any) -> list[str]:
        """The titles of a cell of seen items; years that are written all the same are taken off. Raises BadRow."""
        if isinstance(cell, list) and all(isinstance(entry, str) for entry in cell):
            return list(chain.from_iterable(_read_all(cell, self._seen_in)))
        return list(chain.from_iterable(_read_all(self._entries(cell, self._is_title), self._titles)))

    def _titles_in(self, entry: str) -> list[str]:
        return list(chain.from_iterable(_read_all(self._entries([entry], self._is_title), self._titles)))

    # ---- from a cell to its entries

    def split(self, cell: Any) -> list[Any]:
        """The entries of a cell of ground truth. Raises BadRecord."""
        return self._entries(cell, self.knows)

    def _entries(self, cell: Any, knows: Knows) -> list[Any]:
        if isinstance(cell, str):
            cell = text = _CALL.sub(r"[\1]", cell.strip())
            if text.lower() in NO_ITEMS and not knows(text):
                return []
            if (listed := _as_list(text)) is None and not knows(text):
                if _IN_QUOTES.fullmatch(text):  # "Heat", "Alien"
                    listed = _as_list(f"[{text}]")
                elif _IN_BRACKETS.fullmatch(text):  # [Heat (1995), Alien (1979)], as Spark and YAML write it
                    cell = text[1:-1]
            return self._divided(cell, knows) if listed is None else self._entries(listed, knows)
        if not isinstance(cell, list | tuple | None):
            raise BadRecord("is a %s; write a list of items", type(cell).__name__)
        entries: list[Any] = []
        for entry in cell or []:
            entries += (
                self._divided(entry, knows, is_entry=True) if isinstance(entry, str) and entry.strip() else [entry]
            )
        return entries

    def _divided(self, text: str, knows: Knows, is_entry: bool = False) -> list[str]:
        """is_entry: of a list, which is one item unless it can be none."""
        lines = text.splitlines() if is_entry else "|".join(text.splitlines()).split("|")
        pieces = [piece.strip() for piece in lines if piece.strip()]
        if len(pieces) > 1 and not _MARK.match(pieces[-1]) and knows(whole := " ".join(text.split())):
            if not is_entry and all(map(knows, pieces)):
                raise _in_two_ways(text, pieces)
            return [whole]  # a title that a line was broken in
        pieces = [part for piece in pieces for part in _at_numbers(piece, knows)]
        if (rests := _counted(pieces)) and not all(map(knows, pieces)):
            pieces = [f"- {rest}" for rest in rests]
        is_list = len(pieces) > 1 and all(map(_MARK.match, pieces))
        return [
            part
            for piece in pieces
            for part in self._at_commas(self._without_mark(piece, knows, is_list), knows, is_entry)
        ]

    def _without_mark(self, piece: str, knows: Knows, is_list: bool) -> str:
        """Without the number or bullet of a list, which is part of some titles: `1. FC Köln`."""
        mark = _MARK.match(piece)
        if not mark or (knows(piece) and not is_list):
            return piece
        rest = piece[mark.end() :]
        if not is_list or knows(rest) or self.dated:
            return rest if is_list or knows(rest) else piece
        bare = parse_item(rest, dated=False)
        return bare.title if bare else rest

    def _at_commas(self, text: str, knows: Knows, is_entry: bool) -> list[str]:
        text = _AND.sub(", ", text)
        cuts = [match.start() for match in re.finditer("[;,|]", text)]
        if not cuts or (is_entry and knows(text)):
            others = [part for part in _BETWEEN.split(text) if part]
            if len(others) > 1 and not is_entry and not knows(text) and all(map(knows, others)):
                raise _in_two_ways(text, others)
            return [text] if text else []
        ways = _groupings(text, cuts, knows)
        ways = ways or _groupings(text, cuts, lambda part: self.dated and self._whole_item(part) is not None)
        parts = [part.strip() for part in re.split("[;,|]", text) if part.strip()]
        is_one = is_entry or knows(text) or not any(map(self._is_title, parts))
        if len(ways) == 1 and (is_one or ways != [[text]]):
            return ways[0]
        if not ways and not is_one and ";" in text:
            return [item for part in text.split(";") for item in self._at_commas(part.strip(), knows, is_entry)]
        if ways or not is_one or (";" in text and not is_entry):
            raise _in_two_ways(text, max([*ways, parts], key=len))
        return [text]

    def knows(self, text: str) -> bool:
        """Whether the catalog has it: by id, or by title and, where items have years, year. Misspelt ones do not count:
        with a word too many a title is still similar."""
        if text in self.ids or not self.dated:
            return text in self.ids or self._is_title(text)
        item, years = self._whole_item(text), self.matcher.catalog.years
        rows = self.matcher.seen_rows([item.title]) if item else ()
        return any(abs(years[row] - item.year) <= self.matcher.year_tolerance for row in rows)  # type: ignore[operator, union-attr]

    def _is_title(self, text: str) -> bool:
        return text in self.ids or bool(self.matcher.seen_rows([text]) and not _behind_year(text, parse_item(text)))

    def _whole_item(self, text: str) -> Item | None:
        """`Title (1999)` that has nothing behind it."""
        item = parse_item(text)
        return item if item and not _behind_year(text, item) else None

    # ---- from an entry to its item

    def _item(self, entry: Any) -> Item:
        if item := self._by_id(entry):
            return item
        title, year = _title_and_year(entry)
        if not self.dated:
            if year not in (None, ""):
                raise BadRecord("holds %r with a year, but the catalog has no years; leave years out of both", entry)
            return self._only(entry, Item(title, NO_YEAR))
        if isinstance(entry, str):
            item = parse_item(entry)
            if item is None:
                raise BadRecord("holds %r, which is not `Title (1999)`; add the year, as in the catalog", entry)
            self._check_rest(entry, item)
            title, year = item
        number = parse_year(year)
        if number is None or not OLDEST_YEAR <= number <= NEWEST_YEAR:
            raise BadRecord(f"holds %r: %r is no year from {OLDEST_YEAR} to {NEWEST_YEAR}; write it right", entry, year)
        return self._only(entry, Item(title, number))

    def _only(self, entry: Any, item: Item) -> Item:
        """The item of its title and year; of a title that only `display` tells apart, the one that has it. Raises
        BadRecord where there are several."""
        editions = self.editions.get(normalise(item.title), [])
        shown = [edition for edition in editions if edition.year == item.year]
        if not shown or item in shown:
            return item
        if len(shown) > 1:
            names = ", ".join(format_item(*edition) for edition in shown)
            told = "holds %r, which is %s items of the catalog (%s); write the item_id, or the title as it stands here"
            raise BadRecord(told, entry, len(shown), names)
        return shown[0]

    def _titles(self, entry: Any) -> list[str]:
        """The title of an entry; of a title alone that several items share, those of all."""
        if by_id := self._by_id(entry):
            return [by_id.title]
        title, year = _title_and_year(entry)
        item = parse_item(title) if self.dated and isinstance(entry, str) else None
        if item:
            self._check_rest(entry, item)
            title, year = item
        if self.dated and (number := parse_year(year)):  # what is misspelt, or shorter, is found with its year alone
            row = self.matcher.identify(title, number).index
            if row >= 0 and row not in self.matcher.seen_rows([title]):
                return [self.matcher.catalog.titles[row]]
        return [edition.title for edition in self.editions.get(normalise(title), ())] or [title]

    def _check_rest(self, entry: str, item: Item) -> None:
        rest = _behind_year(entry, item)
        if _YEAR.search(rest):
            raise BadRecord("holds %r, which has two years; write [title, year], and an entry for every item", entry)
        if rest and (not _NOTE.match(rest) or self._is_title(rest.strip(_DECORATION))):
            raise BadRecord("holds %r, of which %r would be lost; write [title, year]", entry, rest.strip())

    def _by_id(self, entry: Any) -> Item | None:
        """The item of an entry that is an id. Raises BadRecord for an id that the catalog lacks."""
        if not self.ids:
            return None
        if isinstance(entry, dict) and set(entry) == {"item_id"}:
            return self.ids.find(entry["item_id"])
        if isinstance(entry, int) and not isinstance(entry, bool):
            return self.ids.find(entry)
        return self.ids.read(entry.strip()) if isinstance(entry, str) else None


def _read_all(entries: Sequence[Any], read: Callable[[Any], Any]) -> list[Any]:
    found: list[Any] = []
    problems: list[BadRecord] = []
    for entry in entries:
        with collected(problems):
            found.append(read(entry))
    if problems:
        raise BadRow(problems)
    return found


def _as_list(text: str) -> list[Any] | None:
    """The list that a text is, as JSON, Python or numpy write it; None for another text. Raises BadRecord for one that
    begins as a list of texts and is none."""
    if text[:1] not in ("[", "(", "{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        try:
            value = ast.literal_eval(text)
            if not isinstance(value, dict) and all(isinstance(entry, str) for entry in value):
                # the texts one by one: Python joins those without a comma between, as numpy prints them
                tokens = tokenize.generate_tokens(io.StringIO(text).readline)
                value = [ast.literal_eval(token.string) for token in tokens if token.type == tokenize.STRING]
        except (*_SYNTAX, TypeError):
            if _OPENS_LIST.match(text):
                raise BadRecord(f"holds %r, which begins as a list and is none; {AS_LIST}", text) from None
            return None
    return list(value) if isinstance(value, list | tuple | set) else [value]


def _at_numbers(text: str, knows: Knows) -> list[str]:
    """`1. Heat 2. Alien` at its numbers, where they count 1, 2, ... and the whole is no item."""
    numbers = list(_NUMBER.finditer(text))
    if len(numbers) < 2 or [int(n[1]) for n in numbers] != list(range(1, len(numbers) + 1)) or knows(text):
        return [text]
    starts = [number.start() for number in numbers]
    if text[: starts[0]].strip():
        return [text]
    return [text[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]


def _counted(pieces: Sequence[str]) -> list[str]:
    """What stands behind 1, 2, ...; nothing for pieces that do not count so."""
    marks = [mark for piece in pieces if (mark := _COUNTED.match(piece))]
    if len(pieces) < 2 or [mark[1] for mark in marks] != [*map(str, range(1, len(pieces) + 1))]:
        return []
    return [mark.string[mark.end() :] for mark in marks]


def _groupings(text: str, cuts: Sequence[int], is_item: Knows) -> list[list[str]]:
    """At most two ways to divide a text at some of the cuts so that every part is an item."""
    starts, ends = [0, *(cut + 1 for cut in cuts)], [*cuts, len(text)]
    ways: list[list[list[str]]] = [[[]]]  # of what is before each cut
    for last, end in enumerate(ends):
        found: list[list[str]] = []
        for first in range(last, max(-1, last - LONGEST_TITLE), -1):
            part = text[starts[first] : end].strip()
            if ways[first] and (not part or (part == part.strip(";,| ") and is_item(part))):
                found += [[*way, part] if part else way for way in ways[first]]
        ways.append(found[:2])
    return [way for way in ways[-1] if way]


def _in_two_ways(text: str, parts: Sequence[str]) -> BadRecord:
    return BadRecord(
        f"holds %r, which can be one item or {len(parts)} (%s); {AS_LIST}", text, " | ".join(map(str, parts))
    )


def _behind_year(text: str, item: Item | None) -> str:
    """The words behind the year of an item, which are not read with it."""
    if item is None:
        return ""
    behind = re.search(rf"[(（\[][^()（）]*{item.year}[^()（）\]]*[)）\]]|[-–—]\s*{item.year}", text)
    rest = text[behind.end() :] if behind else ""
    return rest if re.search(r"\w", rest) else ""


def _title_and_year(entry: Any) -> tuple[str, Any]:
    title: Any = None
    year: Any = None
    if isinstance(entry, str):
        title = entry
    elif isinstance(entry, list | tuple) and 1 <= len(entry) <= 2:
        title, year = (*entry, None)[:2]
    elif isinstance(entry, dict) and set(entry) <= {"title", "year"}:
        title, year = entry.get("title"), entry.get("year")
    if not isinstance(title, str) or not title.strip():
        raise BadRecord('holds %r, which is no item; write "Title (1999)" or [title, year]', entry)
    return " ".join(title.split()), year
