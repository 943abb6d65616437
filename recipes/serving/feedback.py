"""What was shown and what became of it: lines of JSON that `convrec data feedback` reads. Only with `--feedback`.

STATE/feedback-TIME-HOST-PID.jsonl, each of one process of the front, their names in the order of time. A line:

{"list_id", "time", "model", "model_version", "conversation": text, "seen", "items": [{"item_id", "title", "year"}],
"user_id", "session_id"}                      the last two where the request has them
{"list_id", "time", "item_id", "event", "event_id", "user_id", "session_id"}     of POST /v1/feedback

An event that was taken is on the disk, and with it the lines before it in its file; other lines are left to the system.
Only lists that this service has served have events: their ids are signed.
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

Events: TypeAlias = AsyncIterator[tuple[str, dict[str, Any]]]  # of a list that is written
FILES = "feedback-*.jsonl"
MOST_LISTS = 10_000  # whose items and events are remembered: an event of another item, or one again, is refused
LOG_SECONDS = 60.0  # between two lines of the log about what cannot be written


class NotKept(Refused):
    """An event that could not be written."""

    def __init__(self) -> None:
        super().__init__(503, "the event cannot be kept now; the service's log says why", retry_after=5)


@dataclass
class _Shown:
    """What is remembered of a list: its items, and the events that were taken."""

    item_ids: frozenset[str]
    events: set[str] = field(default_factory=set)


class FeedbackLog:
    """Must be used on one event loop. A file ends at `file_bytes`; then the oldest files go, of any process, until all
    have `most_bytes` at most."""

    def __init__(
        self,
        folder: Path,
        file_bytes: int = 16 << 20,
        most_bytes: int = 1 << 30,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """on_lost: called for each line that cannot be written. Raises UserError for a folder that cannot be used."""
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
        """An id for a list that is served; another one has no feedback."""
        return self._ids.make()

    def add_list(self, request: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """The fields of a RecommendationRequest and of its RecommendedList. The answer is given, also where this
        cannot be kept."""
        items = [{name: item[name] for name in ("item_id", "title", "year")} for item in answer["items"]]
        self._shown[answer["list_id"]] = _Shown(frozenset(item["item_id"] for item in items))
        if len(self._shown) > MOST_LISTS:
            self._shown.popitem(last=False)
        about = {name: answer.get(name) for name in ("list_id", "model", "model_version")}
        said = conversation_text(request["conversation"])
        self._add(about | {"conversation": said, "seen": request["seen"], "items": items} | _whose(request))

    async def watch(self, request: Mapping[str, Any], model: str, events: Events) -> Events:
        """The events, with this service's id of the list. Of the list is kept what was sent, also where nobody reads
        the rest."""
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
        """Returns when it is on the disk. Raises Refused for a list that was not served, an item that its list does not
        have, an event that was taken already, and where nothing can be written."""
        item_id = str(event.item_id)
        if not self._ids.is_genuine(event.list_id):
            raise Refused(404, "list_id: this service has served no such list", "list_id")
        shown = self._shown.get(event.list_id)
        if shown and item_id not in shown.item_ids:
            raise Refused(400, f"item_id: that list has no item {item_id[:80]!r}", "item_id")
        name = event.event_id or f"{event.event} {item_id}"
        if shown and name in shown.events:
            raise Refused(409, "event_id: this event was taken already", "event_id" if event.event_id else "event")
        record = {"list_id": event.list_id, "item_id": item_id, "event": event.event}
        record |= {"time": event.time.isoformat()} if event.time else {}
        record |= {"event_id": event.event_id} if event.event_id else {}
        if not self._add(record | _whose(event.model_dump())):
            raise NotKept
        if shown:
            shown.events.add(name)
        file = self._file  # open as long as it is named here, also where the next event begins another
        try:
            await asyncio.to_thread(os.fsync, file)  # type: ignore[arg-type]
        except OSError as error:  # some file systems find out here that the disk is full
            if shown:
                shown.events.discard(name)
            self._tell_lost(error)
            raise NotKept from None

    def _add(self, record: Mapping[str, Any]) -> bool:
        """Whether it could be written. What was written of a line that does not fit is taken back, so that the same
        file goes on when there is room again."""
        now = datetime.now(UTC)
        line = json.dumps({"time": now.isoformat(), **record}).encode() + b"\n"
        begin = None
        try:
            if self._file is None or not self._path.exists() or self._file.tell() > self.file_bytes - len(line):
                self._file = self._opened(now)
            begin = self._file.tell()
            if self._file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            if self._file is not None and begin is not None:
                with contextlib.suppress(OSError):
                    self._file.seek(begin)
                    self._file.truncate()
            self._tell_lost(error)
            return False
        return True

    def _tell_lost(self, error: OSError) -> None:
        """Count a line that is lost, and say so once a minute."""
        self._on_lost()
        self._lost_since_log += 1
        now = time.monotonic()
        if now - self._logged_at >= LOG_SECONDS:
            lost = self._lost_since_log
            self._lost_since_log = 0
            self._logged_at = now
            logging.getLogger(__name__).error("%s: %s; feedback is lost (lines: %d)", self._path, error.strerror, lost)

    def _opened(self, now: datetime) -> IO[bytes]:
        """The next file; the oldest go, so that it has room."""
        self.folder.mkdir(parents=True, exist_ok=True)
        files = {path: path.stat().st_size for path in sorted(self.folder.glob(FILES)) if path.exists()}
        while files and sum(files.values()) > self.most_bytes - self.file_bytes:
            oldest = next(iter(files))
            logging.getLogger(__name__).warning("%s: removed, for feedback to stay below its bound", oldest)
            oldest.unlink(missing_ok=True)
            del files[oldest]
        self._path = self.folder / f"feedback-{now:%Y%m%dT%H%M%S.%f}-{socket.gethostname()}-{os.getpid()}.jsonl"
        return open(self._path, "xb", buffering=0, opener=partial(os.open, mode=0o600))  # a line is a write


def _whose(fields: Mapping[str, Any]) -> dict[str, str]:
    """The ids of the user and the session, where they are given."""
    return {name: fields[name] for name in ("user_id", "session_id") if fields.get(name)}
