"""What was changed in a served catalog, kept in a file: a line of JSON a change, appended by one process at a time and
read by all that serve the same state."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from convrec.errors import UserError
from convrec.files import file_hash

FILE = "catalog.jsonl"
# item_id -> what is now known of it ("title", "year"); None: it was removed
Change: TypeAlias = dict[str, dict[str, Any] | None]


class Journal:
    """The first line names the catalog that the others change."""

    def __init__(self, folder: Path, catalog_file: Path, has_ids: bool):
        """Raises UserError where the changes are of another catalog without ids: row numbers would be other items."""
        self.path = folder / FILE
        self._place = 0  # bytes that were read
        folder.mkdir(parents=True, exist_ok=True)
        now = {"catalog": catalog_file.name, "sha256": file_hash(catalog_file)}
        with self.writing():
            if not self.path.stat().st_size:
                self._append(now)
            with self.path.open("rb") as file:
                first = file.readline()
                self._place = file.tell()
        began_with = self._parse(first)
        if not has_ids and began_with.get("sha256") != now["sha256"]:
            raise UserError(
                f"{self.path}: these changes are of another content of {began_with.get('catalog')}, and the catalog "
                "has no column item_id, so they cannot be told to items of this one. Remove the file, or give items ids"
            )

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Keep other processes from writing, and other threads of this one."""
        with self.path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def has_news(self) -> bool:
        return self.path.stat().st_size > self._place

    def news(self) -> Change:
        """What was changed since the last call, as one change. A line that is being written is left for the next."""
        with self.path.open("rb") as file:
            file.seek(self._place)
            whole, end, _ = file.read().rpartition(b"\n")
        change: Change = {}
        for line in whole.splitlines():
            for item_id, record in self._parse(line).items():
                change.pop(item_id, None)  # the last change is the last in order, too
                change[item_id] = record
        self._place += len(whole + end)  # only now: a line that cannot be read is told each time, and hides no other
        return change

    def append(self, change: Change) -> None:
        """Only within `writing`. On the disk when this returns."""
        self._append(change)

    def _append(self, value: dict[str, Any]) -> None:
        with self.path.open("rb+") as file:
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
            raise UserError(f"{self.path}: a line that is no JSON ({error}); remove that line") from None
        if not isinstance(value, dict):
            raise UserError(f"{self.path}: a line that is no object; remove that line")
        return value
