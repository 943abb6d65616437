"""The served catalog: items by id and by title, added and removed while lists are written.

Every state of the catalog is a `Snapshot`, which never changes: a request keeps the one it began with. Tokens of lines
are made once; a change of one item makes the trie of all lines anew from them, some 3 µs a line (measured, 20,000).
A snapshot holds nothing of items that were removed or replaced, so memory does not grow with the number of changes.
"""

import contextlib
import copy
import logging
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from convrec.base.errors import UserError
from convrec.data.chat import special_tokens
from convrec.data.tokenizer import check_text
from convrec.features.constrained.catalog_trie import CatalogTrie, catalog_trie, join_lines, select_lines, trie_of_lines
from convrec.features.constrained.lines import encode_lines
from convrec.inference.served_catalog.columns import ITEM, check_columns, read_columns
from convrec.inference.served_catalog.item_record import RecordReader
from convrec.inference.served_catalog.journal import Journal, StateUnreadable
from convrec.inference.served_catalog.mentions import load_mentions
from convrec.inference.served_catalog.snapshot import (
    LINE,
    CatalogItem,
    Snapshot,
    Title,
    TrieFile,
    add_names,
    titled,
    without,
)
from convrec.lists.settings import ListSettings, make_matcher
from convrec.titles.catalog import Catalog, load_catalog, tell_problems
from convrec.titles.forms import normalise
from convrec.titles.item import format_item, parse_item

FEW_BYTES = 64 << 10  # of changes: some hundred items, which are applied within a moment
WAIT_SECONDS = 0.3  # for another thread that applies changes
ALLOWED_KEPT = 16  # tries of a request's `allow`, which often comes again
Changes: TypeAlias = dict[str, CatalogItem | None]  # by item_id; None: it is removed


class ServedCatalog:
    """Safe to use from several threads. problems: what was left out, a sentence each."""

    def __init__(
        self,
        file: Path,
        tokenizer: Any,
        lists: ListSettings,
        folder: Path,
        state: Path | None = None,
        *,
        max_items: int,
        max_tokens: int,
        questions: Sequence[str] = (),
    ) -> None:
        """folder: for tries, the process's own. state: the folder that changes are kept in; None: they are lost.
        max_items: of a list; fewer where the file's longest lines take more than `max_tokens`, those of a list.
        questions: what a turn may be in place of a list.

        Raises UserError for a catalog, tokenizer or state that cannot be used.
        """
        self._tokenizer = copy.deepcopy(tokenizer)  # encoding lines sets its truncation, which other threads may use
        self._special = frozenset(tokenizer.convert_tokens_to_ids(special_tokens(tokenizer)))
        self._delimiter = lists.delimiter
        self._tolerance = lists.year_tolerance
        self._folder = folder
        base = load_catalog(file)
        check_text(f"model {tokenizer.name_or_path}", tokenizer, base.titles)
        self.dated = base.dated
        self.problems = list(base.problems)
        self._has_ids = base.item_ids is not None
        columns = read_columns(file, base)
        self._mentions = load_mentions(file)
        self.columns: pa.Schema = columns.schema
        self._reader = RecordReader(self.dated, self._delimiter, self.columns)
        matcher = make_matcher(base, lists)
        lines, _ = catalog_trie(file, matcher, tokenizer, lists.delimiter, folder, questions=questions)
        self.max_tokens = max_tokens
        self.max_items = lines.most_items(max_items, max_tokens)
        if 0 < self.max_items < max_items:  # a tenth stays free, for longer titles that are put later
            self.max_items = max(1, lines.most_items(max_items, max_tokens * 9 // 10))
        if not self.max_items:
            raise UserError(
                f"{file}: a line can take {lines.longest_list(1)} tokens, but the model's context leaves {max_tokens} "
                "for a list: leave such titles out"
            )
        self._next_number = len(base)
        self._lock = threading.RLock()
        items = _base_items(base, matcher.index.items, columns)
        written = set(lines.item_W.tolist())
        self.problems += [
            f"{item.line!r} is read as another item or as none" for n, item in items.items() if n not in written
        ]
        tell_problems(file, self.problems)
        items = {number: item for number, item in items.items() if number in written}
        named: dict[str, tuple[int, ...]] = {}
        rows = set(lines.row_W.tolist())
        for row, number in enumerate(matcher.index.items):
            if number in items:
                title = base.titles[row]
                year = base.years[row]
                assert year is not None
                line = format_item(title, year) if row in rows else None
                aliases = base.aliases[row] if base.aliases else ()
                add_names(named, number, (title, base.clean_title(row), *aliases), line)
        self._snapshot = self._make_snapshot(items, named, lines)
        self._journal = Journal(state, file, self._has_ids, self.dated) if state else None
        if self._journal:
            with self._lock:
                self._take_news(self._journal)

    # ---- reading

    @property
    def snapshot(self) -> Snapshot:
        """The catalog now, with what other processes of the same state have changed."""
        if self._journal and self._journal.has_news():
            with self._lock:
                self._take_news(self._journal)
        return self._snapshot

    def at_once(self) -> tuple[Snapshot, frozenset[str]]:
        """The catalog without a long wait, and the ids of items with changes that it does not have yet."""
        journal = self._journal
        if not journal or not journal.has_news():
            return self._snapshot, frozenset()
        if journal.news_bytes() <= FEW_BYTES and self._lock.acquire(timeout=WAIT_SECONDS):
            try:
                self._take_news(journal)
            finally:
                self._lock.release()
            return self._snapshot, frozenset()
        news, _ = journal.news()
        snapshot = self._snapshot  # read after the news: what is applied in between must not be missed
        return snapshot, frozenset(item_id for item_id, record in news.items() if record != snapshot.record(item_id))

    @property
    def latest(self) -> Snapshot:
        """The catalog as this process knows it, at once: changes of others may be there that it has not read yet."""
        return self._snapshot

    def __len__(self) -> int:
        return len(self.snapshot.items)

    def __iter__(self) -> Iterator[CatalogItem]:
        return iter(self.snapshot.items.values())

    def find(self, name: str | int, snapshot: Snapshot) -> list[int]:
        """The numbers of the items that an id, `Title (Year)` or a title alone, of any year, stands for; [] for none.

        A text that is an item's id is that item, whatever titles there are. A number is the item of that id and nothing
        else (300 may have been removed, and 300 is a title). Where the catalog has no ids, a number is that row, and a
        text is a row's number (as the answers have it) only where it is no title.
        """
        if isinstance(name, Title):
            item = parse_item(name, self.dated)
            return titled(name, snapshot) or (titled(item.title, snapshot) if item else [])
        number = snapshot.number_by_id.get(str(name))
        by_id = [] if number is None else [number]
        if not isinstance(name, str) or (self._has_ids and by_id):
            return by_id
        return self._find_titled(str(name), snapshot) or by_id

    def _find_titled(self, text: str, snapshot: Snapshot) -> list[int]:
        item = parse_item(text, self.dated)
        if item is None or not self.dated:
            return titled(item.title if item else text, snapshot)
        apart = {n: abs(snapshot.items[n].year - item.year) for n in titled(item.title, snapshot)}  # type: ignore[operator]
        nearest = min(apart.values(), default=self._tolerance + 1)
        found = [n for n, years in apart.items() if years == nearest <= self._tolerance]
        return found or titled(text, snapshot)  # `Best of [1999]` is a title that looks like one with its year

    # ---- changing

    def put(self, records: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
        """Add items, or replace those with the same item_id: {"item_id", "title", "year", "display"} and the catalog's
        further columns; what is left out has no value.

        All or, with a UserError that names the item, none. Returns the columns that had a value and have none now, by
        item_id.
        """
        changes = self._read_all(records)
        blanked: dict[str, list[str]] = {}

        def compute_changes(there: Snapshot) -> Mapping[str, CatalogItem | None]:
            for item_id, item in changes.items():
                if names := _blanked(there.get(item_id), item):
                    blanked[item_id] = names
            return changes

        self._change(compute_changes)
        return blanked

    def patch(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Change single fields of items that are there: {"item_id"} and what changes; None takes a value away.

        All or, with a UserError that names the item, none.
        """

        def compute_changes(there: Snapshot) -> Mapping[str, CatalogItem | None]:
            whole = [self._with_fields(record, there, f"items[{index}]") for index, record in enumerate(records)]
            return self._read_all(whole)

        self._change(compute_changes)

    def delete(self, item_ids: Sequence[str | int]) -> list[str]:
        """Remove items. Returns the ids that the catalog lacks. Raises UserError, and removes none, where no item would
        be left."""
        removed = dict.fromkeys((str(item_id).strip() for item_id in item_ids), None)  # as `put` strips them
        absent: list[str] = []

        def compute_changes(there: Snapshot) -> Changes:
            absent.extend(item_id for item_id in removed if not there.get(item_id))
            return {**removed}

        self._change(compute_changes)
        return absent

    def _read_all(self, records: Sequence[Mapping[str, Any]]) -> dict[str, CatalogItem]:
        items: dict[str, CatalogItem] = {}
        for index, record in enumerate(records):
            item = self._reader.read(record, f"items[{index}]")
            check_columns((name for name in record if name not in ITEM), self.columns, f"items[{index}]")
            if item.item_id in items:
                raise UserError(f"items[{index}]: item_id {item.item_id!r} is there twice")
            items[item.item_id] = item
        return items

    def _with_fields(self, record: Mapping[str, Any], there: Snapshot, here: str) -> dict[str, Any]:
        """The whole record of an item, with these fields changed."""
        if not isinstance(record, Mapping):
            raise UserError(f'{here}: write {{"item_id": ..., and the fields to change}}')
        item_id = str(record.get("item_id")).strip()
        item = there.get(item_id)
        if item is None:
            raise UserError(f"{here}: item_id {item_id!r:.80} is not in the catalog; PUT adds an item")
        return {**item.record, **record, "item_id": item_id}

    def _change(self, compute_changes: Callable[[Snapshot], Mapping[str, CatalogItem | None]]) -> None:
        """Make the changes that a function gives, of the catalog as it is when nobody else can change it."""
        with self._lock, self._journal.writing() if self._journal else contextlib.nullcontext():
            if self._journal:  # no other process writes until ours is there
                self._take_news(self._journal)
            there = self._snapshot
            changes = {item_id: item for item_id, item in compute_changes(there).items() if item != there.get(item_id)}
            if not changes:
                return
            if all(item is None for item in changes.values()) and not there.number_by_id.keys() - changes.keys():
                raise UserError("the last item of the catalog cannot be removed")
            changed, left_out = self._changed(changes)
            if left_out:
                raise UserError(next(iter(left_out.values())))
            if self._journal:  # the last that can fail: what is in the journal, every process must be able to read
                self._journal.append({item_id: item and item.record for item_id, item in changes.items()})
            self._snapshot = changed
        if self._journal and self._journal.needs_compaction():
            threading.Thread(target=_compact, args=(self._journal,), name="convrec-journal", daemon=True).start()

    def _take_news(self, journal: Journal) -> None:
        """Take what the journal has. An item that lists cannot write any more is left out, with a problem."""
        news, position = journal.news()
        changes: Changes = {}
        left_out: dict[str, str] = {}
        for item_id, record in news.items():
            if record == self._snapshot.record(item_id):  # a compacted file has what is known already, too
                continue
            try:
                one = {**(record or {}), "item_id": item_id}
                changes[item_id] = None if record is None else self._reader.read(one, f"item_id {item_id!r}")
            except UserError as error:
                left_out[item_id] = str(error)
        if changes:
            self._snapshot, cannot_be_added = self._changed(changes)
            left_out |= cannot_be_added
        journal.reached(position)  # not before: a change whose application fails is taken the next time
        problems = [f"left out: {reason}" for reason in left_out.values()]
        tell_problems(journal.path, problems)
        self.problems += problems

    def _changed(self, changes: Changes) -> tuple[Snapshot, dict[str, str]]:
        """The catalog with these; of the items that cannot be added, and are as they were, id -> a sentence."""
        before = self._snapshot
        same_line = {
            item_id: item for item_id, item in changes.items() if item and item.has_same_line(before.get(item_id))
        }
        if same_line:
            before = before.with_columns(same_line)
            changes = {item_id: item for item_id, item in changes.items() if item_id not in same_line}
        if not changes:
            return before, {}
        added = [item for item in changes.values() if item is not None]
        lines = before.trie.trie
        numbers = range(0)
        left_out = dict[str, str]()
        if added:
            numbers = range(self._next_number, self._next_number + len(added))
            self._next_number = numbers.stop
            new, left_out = self._encode(added, numbers)
            lines = join_lines(lines, new)
        of_added = {number: item.item_id for number, item in zip(numbers, added, strict=True)}
        while refused := (
            self._taken_lines(added, changes.keys() - left_out.keys())
            or self._too_long(lines, of_added, changes.keys() - left_out.keys())
        ):
            left_out |= refused  # one that stays as it was keeps its line from others, and its length
        gone = changes.keys() - left_out.keys()
        items = {number: item for number, item in before.items.items() if item.item_id not in gone}
        named = without(before.named, before.items.keys() - items.keys())
        for number, item in zip(numbers, added, strict=True):
            if item.item_id not in left_out:
                items[number] = item
                add_names(named, number, (item.title, item.clean_title), item.line)
        return self._make_snapshot(items, named, lines), left_out

    def _taken_lines(self, added: Sequence[CatalogItem], changing: Set[str]) -> dict[str, str]:
        """Those of the items that have the line of another: id -> a sentence. changing: the ids that change at all."""
        items = self._snapshot.items
        named = self._snapshot.named
        owner = dict[str, str]()
        taken = dict[str, str]()
        for item in added:
            if item.item_id not in changing:
                continue
            line = normalise(item.line)
            others = (items[n].item_id for n in named.get(LINE + line, ()))
            other = owner.setdefault(line, next((other for other in others if other not in changing), item.item_id))
            if other != item.item_id:
                taken[item.item_id] = (
                    f"item_id {item.item_id!r}: its line in a list is that of item {other!r}; give it another title or "
                    "year, or a `display` that tells them apart"
                )
        return taken

    def _too_long(self, lines: CatalogTrie, of_added: Mapping[int, str], changing: Set[str]) -> dict[str, str]:
        """The added items of the longest lines, as many as leave lists no room: id -> a sentence.

        lines: of all items, also of those that go. of_added: number -> id. changing: the ids that change at all.
        """
        going = [number for number, item in self._snapshot.items.items() if item.item_id in changing]
        going += [number for number, item_id in of_added.items() if item_id not in changing]
        kept = select_lines(lines, ~np.isin(lines.item_W, going))
        added_W = np.isin(kept.item_W, list(of_added))
        tokens_W = kept.lengths_of_forms()[0]

        def have_no_room(tokens: int) -> bool:
            fit = select_lines(kept, ~(added_W & (tokens_W > tokens)))
            return fit.longest_list(self.max_items) > self.max_tokens

        lengths = np.unique(tokens_W[added_W]).tolist()
        too_long_W = added_W & np.isin(tokens_W, lengths[bisect_left(lengths, True, key=have_no_room) :])
        rest = f"a list of {self.max_items} with it may not fit into the {self.max_tokens} tokens that prompts leave; "
        rest += "shorten the title, or lower max_items"
        too_long = zip(map(of_added.__getitem__, kept.item_W[too_long_W].tolist()), tokens_W[too_long_W], strict=True)
        return {name: f"item_id {name!r}: its line takes {tokens} tokens; {rest}" for name, tokens in too_long}

    def _encode(self, items: Sequence[CatalogItem], numbers: range) -> tuple[CatalogTrie, dict[str, str]]:
        """Their lines under these numbers; of items whose line has a special token, which no list can write and where
        lists would end, id -> a sentence."""
        beside = next(iter(self._snapshot.items.values()), items[0])  # a list has its lines in a row: checked with it
        encoded = encode_lines(self._tokenizer, [beside.line, *(item.line for item in items)], self._delimiter)
        tokens = encoded.select(range(1, len(items) + 1))
        eos = self._snapshot.trie.trie.eos_token_id
        lines = trie_of_lines(tokens, numbers, numbers, (), eos)
        return lines, {
            item.item_id: f"item_id {item.item_id!r}: {item.line!r} has a special token of the model; change the title"
            for item, line_tokens in zip(items, tokens.inner, strict=True)
            if not self._special.isdisjoint(line_tokens)
        }

    def _make_snapshot(
        self, items: dict[int, CatalogItem], named: Mapping[str, tuple[int, ...]], lines: CatalogTrie
    ) -> Snapshot:
        lines = select_lines(lines, np.isin(lines.item_W, list(items)))
        _ = lines.trie  # built here, not in a request
        number_by_id = {item.item_id: n for n, item in items.items()}

        @lru_cache(ALLOWED_KEPT)
        def trie_with(numbers: frozenset[int], folder: Path = self._folder) -> TrieFile:  # without self: no cycle
            return TrieFile(select_lines(lines, np.isin(lines.item_W, list(numbers))), folder)

        return Snapshot(items, number_by_id, named, TrieFile(lines, self._folder), trie_with, self._mentions)


def _blanked(before: CatalogItem | None, after: CatalogItem) -> list[str]:
    """Names of the columns, `display` among them, that had a value and have none now."""
    if before is None:
        return []
    names = [name for name, value in before.columns.items() if value is not None and after.columns[name] is None]
    return ["display", *names] if before.display and not after.display else names


def _compact(journal: Journal) -> None:
    try:
        journal.compact()
    except (OSError, StateUnreadable) as error:  # the file stays as it was; the next change tries again
        logging.getLogger(__name__).warning("%s: it could not be compacted (%s)", journal.path, error)


def _base_items(catalog: Catalog, first_rows: Sequence[int], columns: pa.Table) -> dict[int, CatalogItem]:
    """Of each item its first row. Raises UserError when the number of a row without an id is another row's id."""
    ids = catalog.item_ids or [None] * len(catalog)
    items = {}
    row_by_id: dict[str, int] = {}
    further = columns.to_pylist() if columns.num_columns else [{}] * len(catalog)
    for row, (year, given) in enumerate(zip(catalog.years, ids, strict=True)):
        if year is None or first_rows[row] != row:
            continue
        item_id = str(row if given is None else given)
        if (other := row_by_id.setdefault(item_id, row)) != row:
            raise UserError(f"catalog rows {other} and {row}: both have the item_id {item_id!r}; give every row an id")
        display = catalog.displays[row] if catalog.displays else None
        shown = None if display is None else str(display).strip() or None
        year = year if catalog.dated else None
        items[row] = CatalogItem(item_id, catalog.clean_title(row), year, shown, further[row])
    return items
