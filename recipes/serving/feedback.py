"""What was shown and what became of it: lines of JSON that `convrec data feedback` reads. Only with `--feedback`.

STATE/feedback-TIME-HOST-PID.jsonl, each of one process of the front, their names in the order of time. A line:

{"list_id", "time", "model", "model_version", "conversation": text, "seen", "items": [{"item_id", "title", "year"}]}
{"list_id", "time", "item_id", "event"}      of POST /v1/feedback

An event that was taken is on the disk, and with it the lines before it in its file; other lines are left to the system.
"""

import asyncio
import errno
import json
import logging
import os
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeAlias

from convrec.serving.conversation import conversation_text
from recipes.serving.errors import Refused
from recipes.serving.schema import FeedbackEvent

Events: TypeAlias = AsyncIterator[tuple[str, dict[str, Any]]]  # of a list that is written
FILES = "feedback-*.jsonl"
MOST_LISTS = 10_000  # whose items are remembered: an event of another item is refused


class FeedbackLog:
    """Must be used on one event loop. A file ends at `file_bytes`; then the oldest files go, of any process, until all
    have `most_bytes` at most."""

    def __init__(self, folder: Path, file_bytes: int = 16 << 20, most_bytes: int = 1 << 30) -> None:
        self.folder, self.file_bytes, self.most_bytes = folder, file_bytes, most_bytes
        self._path = folder
        self._file: IO[bytes] | None = None
        self._shown: OrderedDict[str, frozenset[str]] = OrderedDict()

    def add_list(self, asked: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """The fields of a RecommendationRequest and of its RecommendedList. The answer is given, also where this
        cannot be kept."""
        items = [{name: item[name] for name in ("item_id", "title", "year")} for item in answer["items"]]
        self._shown[answer["list_id"]] = frozenset(item["item_id"] for item in items)
        if len(self._shown) > MOST_LISTS:
            self._shown.popitem(last=False)
        about = {name: answer.get(name) for name in ("list_id", "model", "model_version")}
        said = conversation_text(asked["conversation"])
        self._add(about | {"conversation": said, "seen": asked["seen"], "items": items})

    async def watch(self, asked: Mapping[str, Any], model: str, events: Events) -> Events:
        """The events. Of the list is kept what was sent, also where nobody reads the rest."""
        items, about = list[dict[str, Any]](), {"model": model}
        try:
            async for kind, data in events:
                items += [data] if kind == "item" else []
                about |= data  # the list's id is in every event
                yield kind, data
        finally:
            if items:
                self.add_list(asked, about | {"items": items})

    async def add_event(self, event: FeedbackEvent) -> None:
        """Returns when it is on the disk. Raises Refused for an item that its list does not have, and where nothing can
        be written."""
        record = {"list_id": event.list_id, "item_id": str(event.item_id), "event": event.event}
        if record["item_id"] not in self._shown.get(event.list_id, {record["item_id"]}):
            raise Refused(400, f"item_id: that list has no item {record['item_id'][:80]!r}", "item_id")
        if not self._add(record | ({"time": event.time.isoformat()} if event.time else {})):
            raise Refused(503, "the event cannot be kept now; the service's log says why", retry_after=5)
        file = self._file  # open as long as it is named here, also where the next event begins another
        await asyncio.to_thread(os.fsync, file)  # type: ignore[arg-type]

    def _add(self, record: Mapping[str, Any]) -> bool:
        """Whether it could be written."""
        now = datetime.now(UTC)
        line = json.dumps({"time": now.isoformat(), **record}).encode() + b"\n"
        try:
            if self._file is None or not self._path.exists() or self._file.tell() > self.file_bytes - len(line):
                self._file = self._opened(now)
            if self._file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            logging.getLogger(__name__).error("%s: %s; feedback is lost", self._path, error.strerror)
            self._file = None  # half a line can only be the last of its file
            return False
        return True

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
