"""Draining of a service: new requests are refused, running ones are answered, and the rest are cut off."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TypeVar

from recipes.serving.errors import Refused

T = TypeVar("T")
END = object()  # marks the end of a stream


class Stopping(Refused):
    """The service accepts no more requests."""

    def __init__(self) -> None:
        super().__init__(503, "the service stops; try again, another one may answer", retry_after=5)


class Drain:
    """State of a draining service. Use it on one event loop; only `begin` may be called by a signal handler."""

    def __init__(self) -> None:
        self.began_at: float | None = None  # by time.monotonic()
        self.running = 0  # requests being answered
        self._is_cut = False
        self._waiters: set[asyncio.Future[None]] = set()

    def begin(self) -> None:
        """Refuse new requests from now on."""
        self.began_at = self.began_at or time.monotonic()

    def is_over(self, seconds: float) -> bool:
        """Return whether draining has begun, and nothing runs any more or the time is up."""
        return self.began_at is not None and (not self.running or time.monotonic() - self.began_at >= seconds)

    async def cut(self, seconds: float) -> None:
        """End running requests, streams with an error event, others with a 503, and wait for them up to `seconds`."""
        self.begin()
        self._is_cut = True
        for waiter in [*self._waiters]:
            if not waiter.done():
                waiter.set_result(None)
        deadline = time.monotonic() + seconds
        while self.running and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    async def wait_for_cut(self) -> None:
        """Wait until `cut` is called."""
        if self._is_cut:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    async def iterate_until_cut(self, events: AsyncIterator[T]) -> AsyncGenerator[T, None]:
        """Yield events until the service is cut off.

        Args:
            events: an asynchronous iterator; the event that it waits for is cancelled.

        Raises:
            Stopping: `cut` was called.
        """
        cut = asyncio.ensure_future(self.wait_for_cut())
        try:
            while True:
                following = asyncio.ensure_future(anext(events, END))
                try:
                    await asyncio.wait((following, cut), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    is_cut = not following.done()
                    if is_cut:
                        following.cancel()
                        await asyncio.wait((following,))
                if is_cut:
                    raise Stopping
                event = following.result()
                if event is END:
                    return
                yield event  # type: ignore[misc]
        finally:
            cut.cancel()
