"""An immutable state of the served catalog: its items by id and by title."""

import itertools
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from convrec.features.constrained.catalog_trie import CatalogTrie, save_catalog_trie
from convrec.inference.served_catalog.columns import YEAR
from convrec.inference.served_catalog.mentions import COLUMN, Mentions
from convrec.titles.catalog import add_display
from convrec.titles.forms import fold, normalise
from convrec.titles.item import NO_YEAR, format_item

# The keys of Snapshot.named begin with these, unless they are titles: no title begins with them.
FOLDED = "\0"
LINE = "\n"


class Title(str):
    """A title of any year, even if the text is also an item's id or a row's number."""


@dataclass(frozen=True)
class CatalogItem:
    """An item of the served catalog.

    Attributes:
        item_id: the catalog's id as text; the row number if it has none.
        clean_title: the title without `display`.
        year: None if items have no years.
        display: the addition in lists that tells the item from others with that title; None for none.
        columns: the additional columns; None for a missing value.
    """

    item_id: str
    clean_title: str
    year: int | None
    display: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def title(self) -> str:
        """The title as lists write it."""
        return add_display(self.clean_title, self.display)

    @property
    def line(self) -> str:
        """The item's line in a list."""
        return format_item(self.title, NO_YEAR if self.year is None else self.year)

    def has_same_line(self, other: "CatalogItem | None") -> bool:
        """Return whether two items differ at most in their columns."""
        if other is None:
            return False
        names = (self.item_id, self.clean_title, self.year, self.display)
        return names == (other.item_id, other.clean_title, other.year, other.display)

    @property
    def record(self) -> dict[str, Any]:
        """The item's record in the journal."""
        record = {**self.columns, "title": self.clean_title, "display": self.display}
        return {name: value for name, value in record.items() if value is not None} | {"year": self.year}


class TrieFile:
    """A trie and its file, which the engine's process reads.

    The file is deleted with the last request or snapshot that refers to this object.
    """

    _numbers = itertools.count()

    def __init__(self, trie: CatalogTrie, folder: Path):
        self.trie = trie
        self.path = folder / f"trie-{next(self._numbers)}.npz"
        self.longest_list = lru_cache(trie.longest_list)  # it takes milliseconds, and every request needs it
        save_catalog_trie(self.path, trie)
        weakref.finalize(self, self.path.unlink, missing_ok=True)


@dataclass(frozen=True)
class Snapshot:
    """The catalog between two changes.

    Attributes:
        items: the items that can be recommended, by their number in the trie.
        number_by_id: item_id -> number.
        named: a title, FOLDED + folded title, or LINE + line of a list -> the numbers of its items.
        trie: the lines of all items.
        select_trie: returns the trie of some items.
        mentions: counts from training data; None without a file.
    """

    items: Mapping[int, CatalogItem]
    number_by_id: Mapping[str, int]
    named: Mapping[str, tuple[int, ...]]
    trie: TrieFile
    select_trie: Callable[[frozenset[int]], TrieFile]
    mentions: Mentions | None
    _arrays: dict[str, pa.Array] = field(default_factory=dict)

    def get(self, item_id: str) -> CatalogItem | None:
        """Return an item, or None if the catalog lacks it."""
        number = self.number_by_id.get(item_id)
        return None if number is None else self.items[number]

    def record(self, item_id: str) -> dict[str, Any] | None:
        """Return an item's record in the journal, or None if the catalog lacks it."""
        item = self.get(item_id)
        return None if item is None else item.record

    def replace_columns(self, items: Mapping[str, CatalogItem]) -> "Snapshot":
        """Return the catalog with other columns for some items, by id. Their lines stay the same, as does the trie."""
        changed = {self.number_by_id[item_id]: item for item_id, item in items.items()}
        return replace(self, items={**self.items, **changed}, _arrays={})

    def page(self, after: str, size: int) -> list[CatalogItem]:
        """Return a page of items, in the order of their ids as texts.

        Args:
            after: the last id of the previous page, which may be gone meanwhile; "" for the first page.
            size: the most items of a page.

        Returns:
            The items; fewer than `size` at the end, [] after it.
        """
        start = bisect_right(self._ids, after)
        return [self.items[self.number_by_id[item_id]] for item_id in self._ids[start : start + size]]

    def get_values(self, column: str, kind: pa.DataType) -> pa.Array:
        """Return the values of a column for all items, in the order of `items`. They are computed once per snapshot.

        Args:
            column: one of the additional columns, or `year`.
            kind: the column's type, which must be the same in every call.
        """
        if column not in self._arrays:
            values = (item.year if column == YEAR else item.columns[column] for item in self.items.values())
            self._arrays[column] = pa.array(values, kind)
        return self._arrays[column]

    def warm(self) -> None:
        """Compute the data that all requests share."""
        _ = self.popular_M, self._ids

    def count_mentions(self, number: int) -> int:
        """Return how often an item is relevant in the training data; 0 if unknown."""
        item = self.items[number]
        return int(item.columns.get(COLUMN) or 0) if self.mentions is None else self.mentions.get((item.line, None), 0)

    @cached_property
    def popular_M(self) -> npt.NDArray[np.int64]:
        """All items by how often they are relevant in the training data, most often first; ties in catalog order."""
        numbers_M = np.array([*self.items], np.int64)
        mentions_M = np.array([self.count_mentions(number) for number in self.items], np.int64)
        return numbers_M[np.lexsort((numbers_M, -mentions_M))]

    @cached_property
    def _ids(self) -> list[str]:
        return sorted(self.number_by_id)


def find_by_title(title: str, snapshot: Snapshot) -> list[int]:
    """Find the items with a title, of any year.

    Args:
        title: any of an item's titles, in any spelling that `normalise` or `fold` makes equal. An exact title is found
            before a folded one.
        snapshot: the catalog.

    Returns:
        The items' numbers; [] for none.
    """
    return list(snapshot.named.get(normalise(title)) or snapshot.named.get(FOLDED + fold(title)) or ())


class ItemSpellings(NamedTuple):
    """All spellings of an item.

    Attributes:
        number: of the item.
        titles: its titles and aliases.
        lines: the lines with which lists write it.
    """

    number: int
    titles: Sequence[str]
    lines: Sequence[str]


def add_names(named: dict[str, tuple[int, ...]], items: Iterable[ItemSpellings]) -> None:
    """Add the names of new items to `Snapshot.named`, each item once.

    Items that share a title are collected first: a tuple that grew item by item would be copied for each of them.
    """
    shared: dict[str, list[int]] = {}
    for item in items:
        keys = {key for title in item.titles for key in (normalise(title), FOLDED + fold(title))}
        keys.update(LINE + normalise(line) for line in item.lines)
        for key in keys:
            if key in named:
                shared.setdefault(key, []).append(item.number)
            else:
                named[key] = (item.number,)
    for key, numbers in shared.items():
        named[key] = (*named[key], *numbers)


def drop_numbers(named: Mapping[str, tuple[int, ...]], dropped: Set[int]) -> dict[str, tuple[int, ...]]:
    """Return a copy of `Snapshot.named` without some items.

    Args:
        named: stays as it is, since older snapshots use it.
        dropped: numbers of the items. Names that only they had are left out.
    """
    remaining = {
        key: numbers if dropped.isdisjoint(numbers) else tuple(n for n in numbers if n not in dropped)
        for key, numbers in named.items()
    }
    return {key: numbers for key, numbers in remaining.items() if numbers}
