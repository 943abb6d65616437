"""What was shown and what became of it: lines of JSON that `convrec data feedback` reads. Only with `--feedback`.

STATE/feedback-TIME-HOST-PID.jsonl, each of one process of the front, their names in the order of time. A line:

{"list_id", "time", "model", "model_version", "conversation": text, "seen", "items": [{"item_id", "title", "year"}]}
{"list_id", "time", "model", "conversation": text, "answer": text}      of a chat completion that answers a user
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
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO, Any

from convrec.data.schema import SPEAKERS
from convrec.errors import UserError
from convrec.serving.conversation import Conversation, conversation_text
from recipes.serving.errors import Refused
from recipes.serving.schema import FeedbackEvent, plain_messages

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

    # ---- what was shown: an answer is given, also where it cannot be kept

    def add_list(self, answer: Mapping[str, Any], conversation: Conversation, seen: list[str | int]) -> None:
        """answer: the fields of RecommendedList, some of which a stream that was left does not have."""
        items = [{name: item[name] for name in ("item_id", "title", "year")} for item in answer["items"]]
        self._shown[answer["list_id"]] = frozenset(item["item_id"] for item in items)
        if len(self._shown) > MOST_LISTS:
            self._shown.popitem(last=False)
        about = {name: answer.get(name) for name in ("model", "model_version")}
        self._add(answer["list_id"], **about, conversation=conversation_text(conversation), seen=seen, items=items)

    async def listed(
        self,
        events: AsyncIterator[tuple[str, dict[str, Any]]],
        model: str,
        conversation: Conversation,
        seen: list[str | int],
    ) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """The events of a list. What of it was sent is kept at the end, also where nobody reads the rest."""
        answer: dict[str, Any] = {"model": model, "items": []}
        try:
            async for kind, data in events:
                answer["items"] += [data] if kind == "item" else []
                answer |= {"list_id": data["list_id"]} if kind == "item" else data
                yield kind, data
        finally:
            if answer["items"]:
                self.add_list(answer, conversation, seen)

    def add_chat(self, list_id: str, model: str, messages: list[dict[str, Any]], answer: str) -> None:
        """messages: of a ChatRequest. Instructions are no part of the conversation."""
        turns = [turn for turn in plain_messages(messages) if turn["role"] in SPEAKERS]
        with suppress(UserError):  # no turn of a user's is at its end
            said = conversation_text(turns)
            self._add(list_id, model=model, conversation=said, answer=answer)

    async def chatted(
        self, chunks: AsyncIterator[str], model: str, messages: list[dict[str, Any]]
    ) -> AsyncIterator[str]:
        """OpenAI's events of a chat completion, of which the first choice is kept."""
        list_id, answer = "", ""
        try:
            async for chunk in chunks:
                with suppress(ValueError):  # [DONE]
                    data = json.loads(chunk.removeprefix("data: "))
                    list_id = data.get("id", list_id)
                    answer += "".join(one["delta"].get("content") or "" for one in data["choices"] if not one["index"])
                yield chunk
        finally:
            if answer:
                self.add_chat(list_id, model, messages, answer)

    # ---- what became of it

    async def add_event(self, event: FeedbackEvent) -> None:
        """Returns when it is on the disk. Raises Refused for an item that its list does not have, and where nothing can
        be written."""
        shown, item_id = self._shown.get(event.list_id), str(event.item_id)
        if shown is not None and item_id not in shown:
            raise Refused(400, f"item_id: that list has no item {item_id[:80]!r}", "item_id")
        record = {"item_id": item_id, "event": event.event}
        if not self._add(event.list_id, **record, **({"time": event.time.isoformat()} if event.time else {})):
            raise Refused(503, "the event cannot be kept now; the service's log says why", retry_after=5)
        assert self._file
        await asyncio.to_thread(_sync, os.dup(self._file.fileno()))  # the next may be written, and the file be closed

    # ---- files

    def _add(self, list_id: str, **record: Any) -> bool:
        """Whether the line could be written."""
        now = datetime.now(UTC)
        line = json.dumps({"list_id": list_id, "time": now.isoformat(), **record}).encode() + b"\n"
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
        files = {path: path.stat().st_size for path in sorted(self.folder.glob(FILES))}
        while files and sum(files.values()) > self.most_bytes - self.file_bytes:
            oldest = next(iter(files))
            logging.getLogger(__name__).warning("%s: removed, for feedback to stay below its bound", oldest)
            oldest.unlink(missing_ok=True)
            del files[oldest]
        self._path = self.folder / f"feedback-{now:%Y%m%dT%H%M%S.%f}-{socket.gethostname()}-{os.getpid()}.jsonl"
        self.folder.mkdir(parents=True, exist_ok=True)
        return open(self._path, "xb", buffering=0, opener=partial(os.open, mode=0o600))  # a line is a write


def _sync(file: int) -> None:
    try:
        os.fsync(file)
    finally:
        os.close(file)
