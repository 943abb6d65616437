"""The one reader of cells with items: ground truth, seen, demonstration. Table: docs/how-to/item-cells.md

A cell is a list, or a text that holds one, as JSON, Python, numpy, Spark and YAML write it. Any other text is divided
into its items by data_prep/own_data/division.py.
"""

import ast
import io
import json
import re
import tokenize
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from convrec.data.damage import BadRecord, BadRow, collected
from convrec.titles.catalog import NEWEST_YEAR, OLDEST_YEAR, parse_year
from convrec.titles.forms import CACHE_SIZE, normalise
from convrec.titles.item import NO_YEAR, Item, format_item, parse_item
from convrec.titles.matching import Matcher
from data_prep.own_data.catalog import ItemIds
from data_prep.own_data.division import AS_LIST, KnownTexts, divide

NO_ITEMS = ("none", "nan", "null", "n/a", "<na>")  # cells that programs write for an empty one
_IN_BRACKETS = re.compile(r"[\[{][^\[\]{}]+[\]}]")
_IN_QUOTES = re.compile(r"([\"']).+\1", re.DOTALL)
_OPENS_LIST = re.compile(r"[\[({]\s*['\"]")
_CALL = re.compile(r"^(?:array|list|tuple|set|frozenset)\([\[{(]?(.*?)[\]})]?(?:,\s*dtype=\w+)?\)$", re.DOTALL)
_NOTE = re.compile(r"\W*?(?:\s[-–—]\s|[-–—:.(\[])")  # after a year: `Heat (1995) - a heist`
_DECORATION = " -–—:.,;()[]*_\"'"
_YEAR = re.compile(r"[(（]\d{4}[)）]")
# What `ast` and `tokenize` raise for a text that is no list, and a walk over a number in brackets.
_NOT_A_LIST = (ValueError, SyntaxError, TypeError, tokenize.TokenError, RecursionError, MemoryError)


class ItemReader:
    """Reads cells with a catalog at hand: what it knows decides where a text is divided."""

    def __init__(self, matcher: Matcher, ids: ItemIds) -> None:
        self.matcher = matcher
        self.ids = ids
        self.dated = matcher.catalog.dated
        self.editions: dict[str, list[Item]] = {}  # title without `display` -> its items, as lists write them
        catalog = matcher.catalog
        for row, (title, year) in enumerate(zip(catalog.titles, catalog.years, strict=True)):
            if catalog.displays and year is not None:
                self.editions.setdefault(normalise(catalog.clean_title(row)), []).append(Item(title, year))
        self._known_with_years = self._known_texts(self.knows)
        self._known_titles = self._known_texts(self._is_title)
        self._seen_in = lru_cache(maxsize=CACHE_SIZE)(self._titles_in)  # titles recur, and rows are read twice

    def items(self, cell: Any) -> list[Item]:
        """The items of a cell of ground truth or a demonstration. Raises BadRow with all that is wrong with it."""
        return _read_all(self.split(cell), self._item)

    def titles(self, cell: Any) -> list[str]:
        """The titles of a cell of seen items; years that are written all the same are taken off. Raises BadRow."""
        if isinstance(cell, list) and all(isinstance(entry, str) for entry in cell):
            return list(chain.from_iterable(_read_all(cell, self._seen_in)))
        return list(chain.from_iterable(_read_all(_find_entries(cell, self._known_titles), self._titles)))

    def _titles_in(self, entry: str) -> list[str]:
        return list(chain.from_iterable(_read_all(_find_entries([entry], self._known_titles), self._titles)))

    # ---- from a cell to its entries

    def split(self, cell: Any) -> list[Any]:
        """The entries of a cell of ground truth. Raises BadRecord."""
        return _find_entries(cell, self._known_with_years)

    def _known_texts(self, is_item: Callable[[str], bool]) -> KnownTexts:
        return KnownTexts(
            is_item=is_item,
            is_title=self._is_title,
            is_dated_item=lambda text: self.dated and self._whole_item(text) is not None,
            dated=self.dated,
        )

    def knows(self, text: str) -> bool:
        """Whether the catalog has it: by id, or by title and, where items have years, year. Misspelt ones do not count:
        with a word too many a title is still similar."""
        if text in self.ids or not self.dated:
            return text in self.ids or self._is_title(text)
        item = self._whole_item(text)
        if item is None:
            return False
        years = [self.matcher.catalog.years[row] for row in self.matcher.seen_rows([item.title])]
        return any(year is not None and abs(year - item.year) <= self.matcher.year_tolerance for year in years)

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


# ---- lists


def _find_entries(cell: Any, known: KnownTexts) -> list[Any]:
    """The entries of a cell, each for one item. Raises BadRecord."""
    if isinstance(cell, str):
        return _find_entries_in_text(cell, known)
    if isinstance(cell, list | tuple | None):
        return _divide_entries(cell or [], known)
    raise BadRecord("is a %s; write a list of items", type(cell).__name__)


def _find_entries_in_text(cell: str, known: KnownTexts) -> list[Any]:
    text = _CALL.sub(r"[\1]", cell.strip())
    listed = _parse_list(text)
    if listed is not None:
        return _divide_entries(listed, known)
    if known.is_item(text):
        return divide(text, known)
    if text.lower() in NO_ITEMS:
        return []
    if _IN_QUOTES.fullmatch(text):  # "Heat", "Alien"
        listed = _parse_list(f"[{text}]")
        return divide(text, known) if listed is None else _divide_entries(listed, known)
    if _IN_BRACKETS.fullmatch(text):  # [Heat (1995), Alien (1979)], as Spark and YAML write it
        return divide(text[1:-1], known)
    return divide(text, known)


def _divide_entries(listed: Sequence[Any], known: KnownTexts) -> list[Any]:
    """The entries of a list; a text with several lines, as in `["Heat\\nAlien"]`, is one for each."""
    entries: list[Any] = []
    for entry in listed:
        if isinstance(entry, str) and entry.strip():
            entries += divide(entry, known, is_entry=True)
        else:
            entries.append(entry)
    return entries


def _parse_list(text: str) -> list[Any] | None:
    """The list that a text is, as JSON, Python or numpy write it; None for another text. Raises BadRecord for one that
    begins as a list of texts and is none."""
    if text[:1] not in ("[", "(", "{"):
        return None
    try:
        value = _parse_json_or_python(text)
    except _NOT_A_LIST:
        if _OPENS_LIST.match(text):
            raise BadRecord(f"holds %r, which begins as a list and is none; {AS_LIST}", text) from None
        return None
    return list(value) if isinstance(value, list | tuple | set) else [value]


def _parse_json_or_python(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        value = ast.literal_eval(text)
    if isinstance(value, dict) or not all(isinstance(entry, str) for entry in value):
        return value
    # Read the texts one by one: Python joins those without a comma between, as numpy prints them.
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [ast.literal_eval(token.string) for token in tokens if token.type == tokenize.STRING]


# ---- parts of an entry


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
        title = entry[0]
        year = entry[1] if len(entry) == 2 else None
    elif isinstance(entry, dict) and set(entry) <= {"title", "year"}:
        title = entry.get("title")
        year = entry.get("year")
    if not isinstance(title, str) or not title.strip():
        raise BadRecord('holds %r, which is no item; write "Title (1999)" or [title, year]', entry)
    return " ".join(title.split()), year
