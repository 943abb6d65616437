"""A model in other processes: what one of them does not answer since it ends, another is asked once."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple, Protocol

from recipes.serving.errors import Ended, Refused

END = object()  # of a stream
# methods that a fallback is for
LIST = "recommend"
LIST_STREAM = "recommend_stream"
LATE = (503, 504)  # statuses that it is for: the process is gone, or too slow
FALLBACK_SECONDS = 5.0  # of a request's time that are left for the fallback, or a quarter where that is less


class Gone(Exception):
    """The process has ended, or none can be had."""


class Backend(Protocol):
    """A process that has a recipes.serving.model.ModelServer, or several that are asked as one."""

    is_up: bool
    running: int  # calls
    restarts: int  # of its process, since the service began
    problem: str | None  # why its process cannot be had; None where it can, or nobody knows

    def call(self, method: str, *arguments: Any) -> AsyncGenerator[Any, None]:
        """What the method gives: its events, or its one answer; waits for a process that starts. Raises Refused, and
        Gone."""

    async def call_all(self, method: str) -> list[Any]:
        """The answers of all processes that can be had."""


class Fallback(NamedTuple):
    """seconds: after which a list is late. answer: gives another, of a request's fields those of an answer."""

    seconds: float
    answer: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class Model:
    """What the routes ask: methods of ModelServer. All may raise Refused, also for what takes more than `seconds`: an
    answer, an event of a stream. Lists that are late, or whose process is gone, are those of the fallback."""

    def __init__(self, backends: Sequence[Backend], seconds: float, fallback: Fallback | None = None) -> None:
        self.backends = backends
        self.seconds = seconds
        self.fallback = fallback

    async def ask(self, method: str, *arguments: Any) -> Any:
        async with aclosing(self.stream(method, *arguments)) as events:
            return await anext(events)

    async def stream(self, method: str, *arguments: Any) -> AsyncGenerator[Any, None]:
        fallback = self.fallback if method in (LIST, LIST_STREAM) else None
        if fallback is None:
            async with aclosing(self._timed_events(self.seconds, method, *arguments)) as events:
                async for event in events:
                    yield event
            return
        most = self.seconds - min(FALLBACK_SECONDS, self.seconds / 4)
        is_begun = False
        try:
            first_seconds = min(fallback.seconds, most)
            async with aclosing(self._timed_events(first_seconds, method, *arguments)) as events:
                async for event in events:
                    is_begun = True
                    yield event
            return
        except Refused as refused:
            if is_begun or refused.status not in LATE:  # what was sent cannot be taken back
                raise
        async with self._in_time(self.seconds - first_seconds):
            answer = await fallback.answer(*arguments)
        for item in answer.pop("items") if method == LIST_STREAM else ():
            yield "item", {"list_id": answer["list_id"], **item}
        yield ("end", answer) if method == LIST_STREAM else answer

    async def _timed_events(self, first_seconds: float, method: str, *arguments: Any) -> AsyncGenerator[Any, None]:
        """Raises Refused where the first event takes longer than `first_seconds`, or a later one than `seconds`."""
        seconds = first_seconds
        async with aclosing(self._events(method, *arguments)) as events:
            while True:
                async with self._in_time(seconds):
                    event = await anext(events, END)
                if event is END:
                    return
                seconds = self.seconds
                yield event

    @property
    def restarts(self) -> int:
        return sum(backend.restarts for backend in self.backends)

    @property
    def problem(self) -> str | None:
        """Why no process can be had. Without the folders of files: who asks for /health has no key."""
        problems = [backend.problem for backend in self.backends]
        if not problems or None in problems:
            return None
        return re.sub(r"[^\s'\"]*/", "", str(problems[0]))

    async def metrics(self) -> dict[str, str]:
        """Process -> its figures in Prometheus' form."""
        async with self._in_time(self.seconds):
            answers = [answer for one in self.backends if one.is_up for answer in await one.call_all("metrics")]
        return {process: figures for answer in answers for process, figures in answer.items()}

    @asynccontextmanager
    async def _in_time(self, seconds: float) -> AsyncGenerator[None, None]:
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            message = f"no answer within {seconds:g} s, the most of this service; ask again"
            raise Refused(504, message, retry_after=5) from None

    async def _events(self, method: str, *arguments: Any) -> AsyncGenerator[Any, None]:
        for may_be_asked_again in (True, False):
            # that has least to do; where none is up, one that starts
            backend = min(self.backends, key=lambda one: (not one.is_up, one.running))
            try:
                async with aclosing(backend.call(method, *arguments)) as events:
                    async for event in events:
                        may_be_asked_again = False  # what was sent cannot be taken back
                        yield event
                return
            except Gone:
                if not may_be_asked_again or not any(one.is_up for one in self.backends):
                    raise Ended from None
