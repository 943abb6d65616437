"""Log of the lists served and of feedback on them (`--feedback`), which `convrec data feedback` reads.

Each process of the front writes STATE/feedback-TIME-HOST-PID.jsonl; names sort by time. A line is one of:

{"list_id", "time", "model", "model_version", "conversation": text, "seen", "items": [{"item_id", "title", "year"}],
"user_id", "session_id"}                      the last two if the request has them
{"list_id", "time", "item_id", "event", "event_id", "user_id", "session_id"}     of POST /v1/feedback

An accepted event is synced to the disk, and with it the earlier lines of its file; other lines are left to the system.
Only lists that this service has served accept events: their ids are signed.
"""

import asyncio
import contextlib
import errno
import json
import logging
import os
import socket
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeAlias

from convrec.inference.conversation import conversation_text
from recipes.serving.errors import Refused
from recipes.serving.list_ids import ListIds
from recipes.serving.schema import FeedbackEvent

Events: TypeAlias = AsyncIterator[tuple[str, dict[str, Any]]]  # (kind, data) of a streamed list
FILES = "feedback-*.jsonl"
MAX_LISTS = 10_000  # whose items and events are remembered, to refuse events on other items and repeated ones
MAX_WRITES = 2  # of an event whose file another process removes before it is synced
LOG_SECONDS = 60.0  # between two log lines about lost feedback


class FeedbackNotStored(Refused):
    """A feedback event could not be written."""

    def __init__(self) -> None:
        super().__init__(503, "the event could not be stored; the service's log says why", retry_after=5)


@dataclass
class _Shown:
    """A remembered list: its items, and the names of accepted events."""

    item_ids: frozenset[str]
    events: set[str] = field(default_factory=set)


class FeedbackLog:
    """Writer of the feedback log. Use it on one event loop.

    A file ends at `file_bytes`. Then the files that were written to longest ago, of any process, are removed until all
    together have at most `most_bytes`. A process whose file is removed continues in a new one.
    """

    def __init__(
        self,
        folder: Path,
        file_bytes: int = 16 << 20,
        most_bytes: int = 1 << 30,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """Open the log; the first line that is added starts a file.

        Args:
            folder: of the log, which several processes may share.
            file_bytes: size at which a file ends.
            most_bytes: size of all files together, of any process.
            on_lost: called for each line that cannot be written.

        Raises:
            UserError: the folder cannot be used.
        """
        self.folder = folder
        self.file_bytes = file_bytes
        self.most_bytes = most_bytes
        self._on_lost = on_lost
        self._ids = ListIds(folder)
        self._path = folder
        self._file: IO[bytes] | None = None
        self._shown: OrderedDict[str, _Shown] = OrderedDict()
        self._lost_since_log = 0
        self._logged_at = -LOG_SECONDS

    def make_list_id(self) -> str:
        """Make an id for a list to be served; lists with other ids accept no feedback."""
        return self._ids.make()

    def add_list(self, request: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Log a served list; the answer is sent even if it cannot be logged.

        Args:
            request: fields of a RecommendationRequest.
            answer: fields of its RecommendedList.
        """
        items = [{name: item[name] for name in ("item_id", "title", "year")} for item in answer["items"]]
        self._shown[answer["list_id"]] = _Shown(frozenset(item["item_id"] for item in items))
        if len(self._shown) > MAX_LISTS:
            self._shown.popitem(last=False)
        about = {name: answer.get(name) for name in ("list_id", "model", "model_version")}
        conversation = conversation_text(request["conversation"])
        self._add(
            about | {"conversation": conversation, "seen": request["seen"], "items": items} | _get_user_ids(request)
        )

    async def watch(self, request: Mapping[str, Any], model: str, events: Events) -> Events:
        """Yield a streamed list's events with an id of this service, and log the items that were sent.

        An interrupted stream is logged, too; a stream without items is not.

        Args:
            request: fields of RecommendationRequest.
            model: name of the model.
            events: of the model; its own list_id is replaced.
        """
        list_id = self.make_list_id()
        items = list[dict[str, Any]]()
        about: dict[str, Any] = {"model": model}
        try:
            async for kind, data in events:
                data = data | {"list_id": list_id}
                if kind == "item":
                    items.append(data)
                about |= data
                yield kind, data
        finally:
            if items:
                self.add_list(request, about | {"items": items})

    async def add_event(self, event: FeedbackEvent) -> None:
        """Log an event; returns when it is on the disk.

        Raises:
            Refused: The list was not served or has no such item, the event was accepted before, or it cannot be
                written.
        """
        item_id = str(event.item_id)
        if not self._ids.is_genuine(event.list_id):
            raise Refused(404, "list_id: this service has not served such a list", "list_id")
        shown = self._shown.get(event.list_id)
        if shown and item_id not in shown.item_ids:
            raise Refused(400, f"item_id: the list has no item {item_id[:80]!r}", "item_id")
        name = event.event_id or f"{event.event} {item_id}"
        if shown and name in shown.events:
            raise Refused(409, "event_id: this event was accepted before", "event_id" if event.event_id else "event")
        record = {"list_id": event.list_id, "item_id": item_id, "event": event.event}
        record |= {"time": event.time.isoformat()} if event.time else {}
        record |= {"event_id": event.event_id} if event.event_id else {}
        record |= _get_user_ids(event.model_dump())
        if shown:
            shown.events.add(name)
        if not await self._add_synced(record):
            if shown:
                shown.events.discard(name)
            raise FeedbackNotStored

    async def _add_synced(self, record: Mapping[str, Any]) -> bool:
        """Write a line, wait until it is on the disk, and return whether it is."""
        for _ in range(MAX_WRITES):
            if not self._add(record):
                return False
            path = self._path
            file = self._file  # this reference keeps it open even if the next event opens another
            try:
                await asyncio.to_thread(os.fsync, file)  # type: ignore[arg-type]
            except OSError as error:  # some file systems report a full disk only now
                self._report_lost(error)
                return False
            if path.exists():
                return True
        self._report_lost(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))
        return False

    def _add(self, record: Mapping[str, Any]) -> bool:
        """Write a line, and return whether it could be written."""
        now = datetime.now(UTC)
        line = json.dumps({"time": now.isoformat(), **record}).encode() + b"\n"
        try:
            self._write_line(line, now)
            if not self._path.exists():  # another process removed the file just before the line was written
                self._write_line(line, now)
        except OSError as error:
            self._report_lost(error)
            return False
        return True

    def _write_line(self, line: bytes, now: datetime) -> None:
        """Write a line to the current file, or to the next one if that is full or has been removed.

        A line that does not fit is removed again, so that the same file continues when there is space.
        """
        if self._file is None or not self._path.exists() or self._file.tell() > self.file_bytes - len(line):
            self._file = self._open_next_file(now)
        begin = self._file.tell()
        try:
            if self._file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            with contextlib.suppress(OSError):
                self._file.seek(begin)
                self._file.truncate()
            raise

    def _report_lost(self, error: OSError) -> None:
        """Count a lost line, and log it at most once a minute."""
        self._on_lost()
        self._lost_since_log += 1
        now = time.monotonic()
        if now - self._logged_at >= LOG_SECONDS:
            lost = self._lost_since_log
            self._lost_since_log = 0
            self._logged_at = now
            logging.getLogger(__name__).error("%s: %s; feedback is lost (lines: %d)", self._path, error.strerror, lost)

    def _open_next_file(self, now: datetime) -> IO[bytes]:
        """Open the next file, and make room for it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._make_room()
        self._path = self.folder / f"feedback-{now:%Y%m%dT%H%M%S.%f}-{socket.gethostname()}-{os.getpid()}.jsonl"
        return open(self._path, "xb", buffering=0, opener=partial(os.open, mode=0o600))  # one write per line

    def _make_room(self) -> None:
        """Remove the files that were written to longest ago, until another file fits.

        The file that started first is not the oldest: a process with few requests writes its newest events there.
        """
        files = list[tuple[int, Path, int]]()  # (last change in nanoseconds, path, bytes)
        for path in self.folder.glob(FILES):
            with contextlib.suppress(FileNotFoundError):  # another process makes room, too
                status = path.stat()
                files.append((status.st_mtime_ns, path, status.st_size))
        excess = sum(size for _, _, size in files) - (self.most_bytes - self.file_bytes)
        for _, path, size in sorted(files):
            if excess <= 0:
                break
            logging.getLogger(__name__).warning("%s: removed to keep feedback below its size limit", path)
            path.unlink(missing_ok=True)
            excess -= size


def _get_user_ids(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return the ids of the user and the session, if given."""
    return {name: fields[name] for name in ("user_id", "session_id") if fields.get(name)}
