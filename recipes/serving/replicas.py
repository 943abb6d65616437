"""A model in other processes: what one of them does not answer since it ends, another is asked once."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Protocol

from recipes.serving.errors import ENDED, Refused

END = object()  # of a stream


class Gone(Exception):
    """The process has ended, or none can be had."""


class Backend(Protocol):
    """A process that has a recipes.serving.model.ModelServer, or several that are asked as one."""

    is_up: bool
    running: int  # calls

    def call(self, method: str, *arguments: Any) -> AsyncGenerator[Any, None]:
        """What the method gives: its events, or its one answer; waits for a process that starts. Raises Refused, and
        Gone."""

    async def call_all(self, method: str) -> list[Any]:
        """The answers of all processes that can be had."""


class Model:
    """What the routes ask: methods of ModelServer. All may raise Refused, also for what takes more than `seconds`: an
    answer, an event of a stream."""

    def __init__(self, backends: Sequence[Backend], seconds: float) -> None:
        self.backends, self.seconds = backends, seconds

    async def ask(self, method: str, *arguments: Any) -> Any:
        async with aclosing(self.stream(method, *arguments)) as events:
            return await anext(events)

    async def stream(self, method: str, *arguments: Any) -> AsyncGenerator[Any, None]:
        async with aclosing(self._events(method, *arguments)) as events:
            while True:
                async with self._in_time():
                    event = await anext(events, END)
                if event is END:
                    return
                yield event

    async def metrics(self) -> dict[str, str]:
        """Process -> its figures in Prometheus' form."""
        async with self._in_time():
            answers = [answer for one in self.backends if one.is_up for answer in await one.call_all("metrics")]
        return {process: figures for answer in answers for process, figures in answer.items()}

    @asynccontextmanager
    async def _in_time(self) -> AsyncGenerator[None, None]:
        try:
            async with asyncio.timeout(self.seconds):
                yield
        except TimeoutError:
            message = f"no answer within {self.seconds:g} s, the most of this service; ask again"
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
                    raise ENDED from None
