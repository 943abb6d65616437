"""The served catalog: items by id and by title, which can be added and removed while lists are written.

Every state of the catalog is an immutable `Snapshot`; a request keeps the one it began with. Lines are tokenized once.
After a change, the trie of all lines is rebuilt from their tokens, about 3 µs per line (measured with 20,000). A
snapshot holds nothing of removed or replaced items, so memory does not grow with the number of changes.
"""

import contextlib
import copy
import logging
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from convrec.base.errors import UserError
from convrec.data.chat import special_tokens
from convrec.data.tokenizer import check_text
from convrec.features.constrained.catalog_trie import (
    CatalogTrie,
    catalog_trie,
    join_lines,
    limit_cached_tries,
    make_trie,
    select_lines,
)
from convrec.features.constrained.lines import encode_lines
from convrec.inference.served_catalog.columns import ITEM, check_columns, read_columns
from convrec.inference.served_catalog.item_record import RecordReader
from convrec.inference.served_catalog.journal import Journal, StateUnreadable
from convrec.inference.served_catalog.mentions import load_mentions
from convrec.inference.served_catalog.snapshot import (
    LINE,
    CatalogItem,
    ItemSpellings,
    Snapshot,
    Title,
    TrieFile,
    add_names,
    drop_numbers,
    find_by_title,
)
from convrec.lists.settings import ListSettings, make_matcher
from convrec.titles.catalog import Catalog, load_catalog, print_problems
from convrec.titles.forms import normalise
from convrec.titles.item import format_item, parse_item

SMALL_CHANGE_BYTES = 64 << 10  # of changes: some hundred items, which are applied quickly
WAIT_SECONDS = 0.3  # for another thread that applies changes
MAX_CACHED_SELECTIONS = 16  # tries for `allow`, which is often the same in several requests
Changes: TypeAlias = dict[str, CatalogItem | None]  # by item_id; None removes the item


class ServedCatalog:
    """A catalog that can change while it is served. Thread-safe.

    Attributes:
        dated: whether items have years.
        columns: the additional columns.
        max_items: the largest list that fits in max_tokens.
        max_tokens: tokens of a list.
        problems: one sentence for each item that is left out.
    """

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
        """Load a catalog, and the changes in its state.

        Args:
            file: the catalog's file.
            tokenizer: the model's tokenizer.
            lists: the grammar of lists.
            folder: a folder of this process, for tries.
            state: the folder of the journal of changes; None to lose changes at the end.
            max_items: the largest list; lowered if the longest lines do not fit in max_tokens.
            max_tokens: tokens of a list.
            questions: the questions that a turn may ask instead of a list.

        Raises:
            UserError: the catalog, tokenizer or state cannot be used.
        """
        self._tokenizer = copy.deepcopy(tokenizer)  # encoding lines changes its truncation, which others may use
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
        if 0 < self.max_items < max_items:  # a tenth stays free for longer titles that are added later
            self.max_items = max(1, lines.most_items(max_items, max_tokens * 9 // 10))
        if not self.max_items:
            raise UserError(
                "catalog.line-too-long",
                f"{file}: a line can take {lines.longest_list(1)} tokens, but the model's context leaves {max_tokens} "
                "for a list. Remove such titles.",
            )
        self._next_number = len(base)
        self._lock = threading.RLock()
        items = _read_items(base, matcher.index.items, columns)
        listable = set(lines.item_W.tolist())
        self.problems += [
            f"{item.line!r} reads as another item or as none" for n, item in items.items() if n not in listable
        ]
        print_problems(file, self.problems)
        items = {number: item for number, item in items.items() if number in listable}
        named: dict[str, tuple[int, ...]] = {}
        add_names(named, _iter_spellings(base, items, matcher.index.rows, set(lines.row_W.tolist())))
        self._snapshot = self._make_snapshot(items, named, lines)
        self._journal = Journal(state, file, self._has_ids, self.dated) if state else None
        if self._journal:
            with self._lock:
                self._apply_news(self._journal)

    # ---- reading

    @property
    def snapshot(self) -> Snapshot:
        """The current catalog, with the changes of all processes that share the state."""
        if self._journal and self._journal.has_news():
            with self._lock:
                self._apply_news(self._journal)
        return self._snapshot

    def read_without_waiting(self) -> tuple[Snapshot, frozenset[str]]:
        """Return the catalog without a long wait, and the ids of items whose changes it does not have yet."""
        journal = self._journal
        if not journal or not journal.has_news():
            return self._snapshot, frozenset()
        if journal.count_unread_bytes() <= SMALL_CHANGE_BYTES and self._lock.acquire(timeout=WAIT_SECONDS):
            try:
                self._apply_news(journal)
            finally:
                self._lock.release()
            return self._snapshot, frozenset()
        news, _ = journal.read_news()
        snapshot = self._snapshot  # taken after reading the news, so that no change in between is missed
        return snapshot, frozenset(item_id for item_id, record in news.items() if record != snapshot.record(item_id))

    @property
    def latest(self) -> Snapshot:
        """The catalog as this process knows it, without reading new changes of other processes."""
        return self._snapshot

    def __len__(self) -> int:
        return len(self.snapshot.items)

    def __iter__(self) -> Iterator[CatalogItem]:
        return iter(self.snapshot.items.values())

    def find(self, name: str | int, snapshot: Snapshot) -> list[int]:
        """Find the items that an id, `Title (Year)` or a title of any year stands for.

        A text that is an item's id means that item, whatever titles there are. A number always means an id, never a
        title (item 300 may have been removed, and 300 is a film). If the catalog has no ids, a number means a row, and
        a text means a row number, as in lists, only if it is not a title.

        Returns:
            The items' numbers; [] for none.
        """
        if isinstance(name, Title):
            item = parse_item(name, self.dated)
            return find_by_title(name, snapshot) or (find_by_title(item.title, snapshot) if item else [])
        number = snapshot.number_by_id.get(str(name))
        by_id = [] if number is None else [number]
        if not isinstance(name, str) or (self._has_ids and by_id):
            return by_id
        return self._find_line(str(name), snapshot) or by_id

    def _find_line(self, text: str, snapshot: Snapshot) -> list[int]:
        item = parse_item(text, self.dated)
        if item is None or not self.dated:
            return find_by_title(item.title if item else text, snapshot)
        numbers = find_by_title(item.title, snapshot)
        years_apart = {n: abs(snapshot.items[n].year - item.year) for n in numbers}  # type: ignore[operator]
        nearest = min(years_apart.values(), default=self._tolerance + 1)
        matches = [n for n, years in years_apart.items() if years == nearest <= self._tolerance]
        return matches or find_by_title(text, snapshot)  # `Best of [1999]` is a title that ends like a year

    # ---- changing

    def put(self, records: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
        """Add items, or replace those with the same item_id: all of them, or none.

        Args:
            records: {"item_id", "title", "year", "display"} and the catalog's additional columns; an omitted column has
                no value.

        Returns:
            item_id -> the columns that had a value and have none now.

        Raises:
            UserError: an item is invalid; the message names it.
        """
        changes = self._read_all(records)
        blanked: dict[str, list[str]] = {}

        def compute_changes(before: Snapshot) -> Mapping[str, CatalogItem | None]:
            for item_id, item in changes.items():
                if names := _find_blanked_columns(before.get(item_id), item):
                    blanked[item_id] = names
            return changes

        self._change(compute_changes)
        return blanked

    def patch(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Change single fields of existing items: of all of them, or of none.

        Args:
            records: {"item_id"} and the changed fields; None removes a value.

        Raises:
            UserError: an item is missing or a field is invalid; the message names the item.
        """

        def compute_changes(before: Snapshot) -> Mapping[str, CatalogItem | None]:
            whole = [self._merge_fields(record, before, f"items[{index}]") for index, record in enumerate(records)]
            return self._read_all(whole)

        self._change(compute_changes)

    def delete(self, item_ids: Sequence[str | int]) -> list[str]:
        """Remove items: all of them, or none.

        Returns:
            The ids that the catalog lacks.

        Raises:
            UserError: no item would be left.
        """
        removed = dict.fromkeys((str(item_id).strip() for item_id in item_ids), None)  # stripped as `put` does
        absent: list[str] = []

        def compute_changes(before: Snapshot) -> Changes:
            absent.extend(item_id for item_id in removed if not before.get(item_id))
            return {**removed}

        self._change(compute_changes)
        return absent

    def _read_all(self, records: Sequence[Mapping[str, Any]]) -> dict[str, CatalogItem]:
        items: dict[str, CatalogItem] = {}
        for index, record in enumerate(records):
            item = self._reader.read(record, f"items[{index}]")
            check_columns((name for name in record if name not in ITEM), self.columns, f"items[{index}]")
            if item.item_id in items:
                raise UserError(
                    "changes.repeated-id", f"items[{index}]: item_id {item.item_id!r} occurs twice. Send it once."
                )
            items[item.item_id] = item
        return items

    def _merge_fields(self, record: Mapping[str, Any], before: Snapshot, here: str) -> dict[str, Any]:
        """Return the complete record of an item, with the given fields changed."""
        if not isinstance(record, Mapping):
            raise UserError("changes.invalid-patch", f'{here}: expected {{"item_id": ..., and the changed fields}}.')
        item_id = str(record.get("item_id")).strip()
        item = before.get(item_id)
        if item is None:
            raise UserError(
                "changes.unknown-id", f"{here}: item_id {item_id!r:.80} is not in the catalog. Use PUT to add an item."
            )
        return {**item.record, **record, "item_id": item_id}

    def _change(self, compute_changes: Callable[[Snapshot], Mapping[str, CatalogItem | None]]) -> None:
        """Compute changes from the current catalog while nobody else can change it, and apply them."""
        with self._lock, self._journal.lock() if self._journal else contextlib.nullcontext():
            if self._journal:  # no other process can write until ours is written
                self._apply_news(self._journal)
            before = self._snapshot
            computed = compute_changes(before)
            changes = {item_id: item for item_id, item in computed.items() if item != before.get(item_id)}
            if not changes:
                return
            if all(item is None for item in changes.values()) and not before.number_by_id.keys() - changes.keys():
                raise UserError("changes.last-item", "the last item of the catalog cannot be removed.")
            after, left_out = self._apply(changes)
            if left_out:
                raise UserError("changes.refused-item", next(iter(left_out.values())))
            if self._journal:  # the last step that can fail, since every process must be able to apply the journal
                self._journal.append({item_id: item and item.record for item_id, item in changes.items()})
            self._snapshot = after
        if self._journal and self._journal.needs_compaction():
            threading.Thread(target=_compact, args=(self._journal,), name="convrec-journal", daemon=True).start()

    def _apply_news(self, journal: Journal) -> None:
        """Apply new changes in the journal. An item that lists can no longer write is left out, with a problem."""
        news, position = journal.read_news()
        changes: Changes = {}
        left_out: dict[str, str] = {}
        for item_id, record in news.items():
            if record == self._snapshot.record(item_id):  # a compacted file also repeats known changes
                continue
            try:
                whole = {**(record or {}), "item_id": item_id}
                changes[item_id] = None if record is None else self._reader.read(whole, f"item_id {item_id!r}")
            except UserError as error:
                left_out[item_id] = str(error)
        if changes:
            self._snapshot, refused = self._apply(changes)
            left_out |= refused
        journal.mark_read(position)  # only now, so that changes that could not be applied are read again
        problems = [f"left out: {reason}" for reason in left_out.values()]
        print_problems(journal.path, problems)
        self.problems += problems

    def _apply(self, changes: Changes) -> tuple[Snapshot, dict[str, str]]:
        """Return the catalog after changes, and the items that cannot be added and stay as they were: id -> reason."""
        before = self._snapshot
        same_line = {
            item_id: item for item_id, item in changes.items() if item and item.has_same_line(before.get(item_id))
        }
        if same_line:
            before = before.replace_columns(same_line)
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
        added_ids = {number: item.item_id for number, item in zip(numbers, added, strict=True)}
        while refused := (
            self._find_taken_lines(added, changes.keys() - left_out.keys())
            or self._find_long_lines(lines, added_ids, changes.keys() - left_out.keys())
        ):
            left_out |= refused  # an item that stays as it was keeps its line, which others then cannot have
        replaced = changes.keys() - left_out.keys()
        items = {number: item for number, item in before.items.items() if item.item_id not in replaced}
        named = drop_numbers(before.named, before.items.keys() - items.keys())
        new_items = {number: item for number, item in zip(numbers, added, strict=True) if item.item_id not in left_out}
        spellings = (ItemSpellings(n, (item.title, item.clean_title), (item.line,)) for n, item in new_items.items())
        add_names(named, spellings)
        return self._make_snapshot(items | new_items, named, lines), left_out

    def _find_taken_lines(self, added: Sequence[CatalogItem], changing: Set[str]) -> dict[str, str]:
        """Return the added items that have the line of another item: id -> reason. `changing` are all changing ids."""
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
                    f"item_id {item.item_id!r}: item {other!r} has the same line in a list. Change the title or year, "
                    "or add a `display` that tells them apart."
                )
        return taken

    def _find_long_lines(self, lines: CatalogTrie, added_ids: Mapping[int, str], changing: Set[str]) -> dict[str, str]:
        """Return the added items with the longest lines, until all lists fit: id -> reason.

        Args:
            lines: of all items, including those that will be removed.
            added_ids: number -> id of the added items.
            changing: all changing ids.
        """
        removed = [number for number, item in self._snapshot.items.items() if item.item_id in changing]
        removed += [number for number, item_id in added_ids.items() if item_id not in changing]
        remaining = select_lines(lines, ~np.isin(lines.item_W, removed))
        added_W = np.isin(remaining.item_W, list(added_ids))
        tokens_W = remaining.count_tokens_by_form()[0]

        def is_too_long(tokens: int) -> bool:
            shorter = select_lines(remaining, ~(added_W & (tokens_W > tokens)))
            return shorter.longest_list(self.max_items) > self.max_tokens

        lengths = np.unique(tokens_W[added_W]).tolist()
        too_long_W = added_W & np.isin(tokens_W, lengths[bisect_left(lengths, True, key=is_too_long) :])
        reason = f"a list of {self.max_items} items may then not fit in the {self.max_tokens} tokens that prompts leave"
        ids = [added_ids[number] for number in remaining.item_W[too_long_W].tolist()]
        return {
            item_id: f"item_id {item_id!r}: its line takes {tokens} tokens, and {reason}. Shorten the title, or lower "
            "max_items."
            for item_id, tokens in zip(ids, tokens_W[too_long_W], strict=True)
        }

    def _encode(self, items: Sequence[CatalogItem], numbers: range) -> tuple[CatalogTrie, dict[str, str]]:
        """Encode the lines of items.

        Returns:
            The trie of the lines, under these numbers; and id -> reason for items whose line has a special token, which
            would end a list.
        """
        neighbour = next(iter(self._snapshot.items.values()), items[0])  # encode_lines checks lines next to each other
        encoded = encode_lines(self._tokenizer, [neighbour.line, *(item.line for item in items)], self._delimiter)
        tokens = encoded.select(range(1, len(items) + 1))
        eos = self._snapshot.trie.trie.eos_token_id
        lines = make_trie(tokens, numbers, numbers, (), eos)
        return lines, {
            item.item_id: f"item_id {item.item_id!r}: {item.line!r} has a special token of the model. Change the title."
            for item, line_tokens in zip(items, tokens.inner, strict=True)
            if not self._special.isdisjoint(line_tokens)
        }

    def _make_snapshot(
        self, items: dict[int, CatalogItem], named: Mapping[str, tuple[int, ...]], lines: CatalogTrie
    ) -> Snapshot:
        lines = select_lines(lines, np.isin(lines.item_W, list(items)))
        _ = lines.trie  # built here, not in a request
        number_by_id = {item.item_id: n for n, item in items.items()}

        @lru_cache(limit_cached_tries(MAX_CACHED_SELECTIONS, len(lines.row_W)))
        def select_trie(numbers: frozenset[int], folder: Path = self._folder) -> TrieFile:  # without self: no cycle
            return TrieFile(select_lines(lines, np.isin(lines.item_W, list(numbers))), folder)

        return Snapshot(
            items=items,
            number_by_id=number_by_id,
            named=named,
            trie=TrieFile(lines, self._folder),
            select_trie=select_trie,
            mentions=self._mentions,
        )


def _iter_spellings(
    catalog: Catalog, numbers: Iterable[int], rows_by_item: Mapping[int, Sequence[int]], written_rows: Set[int]
) -> Iterator[ItemSpellings]:
    """Yield the spellings of the catalog's items.

    Args:
        catalog: the catalog's file.
        numbers: the items, as their first rows.
        rows_by_item: all rows of the items that have several.
        written_rows: the rows whose lines a list may contain.
    """
    for number in numbers:
        rows = rows_by_item.get(number, (number,))
        titles = [title for row in rows for title in (catalog.titles[row], catalog.clean_title(row))]
        if catalog.aliases:
            titles += [alias for row in rows for alias in catalog.aliases[row]]
        lines = [
            format_item(catalog.titles[row], catalog.years[row])  # type: ignore[arg-type]  # a written row has a year
            for row in rows
            if row in written_rows
        ]
        yield ItemSpellings(number, titles, lines)


def _find_blanked_columns(before: CatalogItem | None, after: CatalogItem) -> list[str]:
    """Return the columns, including `display`, that had a value and have none now."""
    if before is None:
        return []
    names = [name for name, value in before.columns.items() if value is not None and after.columns[name] is None]
    return ["display", *names] if before.display and not after.display else names


def _compact(journal: Journal) -> None:
    try:
        journal.compact()
    except (OSError, StateUnreadable) as error:  # the file stays as it was, and the next change tries again
        logging.getLogger(__name__).warning("%s: compaction failed (%s)", journal.path, error)


def _read_items(catalog: Catalog, first_rows: Sequence[int], columns: pa.Table) -> dict[int, CatalogItem]:
    """Return the first row of each item: row -> item.

    Raises:
        UserError: the number of a row without an id is another row's id.
    """
    ids = catalog.item_ids or [None] * len(catalog)
    items = {}
    row_by_id: dict[str, int] = {}
    column_values = columns.to_pylist() if columns.num_columns else [{}] * len(catalog)
    for row, (year, own_id) in enumerate(zip(catalog.years, ids, strict=True)):
        if year is None or first_rows[row] != row:
            continue
        item_id = str(row if own_id is None else own_id)
        if (other := row_by_id.setdefault(item_id, row)) != row:
            raise UserError(
                "catalog.ambiguous-id",
                f"catalog rows {other} and {row} both have the item_id {item_id!r}. Give every row an id.",
            )
        display = catalog.displays[row] if catalog.displays else None
        items[row] = CatalogItem(
            item_id=item_id,
            clean_title=catalog.clean_title(row),
            year=year if catalog.dated else None,
            display=None if display is None else str(display).strip() or None,
            columns=column_values[row],
        )
    return items
