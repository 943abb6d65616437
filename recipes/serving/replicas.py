"""A model in other processes: a call that one of them loses by ending is retried once on another."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple, Protocol

from recipes.serving.errors import Ended, Refused

END = object()  # marks the end of a stream
# Methods that have a fallback.
LIST = "recommend"
LIST_STREAM = "recommend_stream"
LATE = (503, 504)  # statuses that trigger the fallback: the process is gone or too slow
FALLBACK_SECONDS = 5.0  # of a request's time are reserved for the fallback, or a quarter if that is less


class BackendGone(Exception):
    """The process has ended, or none is available."""


class Backend(Protocol):
    """A process with a recipes.serving.model.ModelServer, or several that are called as one."""

    is_up: bool
    running: int  # number of running calls
    restarts: int  # of the process since the service started
    problem: str | None  # why no process is available; None: one is, or the reason is unknown

    def call(self, method: str, *arguments: Any) -> AsyncGenerator[Any, None]:
        """Yield a method's events, or its single answer; waits for a starting process.

        Raises:
            Refused: The method refuses the call.
            BackendGone: The process ends before the last event.
        """

    async def call_all(self, method: str) -> list[Any]:
        """Return the answers of all available processes."""


class Fallback(NamedTuple):
    """A fallback for late lists.

    Attributes:
        seconds: after which a list is late.
        answer: computes the fields of an answer from those of a request.
    """

    seconds: float
    answer: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class Model:
    """A model as routes call it, by methods of ModelServer.

    Calls raise Refused, also if an answer or the next event of a stream takes more than `seconds`. If a list is late or
    its process is gone, the fallback answers.
    """

    def __init__(self, backends: Sequence[Backend], seconds: float, fallback: Fallback | None = None) -> None:
        self.backends = backends
        self.seconds = seconds
        self.fallback = fallback

    async def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method with a single answer.

        Args:
            method: of ModelServer.
            *arguments: plain data.

        Raises:
            Refused: the method refuses the call, takes too long, or its process ends; lists then come from the
                fallback, if there is one.
        """
        async with aclosing(self.stream(method, *arguments)) as events:
            return await anext(events)

    async def stream(self, method: str, *arguments: Any) -> AsyncGenerator[Any, None]:
        """Call a method and yield its events.

        Args:
            method: of ModelServer. With a single answer, that is the only event.
            *arguments: plain data.

        Raises:
            Refused: the method refuses the call, takes too long, or its process ends. The fallback answers in its place
                only if no event was sent.
        """
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
            if is_begun or refused.status not in LATE:  # events already sent cannot be taken back
                raise
        async with self._limit_time(self.seconds - first_seconds):
            answer = await fallback.answer(*arguments)
        for item in answer.pop("items") if method == LIST_STREAM else ():
            yield "item", {"list_id": answer["list_id"], **item}
        yield ("end", answer) if method == LIST_STREAM else answer

    async def _timed_events(self, first_seconds: float, method: str, *arguments: Any) -> AsyncGenerator[Any, None]:
        """Yield events. Raises Refused if the first takes more than `first_seconds`, or a later one than `seconds`."""
        seconds = first_seconds
        async with aclosing(self._events(method, *arguments)) as events:
            while True:
                async with self._limit_time(seconds):
                    event = await anext(events, END)
                if event is END:
                    return
                seconds = self.seconds
                yield event

    @property
    def restarts(self) -> int:
        """Number of restarts of all processes."""
        return sum(backend.restarts for backend in self.backends)

    @property
    def problem(self) -> str | None:
        """Why no process is available, without folders: /health needs no key."""
        problems = [backend.problem for backend in self.backends]
        if not problems or None in problems:
            return None
        return re.sub(r"[^\s'\"]*/", "", str(problems[0]))

    async def metrics(self) -> dict[str, str]:
        """Return the metrics of each process, in Prometheus' text format."""
        async with self._limit_time(self.seconds):
            answers = [
                answer for backend in self.backends if backend.is_up for answer in await backend.call_all("metrics")
            ]
        return {process: figures for answer in answers for process, figures in answer.items()}

    @asynccontextmanager
    async def _limit_time(self, seconds: float) -> AsyncGenerator[None, None]:
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            message = f"no answer within {seconds:g} s, the limit of this service; try again"
            raise Refused(504, message, retry_after=5) from None

    async def _events(self, method: str, *arguments: Any) -> AsyncGenerator[Any, None]:
        for may_retry in (True, False):
            # the least busy process; if none is up, one that is starting
            backend = min(self.backends, key=lambda candidate: (not candidate.is_up, candidate.running))
            try:
                async with aclosing(backend.call(method, *arguments)) as events:
                    async for event in events:
                        may_retry = False  # events already sent cannot be taken back
                        yield event
                return
            except BackendGone:
                if not may_retry or not any(candidate.is_up for candidate in self.backends):
                    raise Ended from None
