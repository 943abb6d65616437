"""A model in other processes: what one of them does not answer since it ends, another is asked once."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Any, Protocol

from recipes.serving.errors import ENDED, Refused

END = object()  # of a stream


class Gone(Exception):
    """The process has ended, or none can be had."""


class Processes(Protocol):
    """The ways to the processes of a model, each of which has a recipes.serving.model.ModelServer."""

    def call(self, method: str, *arguments: Any) -> AsyncGenerator[Any, None]:
        """What the method gives in one of them: its events, or its one answer. Raises Refused, and Gone."""

    async def call_all(self, method: str) -> list[Any]:
        """The answers of all that can be had."""

    def has_other(self) -> bool:
        """Whether to ask again what has raised Gone."""


class Model:
    """What the routes ask: methods of ModelServer. All may raise Refused, also for what takes more than `seconds`: an
    answer, an event of a stream."""

    def __init__(self, processes: Processes, seconds: float) -> None:
        self.processes, self.seconds = processes, seconds

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
            answers = await self.processes.call_all("metrics")
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
            try:
                async with aclosing(self.processes.call(method, *arguments)) as events:
                    async for event in events:
                        may_be_asked_again = False  # what was sent cannot be taken back
                        yield event
                return
            except Gone:
                if not may_be_asked_again or not self.processes.has_other():
                    raise ENDED from None
