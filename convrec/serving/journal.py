"""What was changed in a served catalog, kept in a file: a line of JSON a change, appended by one process at a time and
read by all that serve the same state."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
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
        self._place = 0  # bytes that were read
        folder.mkdir(parents=True, exist_ok=True)
        now = {"catalog": catalog_file.name, "sha256": file_hash(catalog_file), "dated": dated}
        self.path.touch()
        with self.writing():
            if not self.path.stat().st_size:
                self._append(now)
            with self.path.open("rb") as file:
                first = file.readline()
                self._place = file.tell()
        self._check(now | self._parse(first), now, has_ids)  # `dated` is missing in what earlier versions began

    def _check(self, began_with: dict[str, Any], now: dict[str, Any], has_ids: bool) -> None:
        if began_with["catalog"] != now["catalog"]:
            raise UserError(
                f"{self.path}: these changes are of {began_with['catalog']}, not of {now['catalog']}; give another "
                f"--state, or write {now['catalog']} into its first line where both have the same items"
            )
        if began_with["dated"] != now["dated"]:
            years = {True: "with years", False: "without years"}
            raise UserError(
                f"{self.path}: these changes are of a {began_with['catalog']} {years[bool(began_with['dated'])]}, and "
                f"it is now one {years[now['dated']]}; give another --state, or remove the file"
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
        if size < self._place:
            raise StateUnreadable(f"{self.path}: it was cut while it was served; put it back, or start again")
        return size > self._place

    def news(self) -> tuple[Change, int]:
        """(what was changed behind the place that was `reached`, as one change; the place behind it). A line that is
        being written is left for the next call."""
        self.has_news()
        with self._open("rb") as file:
            file.seek(self._place)
            whole, end, _ = file.read().rpartition(b"\n")
        change: Change = {}
        for line in whole.splitlines():
            for item_id, record in self._parse(line).items():
                if not isinstance(record, dict | None):
                    raise StateUnreadable(f"{self.path}: {item_id!r} is no item; remove that line")
                change.pop(item_id, None)  # the last change is the last in order, too
                change[item_id] = record
        return change, self._place + len(whole + end)

    def reached(self, place: int) -> None:
        """What is before `place` is known. A line that cannot be read is told each time, and hides no other."""
        self._place = place

    def append(self, change: Change) -> None:
        """Only within `writing`. On the disk when this returns."""
        self._append(change)

    def _append(self, value: dict[str, Any]) -> None:
        with self._open("rb+") as file:
            # what a killed process has half written ends here, so that it spoils no other line
            end = file.seek(0, os.SEEK_END)
            if end and (file.seek(end - 1), file.read(1))[1] != b"\n":
                content = self.path.read_bytes()
                file.truncate(content.rfind(b"\n") + 1)
            file.seek(0, os.SEEK_END)
            file.write(json.dumps(value, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

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
