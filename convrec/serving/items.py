"""The served catalog: items by id and by title, added and removed while lists are written.

Every state of the catalog is a `Snapshot`, which never changes: a request keeps the one it began with. Tokens of lines
are made once; a change of one item makes the trie of all lines anew from them, some 3 µs a line (measured, 20,000).
"""

import copy
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from convrec.constrained.catalog_trie import CatalogTrie, catalog_trie, join_lines, select_lines
from convrec.constrained.lines import encode_lines
from convrec.errors import UserError
from convrec.lists.catalog import NEWEST_YEAR, OLDEST_YEAR, Catalog, load_catalog, parse_year, shown_title
from convrec.lists.matching import make_matcher
from convrec.lists.ranks import NO_YEAR, format_item, parse_item
from convrec.lists.settings import ListSettings
from convrec.lists.titles import fold, normalise
from convrec.serving.journal import Change, Journal
from convrec.serving.tries import TrieFile

ALLOWED_KEPT = 16  # tries of a request's `allow`, which often comes again


@dataclass(frozen=True)
class CatalogItem:
    """item_id: the catalog's, as text; the number of its row where it has none. title: as lists write it."""

    item_id: str
    title: str
    year: int | None

    @property
    def line(self) -> str:
        return format_item(self.title, NO_YEAR if self.year is None else self.year)


@dataclass(frozen=True)
class Snapshot:
    """The catalog between two changes. items: those that can be recommended, by their number in the trie."""

    number: int
    items: Mapping[int, CatalogItem]
    number_of: Mapping[str, int]  # item_id -> number
    trie: TrieFile


class ServedCatalog:
    """Safe to use from several threads. problems: what was left out, a sentence each."""

    def __init__(
        self, file: Path, tokenizer: Any, lists: ListSettings, folder: Path, state: Path | None = None
    ) -> None:
        """folder: for tries, the process's own. state: the folder that changes are kept in; None: they are lost.

        Raises UserError for a catalog, tokenizer or state that cannot be used.
        """
        self._tokenizer = copy.deepcopy(tokenizer)  # encoding lines sets its truncation, which other threads may use
        self._delimiter, self._tolerance, self._folder = lists.delimiter, lists.year_tolerance, folder
        base = load_catalog(file)
        self.dated, self.problems = base.dated, list(base.problems)
        matcher = make_matcher(base, lists)
        self._lines, _ = catalog_trie(file, matcher, tokenizer, lists.delimiter, folder)  # of all items there ever were
        self._num_rows = len(base)
        self._by_title: dict[str, list[int]] = {}
        self._lock = threading.RLock()
        items = _base_items(base, matcher.index.items)
        written = set(self._lines.item_W.tolist())
        self.problems += [
            f"{item.line!r} is read as another item or as none" for n, item in items.items() if n not in written
        ]
        items = {number: item for number, item in items.items() if number in written}
        for row, number in enumerate(matcher.index.items):
            if number in items:
                self._index(base.titles[row], number)
        self._snapshot = self._make_snapshot(0, items)
        self.trie_with = lru_cache(ALLOWED_KEPT)(self._trie_with)
        self._journal = Journal(state, file, has_ids=base.item_ids is not None) if state else None
        if self._journal:
            with self._lock:
                self._apply(self._journal.news())

    # ---- reading

    @property
    def snapshot(self) -> Snapshot:
        """The catalog now, with what other processes of the same state have changed."""
        if self._journal and self._journal.has_news():
            with self._lock:
                self._apply(self._journal.news())
        return self._snapshot

    def __len__(self) -> int:
        return len(self.snapshot.items)

    def __iter__(self) -> Iterator[CatalogItem]:
        return iter(self.snapshot.items.values())

    @property
    def version(self) -> int:
        """0 at the start, one more with every change."""
        return self.snapshot.number

    def get(self, item_id: str) -> CatalogItem | None:
        snapshot = self.snapshot
        number = snapshot.number_of.get(item_id)
        return None if number is None else snapshot.items[number]

    def find(self, text: str, snapshot: Snapshot) -> list[int]:
        """The numbers of the items that an id, `Title (Year)` or a title alone, of any year, stands for; [] for none.

        A text that is an item's id is that item, whatever titles there are.
        """
        if (number := snapshot.number_of.get(text)) is not None:
            return [number]
        item = parse_item(text, self.dated)
        title, year = (item.title, item.year) if item else (text, None)
        numbers = [n for n in self._titled(title) if n in snapshot.items]
        if year is None or not self.dated:
            return numbers
        apart = {n: abs(snapshot.items[n].year - year) for n in numbers}  # type: ignore[operator]  # dated
        nearest = min(apart.values(), default=self._tolerance + 1)
        return [n for n in numbers if apart[n] == nearest <= self._tolerance]

    def _titled(self, title: str) -> list[int]:
        return self._by_title.get(normalise(title)) or self._by_title.get(f"\0{fold(title)}") or []

    def _trie_with(self, numbers: frozenset[int]) -> TrieFile:
        """The trie of these items alone."""
        lines = self._lines
        return TrieFile(select_lines(lines, np.isin(lines.item_W, list(numbers))), self._folder)

    # ---- changing

    def put(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Add items, or replace those with the same item_id: {"item_id", "title", "year", "display"}.

        All or, with a UserError that names the item, none.
        """
        change: Change = {}
        for place, record in enumerate(records):
            item = self._read(record, f"items[{place}]")
            if item.item_id in change:
                raise UserError(f"items[{place}]: item_id {item.item_id!r} is there twice")
            change[item.item_id] = {"title": item.title, "year": item.year}
        self._change(change)

    def delete(self, item_ids: Sequence[str | int]) -> None:
        """Remove items. Raises UserError, and removes none, when the catalog lacks one."""
        self._change({str(item_id): None for item_id in item_ids})

    def _change(self, change: Change) -> None:
        with self._lock:
            if self._journal is None:
                self._check(change)
                self._apply(change)
                return
            with self._journal.writing():  # no other process writes until ours is there
                self._apply(self._journal.news())
                self._check(change)
                self._journal.append(change)
                self._apply(self._journal.news())

    def _read(self, record: Mapping[str, Any], here: str) -> CatalogItem:
        if not isinstance(record, Mapping):
            raise UserError(f'{here}: write {{"item_id": ..., "title": ..., "year": ...}}')
        item_id, title, year = record.get("item_id"), record.get("title"), record.get("year")
        if isinstance(item_id, bool) or not isinstance(item_id, str | int) or not str(item_id).strip():
            raise UserError(f"{here}: item_id is {item_id!r:.40}; give a text or a number")
        if not isinstance(title, str) or not title.strip() or "\n" in title or self._delimiter in title:
            raise UserError(f"{here}: the title is {title!r:.80}; write a text of one line")
        display = record.get("display")
        if isinstance(display, bool) or not isinstance(display, str | int | None) or "\n" in str(display):
            raise UserError(f"{here}: display is {display!r:.80}; write a text of one line")
        number = parse_year(year)
        if self.dated and (number is None or not OLDEST_YEAR <= number <= NEWEST_YEAR):
            raise UserError(f"{here}: the year is {year!r:.20}; write one from {OLDEST_YEAR} to {NEWEST_YEAR}")
        if not self.dated and year not in (None, ""):
            raise UserError(f"{here}: it has a year, but the catalog has none; leave it out")
        item = CatalogItem(str(item_id).strip(), shown_title(title.strip(), display), number if self.dated else None)
        again = parse_item(item.line, self.dated)
        if again is None or normalise(again.title) != normalise(item.title):
            raise UserError(f"{here}: {item.line!r} is read as {again.title if again else None!r}; change the title")
        return item

    def _check(self, change: Change) -> None:
        """Raises UserError for a removal of what is not there, and for an item that has another's line."""
        snapshot = self._snapshot
        for item_id, record in change.items():
            if record is None and item_id not in snapshot.number_of:
                raise UserError(f"item_id {item_id!r}: the catalog has no such item")
        if not set(snapshot.number_of) - {item_id for item_id, record in change.items() if record is None}:
            raise UserError("the last item of the catalog cannot be removed")
        if taken := self._taken_lines(change):
            item_id, other = next(iter(taken.items()))
            raise UserError(
                f"item_id {item_id!r}: its line in a list is that of item {other!r}; give it another title or year, or "
                "a `display` that tells them apart"
            )

    def _taken_lines(self, change: Change) -> dict[str, str]:
        """The items of a change that have the line of another, and that other's id."""
        items, owner, taken = self._snapshot.items, dict[str, str](), dict[str, str]()
        for item_id, record in change.items():
            if record is None:
                continue
            item = CatalogItem(item_id, **record)
            others = (items[n] for n in self._by_title.get(normalise(item.title), ()) if n in items)
            other = next((o.item_id for o in others if o.year == item.year and o.item_id not in change), item_id)
            other = owner.setdefault(normalise(item.line), other)
            if other != item_id:
                taken[item_id] = other
        return taken

    def _apply(self, change: Change) -> None:
        """Make the snapshot with this change. An item that has another's line by now is left out, with a problem."""
        if not change:
            return
        before = self._snapshot
        for item_id, other in self._taken_lines(change).items():
            self.problems.append(f"item_id {item_id!r} was added and has the line of item {other!r}: left out")
            change = {key: record for key, record in change.items() if key != item_id}
        items = {number: item for number, item in before.items.items() if item.item_id not in change}
        added = [CatalogItem(item_id, **record) for item_id, record in change.items() if record is not None]
        if added:
            self._lines = join_lines(self._lines, self._encode(added))
            for item in added:
                items[self._num_rows] = item
                self._index(item.title, self._num_rows)
                self._num_rows += 1
        self._snapshot = self._make_snapshot(before.number + 1, items)

    def _encode(self, items: Sequence[CatalogItem]) -> CatalogTrie:
        """Their lines, numbered from the next row on."""
        beside = next(iter(self._snapshot.items.values()), items[0])  # a list has its lines in a row: checked with it
        inner, last = encode_lines(self._tokenizer, [beside.line, *(item.line for item in items)], self._delimiter)
        eos = self._lines.eos_token_id
        sequences = inner[1:] + [[*tokens, eos] for tokens in last[1:]]
        rows = np.arange(self._num_rows, self._num_rows + len(items), dtype=np.int32)
        return CatalogTrie(
            "",
            np.concatenate([np.array(tokens, np.int32) for tokens in sequences]),
            np.cumsum([len(tokens) for tokens in sequences], dtype=np.int64),
            rows,
            rows,
            np.array([], np.int32),
            eos,
        )

    def _make_snapshot(self, number: int, items: dict[int, CatalogItem]) -> Snapshot:
        lines = select_lines(self._lines, np.isin(self._lines.item_W, list(items)))
        _ = lines.trie  # built here, not in a request
        return Snapshot(number, items, {item.item_id: n for n, item in items.items()}, TrieFile(lines, self._folder))

    def _index(self, title: str, number: int) -> None:
        for key in (normalise(title), f"\0{fold(title)}"):
            numbers = self._by_title.setdefault(key, [])
            if number not in numbers:
                numbers.append(number)


def _base_items(catalog: Catalog, first_rows: Sequence[int]) -> dict[int, CatalogItem]:
    """Of each item its first row. Raises UserError when the number of a row without an id is another row's id."""
    ids = catalog.item_ids or [None] * len(catalog)
    items = {}
    row_of: dict[str, int] = {}
    for row, (title, year, given) in enumerate(zip(catalog.titles, catalog.years, ids, strict=True)):
        if year is None or first_rows[row] != row:
            continue
        item_id = str(row if given is None else given)
        if (other := row_of.setdefault(item_id, row)) != row:
            raise UserError(f"catalog rows {other} and {row}: both have the item_id {item_id!r}; give every row an id")
        items[row] = CatalogItem(item_id, title, year if catalog.dated else None)
    return items
