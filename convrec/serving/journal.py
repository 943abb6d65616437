"""What was changed in a served catalog, kept in a file: a line of JSON a change, appended by one process at a time and
read by all that serve the same state."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TypeAlias, cast

from convrec.errors import UserError
from convrec.files import file_hash

FILE = "catalog.jsonl"
# item_id -> what is now known of it ("title", "year"); None: it was removed
Change: TypeAlias = dict[str, dict[str, Any] | None]


class StateUnreadable(UserError):
    """The file is damaged or gone: no request is at fault, and none can be answered."""


class Journal:
    """The first line names the catalog that the others change."""

    def __init__(self, folder: Path, catalog_file: Path, has_ids: bool, dated: bool):
        """Raises UserError where the changes are of another catalog: a file of another name, years in one of them
        alone, or another content without ids, where row numbers would be other items."""
        self.path = folder / FILE
        self._position = 0  # bytes that were read
        folder.mkdir(parents=True, exist_ok=True)
        now = {"catalog": catalog_file.name, "sha256": file_hash(catalog_file), "dated": dated}
        self.path.touch()
        with self.writing():
            if not self.path.stat().st_size:
                self.append(now)
            with self.path.open("rb") as file:
                first = file.readline()
                self._position = file.tell()
        self._check(self._parse(first), now, has_ids)

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

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Keep other processes from writing, and other threads of this one."""
        with self._open("rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def has_news(self) -> bool:
        try:
            size = self.path.stat().st_size
        except OSError as error:
            raise self._gone(error) from None
        if size < self._position:
            raise StateUnreadable(f"{self.path}: it was cut while it was served; put it back, or start again")
        return size > self._position

    def news(self) -> tuple[Change, int]:
        """(what was changed behind what was `reached`, as one change; the position behind it). A line that is
        being written is left for the next call."""
        self.has_news()
        with self._open("rb") as file:
            file.seek(self._position)
            whole, end, _ = file.read().rpartition(b"\n")
        change: Change = {}
        for line in whole.splitlines():
            for item_id, record in self._parse(line).items():
                if not isinstance(record, dict | None):
                    raise StateUnreadable(f"{self.path}: {item_id!r} is no item; remove that line")
                change.pop(item_id, None)  # the last change is the last in order, too
                change[item_id] = record
        return change, self._position + len(whole + end)

    def reached(self, position: int) -> None:
        """What is before it is known. A line that cannot be read is told each time, and hides no other."""
        self._position = position

    def append(self, change: Mapping[str, Any]) -> None:
        """Only within `writing`, when all before it is known. On the disk when this returns."""
        with self._open("rb+") as file:
            # what a killed process has half written ends here, so that it spoils no other line
            end = file.seek(0, os.SEEK_END)
            if end and (file.seek(end - 1), file.read(1))[1] != b"\n":
                content = self.path.read_bytes()
                file.truncate(content.rfind(b"\n") + 1)
            file.seek(0, os.SEEK_END)
            file.write(json.dumps(change, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
            self._position = file.tell()

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
