"""What was changed in a served catalog, kept in a file: a line of JSON a change, appended by one process at a time and
read by all that serve the same state.

A file that has grown too large is compacted: another one with the last record of each item takes its place, by a
rename under the lock of all writers. So whoever is killed at any moment leaves the old file or the new one. Readers
keep the file open that they have read; when another has its name, they read that one from its beginning.
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
from convrec.base.files import file_hash, written_whole

FILE = "catalog.jsonl"
COMPACT_BYTES = 1 << 20  # a smaller file is never compacted
# item_id -> what is now known of it ("title", "year"); None: it was removed
Change: TypeAlias = dict[str, dict[str, Any] | None]


class StateUnreadable(UserError):
    """The file is damaged or gone: no request is at fault, and none can be answered."""


@dataclass(frozen=True)
class _Place:
    """A position in a file that is open, so that no other file can get its inode."""

    file: IO[bytes]
    position: int


class Journal:
    """The first line names the catalog that the others change. compact_bytes: a file of this size is compacted."""

    def __init__(
        self, folder: Path, catalog_file: Path, has_ids: bool, dated: bool, compact_bytes: int = COMPACT_BYTES
    ):
        """Raises UserError where the changes are of another catalog: a file of another name, years in one of them
        alone, or another content without ids, where row numbers would be other items."""
        self.path = folder / FILE
        self._compact_bytes = self._compact_from = compact_bytes
        self._compacting = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        now = {"catalog": catalog_file.name, "sha256": file_hash(catalog_file), "dated": dated}
        self.path.touch()
        with self.writing():
            if not self.path.stat().st_size:
                self._write(now)
        self._place = self._first_place()
        self._check(self._first_line(self._place.file), now, has_ids)

    def _check(self, began_with: dict[str, Any], now: dict[str, Any], has_ids: bool) -> None:
        if began_with.get("catalog") != now["catalog"]:
            raise UserError(
                f"{self.path}: these changes are of {began_with.get('catalog')}, not of {now['catalog']}; give another "
                f"--state, or write {now['catalog']} into its first line where both have the same items"
            )
        if began_with.get("dated") != now["dated"]:
            before, after = ("with years", "without years")[:: -1 if now["dated"] else 1]
            raise UserError(
                f"{self.path}: these changes are of a {now['catalog']} {before}, and it is now one {after}; give "
                "another --state, or remove the file"
            )
        if not has_ids and began_with.get("sha256") != now["sha256"]:
            raise UserError(
                f"{self.path}: these changes are of another content of {began_with.get('catalog')}, and the catalog "
                "has no column item_id, so they cannot be told to items of this one. Remove the file, or give items ids"
            )

    # ---- reading

    def has_news(self) -> bool:
        try:
            there = self.path.stat()
        except OSError as error:
            raise self._gone(error) from None
        read = os.fstat(self._place.file.fileno())
        if (there.st_dev, there.st_ino) != (read.st_dev, read.st_ino):
            return True
        if there.st_size < self._place.position:
            raise StateUnreadable(f"{self.path}: it was cut while it was served; put it back, or start again")
        return there.st_size > self._place.position

    def news(self) -> tuple[Change, _Place]:
        """(what was changed behind what was `reached`, as one change; the place behind it). Of a file that has
        replaced the one that was read, all is news. A line that is being written is left for the next call."""
        self.has_news()
        return self._read(self._place if self._is_current(self._place.file) else self._first_place())

    def _read(self, place: _Place) -> tuple[Change, _Place]:
        size = os.fstat(place.file.fileno()).st_size - place.position
        content = os.pread(place.file.fileno(), max(0, size), place.position)
        whole, end, _ = content.rpartition(b"\n")
        change: Change = {}
        for line in whole.splitlines():
            for item_id, record in self._parse(line).items():
                if not isinstance(record, dict | None):
                    raise StateUnreadable(f"{self.path}: {item_id!r} is no item; remove that line")
                change.pop(item_id, None)  # the last change is the last in order, too
                change[item_id] = record
        return change, _Place(place.file, place.position + len(whole + end))

    def news_bytes(self) -> int:
        """How much there is to read."""
        size = self.path.stat().st_size
        return size - self._place.position if self._is_current(self._place.file) else size

    def reached(self, place: _Place) -> None:
        """What is before it is known. A line that cannot be read is told each time, and hides no other."""
        self._place = place

    # ---- writing

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Keep other processes from writing, and other threads of this one."""
        while True:
            with self._open("rb+") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if self._is_current(file):  # not replaced while this waited
                    yield
                    return

    def append(self, change: Mapping[str, Any]) -> None:
        """Only within `writing`, when all before it is known. On the disk when this returns."""
        self._place = _Place(self._place.file, self._write(change))

    def needs_compaction(self) -> bool:
        return self.path.stat().st_size > self._compact_from

    def compact(self) -> None:
        """Replace the file by one with the last record of each item. Does nothing where another thread does it."""
        if not self._compacting.acquire(blocking=False):
            return
        try:
            with self.writing():
                self._replace_file()
        finally:
            self._compacting.release()

    def _replace_file(self) -> None:
        begin = self._first_place()
        first = self._first_line(begin.file)
        known, _ = self._read(begin)
        with written_whole(self.path) as partial, partial.open("wb") as file:
            for record in (first, *({item_id: record} for item_id, record in known.items())):
                file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        self._sync_folder()
        self._compact_from = max(self._compact_bytes, 2 * size)

    def _write(self, record: Mapping[str, Any]) -> int:
        """Append a line. Returns the size of the file."""
        with self._open("rb+") as file:
            # what a killed process has half written ends here, so that it spoils no other line
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

    def _first_place(self) -> _Place:
        """Behind the first line of the file that has the name now."""
        file = self._open("rb")
        return _Place(file, len(file.readline()))

    def _first_line(self, file: IO[bytes]) -> dict[str, Any]:
        file.seek(0)
        return self._parse(file.readline())

    def _is_current(self, file: IO[bytes]) -> bool:
        """Whether this open file is the one that has the name now."""
        try:
            return os.path.samestat(os.fstat(file.fileno()), self.path.stat())
        except OSError as error:
            raise self._gone(error) from None

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
            raise StateUnreadable(f"{self.path}: a line that is no JSON ({error}); remove that line") from None
        if not isinstance(value, dict):
            raise StateUnreadable(f"{self.path}: a line that is no object; remove that line")
        return value

    def _open(self, mode: str) -> IO[bytes]:
        try:
            return cast(IO[bytes], self.path.open(mode))
        except OSError as error:
            raise self._gone(error) from None

    def _gone(self, error: OSError) -> StateUnreadable:
        return StateUnreadable(f"{self.path}: {error.strerror}; put it back, or start again")
