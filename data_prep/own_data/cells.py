"""Read cells that hold items: ground truth, seen, demonstration. docs/how-to/item-cells.md has a table of them.

A cell is a list, or text that holds one as JSON, Python, numpy, Spark or YAML writes it. Any other text is split into
items by data_prep/own_data/division.py. All code that reads items uses this module.
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
from data_prep.own_data.division import AS_LIST, CatalogLookup, split_items

NO_ITEMS = ("none", "nan", "null", "n/a", "<na>")  # what programs write for an empty cell
_IN_BRACKETS = re.compile(r"[\[{][^\[\]{}]+[\]}]")
_IN_QUOTES = re.compile(r"([\"']).+\1", re.DOTALL)
_OPENS_LIST = re.compile(r"[\[({]\s*['\"]")
_CALL = re.compile(r"^(?:array|list|tuple|set|frozenset)\([\[{(]?(.*?)[\]})]?(?:,\s*dtype=\w+)?\)$", re.DOTALL)
_NOTE = re.compile(r"\W*?(?:\s[-–—]\s|[-–—:.(\[])")  # after a year: `Heat (1995) - a heist`
_DECORATION = " -–—:.,;()[]*_\"'"
_YEAR = re.compile(r"[(（]\d{4}[)）]")
# Raised by `ast` and `tokenize` for text that is not a list, and by iterating over a number in brackets.
_NOT_A_LIST = (ValueError, SyntaxError, TypeError, tokenize.TokenError, RecursionError, MemoryError)


class ItemReader:
    """Read cells with the help of a catalog: its titles decide where a text is split."""

    def __init__(self, matcher: Matcher, ids: ItemIds) -> None:
        self.matcher = matcher
        self.ids = ids
        self.has_years = matcher.catalog.dated
        self.editions: dict[str, list[Item]] = {}  # title without `display` -> its items as lists show them
        catalog = matcher.catalog
        for row, (title, year) in enumerate(zip(catalog.titles, catalog.years, strict=True)):
            if catalog.displays and year is not None:
                self.editions.setdefault(normalise(catalog.clean_title(row)), []).append(Item(title, year))
        self._item_lookup = self._make_lookup(self.knows)
        self._title_lookup = self._make_lookup(self._is_title)
        # titles recur, and rows are read twice
        self._read_seen_entry = lru_cache(maxsize=CACHE_SIZE)(self._read_seen_entry_uncached)

    def read_items(self, cell: Any) -> list[Item]:
        """Read the items of a ground-truth or demonstration cell.

        Args:
            cell: a text, or a list of texts, pairs or records; None is empty.

        Raises:
            BadRecord: the cell cannot be split.
            BadRow: entries are not items; it has the problems of all.
        """
        return _read_all(self.split(cell), self._read_item)

    def read_titles(self, cell: Any) -> list[str]:
        """Read the titles of a cell of seen items, without any years that are given.

        Args:
            cell: as for `read_items`.

        Raises:
            BadRecord: the cell cannot be split.
            BadRow: entries cannot be read; it has the problems of all.
        """
        if isinstance(cell, list) and all(isinstance(entry, str) for entry in cell):
            return list(chain.from_iterable(_read_all(cell, self._read_seen_entry)))
        return list(chain.from_iterable(_read_all(_find_entries(cell, self._title_lookup), self._read_entry_titles)))

    def _read_seen_entry_uncached(self, entry: str) -> list[str]:
        return list(chain.from_iterable(_read_all(_find_entries([entry], self._title_lookup), self._read_entry_titles)))

    # ---- from a cell to its entries

    def split(self, cell: Any) -> list[Any]:
        """Split a ground-truth cell into its entries.

        Args:
            cell: as for `read_items`.

        Raises:
            BadRecord: it is neither a text nor a list, or it can be divided in several ways.
        """
        return _find_entries(cell, self._item_lookup)

    def _make_lookup(self, is_item: Callable[[str], bool]) -> CatalogLookup:
        return CatalogLookup(
            is_item=is_item,
            is_title=self._is_title,
            is_dated_item=lambda text: self.has_years and self._whole_item(text) is not None,
            has_years=self.has_years,
        )

    def knows(self, text: str) -> bool:
        """Whether the catalog has this item: by id, or by title and (if items have years) year.

        Fuzzy matches do not count: a title with an extra word would still be similar.
        """
        if text in self.ids or not self.has_years:
            return text in self.ids or self._is_title(text)
        item = self._whole_item(text)
        if item is None:
            return False
        years = [self.matcher.catalog.years[row] for row in self.matcher.seen_rows([item.title])]
        return any(year is not None and abs(year - item.year) <= self.matcher.year_tolerance for year in years)

    def _is_title(self, text: str) -> bool:
        return text in self.ids or bool(self.matcher.seen_rows([text]) and not _text_after_year(text, parse_item(text)))

    def _whole_item(self, text: str) -> Item | None:
        """Return the item if the text is `Title (1999)` and nothing follows."""
        item = parse_item(text)
        return item if item and not _text_after_year(text, item) else None

    # ---- from an entry to its item

    def _read_item(self, entry: Any) -> Item:
        if item := self._find_by_id(entry):
            return item
        title, year = _parse_title_and_year(entry)
        if not self.has_years:
            if year not in (None, ""):
                raise BadRecord(
                    "cell.unexpected-year",
                    "holds %r with a year, but the catalog has no years; leave years out of both",
                    entry,
                )
            return self._resolve_edition(entry, Item(title, NO_YEAR))
        if isinstance(entry, str):
            item = parse_item(entry)
            if item is None:
                raise BadRecord(
                    "cell.missing-year", "holds %r, which is not `Title (1999)`; add the year as in the catalog", entry
                )
            self._check_rest(entry, item)
            title, year = item
        number = parse_year(year)
        if number is None or not OLDEST_YEAR <= number <= NEWEST_YEAR:
            raise BadRecord(
                "cell.impossible-year",
                f"holds %r: %r is not a year from {OLDEST_YEAR} to {NEWEST_YEAR}; correct it",
                entry,
                year,
            )
        return self._resolve_edition(entry, Item(title, number))

    def _resolve_edition(self, entry: Any, item: Item) -> Item:
        """Return the catalog's item with this title and year. Raises BadRecord if it has several."""
        editions = self.editions.get(normalise(item.title), [])
        shown = [edition for edition in editions if edition.year == item.year]
        if not shown or item in shown:
            return item
        if len(shown) > 1:
            names = ", ".join(format_item(*edition) for edition in shown)
            raise BadRecord(
                "cell.ambiguous-item",
                "holds %r, which matches %s items of the catalog (%s); write the item_id, or the title as shown here",
                entry,
                len(shown),
                names,
            )
        return shown[0]

    def _read_entry_titles(self, entry: Any) -> list[str]:
        """Return the title of an entry; if several items share it and no year is given, the titles of all."""
        if item_by_id := self._find_by_id(entry):
            return [item_by_id.title]
        title, year = _parse_title_and_year(entry)
        item = parse_item(title) if self.has_years and isinstance(entry, str) else None
        if item:
            self._check_rest(entry, item)
            title, year = item
        if self.has_years and (number := parse_year(year)):  # misspelt or shortened titles are only found with a year
            row = self.matcher.identify(title, number).index
            if row >= 0 and row not in self.matcher.seen_rows([title]):
                return [self.matcher.catalog.titles[row]]
        return [edition.title for edition in self.editions.get(normalise(title), ())] or [title]

    def _check_rest(self, entry: str, item: Item) -> None:
        rest = _text_after_year(entry, item)
        if _YEAR.search(rest):
            raise BadRecord(
                "cell.two-years", "holds %r, which has two years; write [title, year], one entry per item", entry
            )
        if rest and (not _NOTE.match(rest) or self._is_title(rest.strip(_DECORATION))):
            raise BadRecord(
                "cell.ignored-text", "holds %r, where %r would be ignored; write [title, year]", entry, rest.strip()
            )

    def _find_by_id(self, entry: Any) -> Item | None:
        """Return the item if an entry is an id. Raises BadRecord if the catalog lacks the id."""
        if not self.ids:
            return None
        if isinstance(entry, dict) and set(entry) == {"item_id"}:
            return self.ids.find(entry["item_id"])
        if isinstance(entry, int) and not isinstance(entry, bool):
            return self.ids.find(entry)
        return self.ids.read(entry.strip()) if isinstance(entry, str) else None


def _read_all(entries: Sequence[Any], read: Callable[[Any], Any]) -> list[Any]:
    values: list[Any] = []
    problems: list[BadRecord] = []
    for entry in entries:
        with collected(problems):
            values.append(read(entry))
    if problems:
        raise BadRow(problems)
    return values


# ---- lists


def _find_entries(cell: Any, lookup: CatalogLookup) -> list[Any]:
    """Split a cell into entries of one item each. Raises BadRecord."""
    if isinstance(cell, str):
        return _find_entries_in_text(cell, lookup)
    if isinstance(cell, list | tuple | None):
        return _divide_entries(cell or [], lookup)
    raise BadRecord("cell.not-a-list", "has the type %s; write a list of items", type(cell).__name__)


def _find_entries_in_text(cell: str, lookup: CatalogLookup) -> list[Any]:
    text = _CALL.sub(r"[\1]", cell.strip())
    listed = _parse_list(text)
    if listed is not None:
        return _divide_entries(listed, lookup)
    if lookup.is_item(text):
        return split_items(text, lookup)
    if text.lower() in NO_ITEMS:
        return []
    if _IN_QUOTES.fullmatch(text):  # "Heat", "Alien"
        listed = _parse_list(f"[{text}]")
        return split_items(text, lookup) if listed is None else _divide_entries(listed, lookup)
    if _IN_BRACKETS.fullmatch(text):  # [Heat (1995), Alien (1979)], as Spark and YAML write it
        return split_items(text[1:-1], lookup)
    return split_items(text, lookup)


def _divide_entries(listed: Sequence[Any], lookup: CatalogLookup) -> list[Any]:
    """Return the entries of a list; text with several lines, as in `["Heat\\nAlien"]`, becomes one entry per line."""
    entries: list[Any] = []
    for entry in listed:
        if isinstance(entry, str) and entry.strip():
            entries += split_items(entry, lookup, is_entry=True)
        else:
            entries.append(entry)
    return entries


def _parse_list(text: str) -> list[Any] | None:
    """Parse text that is a list as JSON, Python or numpy write it; None for other text.

    Raises:
        BadRecord: The text begins like a list of strings, but is not one.
    """
    if text[:1] not in ("[", "(", "{"):
        return None
    try:
        value = _parse_json_or_python(text)
    except _NOT_A_LIST:
        if _OPENS_LIST.match(text):
            raise BadRecord(
                "cell.broken-list", f"holds %r, which begins like a list but is not one; {AS_LIST}", text
            ) from None
        return None
    return list(value) if isinstance(value, list | tuple | set) else [value]


def _parse_json_or_python(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        value = ast.literal_eval(text)
    if isinstance(value, dict) or not all(isinstance(entry, str) for entry in value):
        return value
    # Read the strings one by one: numpy prints them without commas, and Python would join them.
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [ast.literal_eval(token.string) for token in tokens if token.type == tokenize.STRING]


# ---- parts of an entry


def _text_after_year(text: str, item: Item | None) -> str:
    """Return the words after an item's year, which `parse_item` ignores."""
    if item is None:
        return ""
    year = re.search(rf"[(（\[][^()（）]*{item.year}[^()（）\]]*[)）\]]|[-–—]\s*{item.year}", text)
    rest = text[year.end() :] if year else ""
    return rest if re.search(r"\w", rest) else ""


def _parse_title_and_year(entry: Any) -> tuple[str, Any]:
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
        raise BadRecord(
            "cell.not-an-item", 'holds %r, which is not an item; write "Title (1999)" or [title, year]', entry
        )
    return " ".join(title.split()), year
