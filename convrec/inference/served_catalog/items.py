"""The served catalog: items by id and by title, which can be added and removed while lists are written.

Every state of the catalog is an immutable `Snapshot`; a request keeps the one it began with. `SnapshotBuilder` makes
them. Here is who may change the catalog and when: one thread of one process at a time, all or nothing, with a journal
that the processes share.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from convrec.base.errors import UserError
from convrec.data.tokenizer import check_text
from convrec.features.constrained.catalog_trie import catalog_trie
from convrec.inference.served_catalog.columns import ITEM, check_columns, read_columns
from convrec.inference.served_catalog.item_record import RecordReader
from convrec.inference.served_catalog.journal import Journal, StateUnreadable
from convrec.inference.served_catalog.mentions import load_mentions
from convrec.inference.served_catalog.snapshot import CatalogItem, Snapshot, Title, find_by_title
from convrec.inference.served_catalog.snapshot_builder import Changes, SnapshotBuilder, lower_max_items
from convrec.lists.settings import ListSettings, make_matcher
from convrec.titles.catalog import load_catalog, print_problems, reject_changes
from convrec.titles.item import parse_item

SMALL_CHANGE_BYTES = 64 << 10  # of changes: some hundred items, which are applied quickly
WAIT_SECONDS = 0.3  # for another thread that applies changes


class ServedCatalog:
    """A catalog that can change while it is served. Thread-safe.

    Attributes:
        dated: whether items have years.
        columns: the additional columns.
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
            UserError: the catalog, tokenizer or state cannot be used, or the catalog is replaced while it is read.
        """
        self._tolerance = lists.year_tolerance
        with reject_changes(file) as sha256:
            base = load_catalog(file)
            columns = read_columns(file, base)
        check_text(f"model {tokenizer.name_or_path}", tokenizer, base.titles)
        self.dated = base.dated
        self._has_ids = base.item_ids is not None
        self.columns: pa.Schema = columns.schema
        self._reader = RecordReader(self.dated, lists.delimiter, self.columns)
        matcher = make_matcher(base, lists)
        lines, _ = catalog_trie(file, matcher, tokenizer, lists.delimiter, folder, questions=questions)
        fitting_items = lower_max_items(lines, max_items, max_tokens)
        if not fitting_items:
            raise UserError(
                "catalog.line-too-long",
                f"{file}: a line can take {lines.longest_list(1)} tokens, but the model's context leaves {max_tokens} "
                "for a list. Remove such titles.",
            )
        self._builder = SnapshotBuilder(
            tokenizer,
            lists.delimiter,
            folder,
            load_mentions(file),
            max_items=fitting_items,
            max_tokens=max_tokens,
        )
        self._snapshot, unlisted = self._builder.build_first(base, matcher.index, columns, lines)
        self.problems = [*base.problems, *unlisted]
        print_problems(file, self.problems)
        self._lock = threading.RLock()
        self._journal: Journal | None = None
        if state:
            self._journal = Journal(state, file.name, sha256=sha256, has_ids=self._has_ids, dated=self.dated)
        if self._journal:
            with self._lock:
                self._apply_news(self._journal)

    @property
    def max_items(self) -> int:
        """The largest list that always fits in `max_tokens`."""
        return self._builder.max_items

    @property
    def max_tokens(self) -> int:
        """Tokens of a list."""
        return self._builder.max_tokens

    def limit_tokens(self, max_tokens: int) -> None:
        """Set the tokens of a list for items added from now on; `max_items` stays."""
        self._builder.max_tokens = max_tokens

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

        def compute_changes(before: Snapshot) -> Changes:
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

        def compute_changes(before: Snapshot) -> Changes:
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

    def _change(self, compute_changes: Callable[[Snapshot], Changes]) -> None:
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
            after, left_out = self._builder.build_next(before, changes)
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
        changes: dict[str, CatalogItem | None] = {}
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
            self._snapshot, refused = self._builder.build_next(self._snapshot, changes)
            left_out |= refused
        journal.mark_read(position)  # only now, so that changes that could not be applied are read again
        problems = [f"left out: {reason}" for reason in left_out.values()]
        print_problems(journal.path, problems)
        self.problems += problems


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
