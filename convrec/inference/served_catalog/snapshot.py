"""A state of the served catalog: its items by id and by title, which never changes."""

import itertools
import weakref
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from convrec.features.constrained.catalog_trie import CatalogTrie, save_catalog_trie
from convrec.inference.served_catalog.columns import YEAR
from convrec.inference.served_catalog.mentions import COLUMN, Mentions
from convrec.titles.catalog import shown_title
from convrec.titles.forms import fold, normalise
from convrec.titles.item import NO_YEAR, format_item

# mark keys of Snapshot.named; no title's key begins with them
FOLDED = "\0"
LINE = "\n"


class Title(str):
    """A title alone, of any year, also where it is the id of an item or the number of a row."""


@dataclass(frozen=True)
class CatalogItem:
    """item_id: the catalog's, as text; the number of its row where it has none. clean_title: what people call it.
    display: what lists show beside it, for it to differ from others of that title; None for nothing. columns: the
    catalog's further ones, None where the item has no value."""

    item_id: str
    clean_title: str
    year: int | None
    display: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def title(self) -> str:
        """As lists write it."""
        return shown_title(self.clean_title, self.display)

    @property
    def line(self) -> str:
        return format_item(self.title, NO_YEAR if self.year is None else self.year)

    def has_same_line(self, other: "CatalogItem | None") -> bool:
        """Whether the two differ in columns alone."""
        if other is None:
            return False
        names = (self.item_id, self.clean_title, self.year, self.display)
        return names == (other.item_id, other.clean_title, other.year, other.display)

    @property
    def record(self) -> dict[str, Any]:
        """As the journal has it under its id."""
        record = {**self.columns, "title": self.clean_title, "display": self.display}
        return {name: value for name, value in record.items() if value is not None} | {"year": self.year}


class TrieFile:
    """A trie and its file in a folder, for the engine's process. The file goes with the last request or snapshot that
    refers to this object."""

    _numbers = itertools.count()

    def __init__(self, trie: CatalogTrie, folder: Path):
        self.trie = trie
        self.path = folder / f"trie-{next(self._numbers)}.npz"
        self.longest_list = lru_cache(trie.longest_list)  # milliseconds, for each request
        save_catalog_trie(self.path, trie)
        weakref.finalize(self, self.path.unlink, missing_ok=True)


@dataclass(frozen=True)
class Snapshot:
    """The catalog between two changes. items: those that can be recommended, by their number in the trie.

    named: the numbers of the items that have a title, or FOLDED and a folded title, or LINE and a line of a list.
    trie_with: the trie of these items alone. mentions: None where no file has them.
    """

    items: Mapping[int, CatalogItem]
    number_by_id: Mapping[str, int]  # item_id -> number
    named: Mapping[str, tuple[int, ...]]
    trie: TrieFile
    trie_with: Callable[[frozenset[int]], TrieFile]
    mentions: Mentions | None
    _arrays: dict[str, pa.Array] = field(default_factory=dict)

    def get(self, item_id: str) -> CatalogItem | None:
        number = self.number_by_id.get(item_id)
        return None if number is None else self.items[number]

    def record(self, item_id: str) -> dict[str, Any] | None:
        """As the journal has it; None for an item that is not there."""
        item = self.get(item_id)
        return None if item is None else item.record

    def with_columns(self, items: Mapping[str, CatalogItem]) -> "Snapshot":
        """The catalog with these in place of the items of the same ids, which have the same lines: no trie is made."""
        changed = {self.number_by_id[item_id]: item for item_id, item in items.items()}
        return replace(self, items={**self.items, **changed}, _arrays={})

    def page(self, after: str, size: int) -> list[CatalogItem]:
        """Items in the order of their ids, those behind `after`, which need not be there any more."""
        start = bisect_right(self._ids, after)
        return [self.items[self.number_by_id[item_id]] for item_id in self._ids[start : start + size]]

    def get_values(self, column: str, kind: pa.DataType) -> pa.Array:
        """Of all items, in their order; `year` is a column here. Made once."""
        if column not in self._arrays:
            values = (item.year if column == YEAR else item.columns[column] for item in self.items.values())
            self._arrays[column] = pa.array(values, kind)
        return self._arrays[column]

    def warm(self) -> None:
        """Make what is made once for all requests."""
        _ = self.popular, self._ids

    def times(self, number: int) -> int:
        """How often an item is wanted; 0 where nobody knows."""
        item = self.items[number]
        return int(item.columns.get(COLUMN) or 0) if self.mentions is None else self.mentions.get((item.line, None), 0)

    @cached_property
    def popular(self) -> list[int]:
        """All items, what is wanted most often first; of as many times, what the catalog has first."""
        return sorted(self.items, key=lambda number: (-self.times(number), number))

    @cached_property
    def _ids(self) -> list[str]:
        return sorted(self.number_by_id)


def titled(title: str, snapshot: Snapshot) -> list[int]:
    return list(snapshot.named.get(normalise(title)) or snapshot.named.get(FOLDED + fold(title)) or ())


def add_names(named: dict[str, tuple[int, ...]], number: int, titles: Sequence[str], line: str | None) -> None:
    """line: None where no list has it."""
    keys = {key for title in titles for key in (normalise(title), FOLDED + fold(title))}
    for key in sorted(keys | (set() if line is None else {LINE + normalise(line)})):
        if number not in (numbers := named.get(key, ())):
            named[key] = (*numbers, number)


def without(named: Mapping[str, tuple[int, ...]], gone: Set[int]) -> dict[str, tuple[int, ...]]:
    left = {
        key: numbers if gone.isdisjoint(numbers) else tuple(n for n in numbers if n not in gone)
        for key, numbers in named.items()
    }
    return {key: numbers for key, numbers in left.items() if numbers}
