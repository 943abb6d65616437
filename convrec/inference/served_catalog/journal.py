"""The journal of changes to a served catalog: one JSON line per change, shared by all processes that serve a state.

One process at a time appends to the file. A file that has grown too large is compacted: a new file with the last record
of each item replaces it, by a rename under the writers' lock. So a process killed at any moment leaves the old file or
the new one. Readers keep the file open that they have read; when another file has its name, they read that one from the
beginning.
"""

import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias, cast

from convrec.base.errors import UserError
from convrec.base.files import atomic_write

FILE = "catalog.jsonl"
COMPACT_BYTES = 1 << 20  # a smaller file is never compacted
# item_id -> the item's current record ("title", "year", ...); None for a removed item
Change: TypeAlias = dict[str, dict[str, Any] | None]


class StateUnreadable(UserError):
    """The journal is damaged or gone, so that no request can be answered, whatever it asks for."""


@dataclass(frozen=True)
class _Place:
    """A position in an open file; while it is open, no other file can get its inode."""

    file: IO[bytes]
    position: int


class Journal:
    """The journal of a catalog's changes. The first line identifies the catalog."""

    def __init__(
        self,
        folder: Path,
        catalog_name: str,
        *,
        sha256: str,
        has_ids: bool,
        dated: bool,
        compact_bytes: int = COMPACT_BYTES,
    ):
        """Open the journal, or create it.

        Args:
            folder: the state's folder.
            catalog_name: the name of the file of the catalog that the changes apply to.
            sha256: of the file as it was read; it may have been replaced since then.
            has_ids: whether the catalog has ids.
            dated: whether the catalog has years.
            compact_bytes: a larger file is compacted.

        Raises:
            UserError: the changes belong to another catalog: the file's name differs, only one of them has years, or
                the content differs and there are no ids, so that row numbers would mean other items.
        """
        self.path = folder / FILE
        self._compact_bytes = self._compact_from = compact_bytes
        self._compacting = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        now = {"catalog": catalog_name, "sha256": sha256, "dated": dated}
        self.path.touch()
        with self.lock():
            if not self.path.stat().st_size:
                self._write(now)
        self._place = self._find_first_place()
        self._check(self._read_first_line(self._place.file), now, has_ids)

    def _check(self, began_with: dict[str, Any], now: dict[str, Any], has_ids: bool) -> None:
        if began_with.get("catalog") != now["catalog"]:
            raise UserError(
                "state.other-catalog",
                f"{self.path}: these changes belong to {began_with.get('catalog')}, not to {now['catalog']}. Use "
                f"another --state, or write {now['catalog']} in the first line if both have the same items.",
            )
        if began_with.get("dated") != now["dated"]:
            before, after = ("with years", "without years")[:: -1 if now["dated"] else 1]
            raise UserError(
                "state.other-catalog",
                f"{self.path}: these changes belong to a {now['catalog']} {before}, but it is now {after}. Use another "
                "--state, or remove the file.",
            )
        if not has_ids and began_with.get("sha256") != now["sha256"]:
            raise UserError(
                "state.other-catalog",
                f"{self.path}: {began_with.get('catalog')} has changed since these changes were made, and it has no "
                "column item_id to identify its items. Remove the file, or add the column.",
            )

    # ---- reading

    def has_news(self) -> bool:
        """Return whether there are changes that were not marked as read.

        Raises:
            StateUnreadable: the file is gone, or was truncated while in use.
        """
        place = self._place  # before the file's size: another thread may append, and a file only grows
        try:
            current = self.path.stat()
        except OSError as error:
            raise self._make_missing_error(error) from None
        if not os.path.samestat(current, os.fstat(place.file.fileno())):
            return True
        if current.st_size < place.position:
            raise StateUnreadable(
                "state.damaged-journal", f"{self.path}: it was truncated while in use. Restore it, or start again."
            )
        return current.st_size > place.position

    def read_news(self) -> tuple[Change, _Place]:
        """Read the changes that were not marked as read.

        In a file that has replaced the one read before, all changes are new. An unfinished line is left for the next
        call.

        Returns:
            The changes, merged into one, and the position after them for `mark_read`.

        Raises:
            StateUnreadable: the file is gone, was truncated, or has a line that is not a change.
        """
        self.has_news()
        place = self._place  # read once, since another thread may replace it
        return self._read(place if self._is_current(place.file) else self._find_first_place())

    def _read(self, place: _Place) -> tuple[Change, _Place]:
        size = os.fstat(place.file.fileno()).st_size - place.position
        content = os.pread(place.file.fileno(), max(0, size), place.position)
        whole, end, _ = content.rpartition(b"\n")
        change: Change = {}
        for line in whole.splitlines():
            for item_id, record in self._parse(line).items():
                if not isinstance(record, dict | None):
                    raise StateUnreadable(
                        "state.damaged-journal",
                        f"{self.path}: the record of {item_id!r} is not an item. Remove the line.",
                    )
                change.pop(item_id, None)  # the order is that of the last changes
                change[item_id] = record
        return change, _Place(place.file, place.position + len(whole + end))

    def count_unread_bytes(self) -> int:
        """Return the size of the changes that were not marked as read."""
        place = self._place
        size = self.path.stat().st_size
        return size - place.position if self._is_current(place.file) else size

    def mark_read(self, place: _Place) -> None:
        """Mark the changes before a position as read. An unreadable line raises an error each time until then."""
        self._place = place

    # ---- writing

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes, and other threads of this one, from writing."""
        while True:
            with self._open("rb+") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if self._is_current(file):  # the file may have been replaced during the wait
                    yield
                    return

    def append(self, change: Mapping[str, Any]) -> None:
        """Append a change durably. Call it within `lock`, after reading all earlier changes."""
        self._place = _Place(self._place.file, self._write(change))

    def needs_compaction(self) -> bool:
        """Return whether the file has grown enough to be compacted."""
        return self.path.stat().st_size > self._compact_from

    def compact(self) -> None:
        """Replace the file by one with the last record of each item, unless another thread is doing so."""
        if not self._compacting.acquire(blocking=False):
            return
        try:
            with self.lock():
                self._replace_file()
        finally:
            self._compacting.release()

    def _replace_file(self) -> None:
        begin = self._find_first_place()
        first = self._read_first_line(begin.file)
        records, _ = self._read(begin)
        with atomic_write(self.path) as partial, partial.open("wb") as file:
            for record in (first, *({item_id: record} for item_id, record in records.items())):
                file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        self._sync_folder()
        self._compact_from = max(self._compact_bytes, 2 * size)

    def _write(self, record: Mapping[str, Any]) -> int:
        """Append a line. Return the size of the file."""
        with self._open("rb+") as file:
            # remove the unfinished line of a killed process, so that it cannot damage this one
            end = file.seek(0, os.SEEK_END)
            if end and (file.seek(end - 1), file.read(1))[1] != b"\n":
                content = self.path.read_bytes()
                file.truncate(content.rfind(b"\n") + 1)
            file.seek(0, os.SEEK_END)
            file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
            return file.tell()

    # ---- parts

    def _find_first_place(self) -> _Place:
        """Return the position after the first line of the current file."""
        file = self._open("rb")
        return _Place(file, len(file.readline()))

    def _read_first_line(self, file: IO[bytes]) -> dict[str, Any]:
        file.seek(0)
        return self._parse(file.readline())

    def _is_current(self, file: IO[bytes]) -> bool:
        """Return whether this open file still has the journal's name."""
        try:
            return os.path.samestat(os.fstat(file.fileno()), self.path.stat())
        except OSError as error:
            raise self._make_missing_error(error) from None

    def _sync_folder(self) -> None:
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _parse(self, line: bytes) -> dict[str, Any]:
        try:
            value = json.loads(line)
        except ValueError as error:
            raise StateUnreadable(
                "state.damaged-journal", f"{self.path}: a line is not JSON ({error}). Remove the line."
            ) from None
        if not isinstance(value, dict):
            raise StateUnreadable(
                "state.damaged-journal", f"{self.path}: a line is not a JSON object. Remove the line."
            )
        return value

    def _open(self, mode: str) -> IO[bytes]:
        try:
            return cast(IO[bytes], self.path.open(mode))
        except OSError as error:
            raise self._make_missing_error(error) from None

    def _make_missing_error(self, error: OSError) -> StateUnreadable:
        return StateUnreadable("state.damaged-journal", f"{self.path}: {error.strerror}. Restore it, or start again.")
