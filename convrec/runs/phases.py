"""How long each phase of a step takes, and whether the one that runs now has taken too long."""

import contextlib
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

TIMES_MEDIAN = 10
FIRST_TIMES = 6  # what a phase without a median may take, in smallest limits: it loads, compiles and fills caches
OUTSIDE = "between the phases"
REMEMBERED = 50  # durations of each phase


class Phases:
    """Phases of one thread, which another one may watch. They may lie in each other: the inner one counts.

    Args:
        smallest_limit: seconds that every phase may take.
        clock: seconds; one that stops with the machine, so that a suspended laptop is no hang.
    """

    def __init__(self, smallest_limit: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.smallest_limit = smallest_limit
        self.clock = clock
        self.durations: dict[str, deque[float]] = {}
        self.current: tuple[str, float] = (OUTSIDE, clock())  # and since when; replaced as a whole

    def restart(self) -> None:
        """What has passed until now, a long start say, does not count."""
        self.current = (OUTSIDE, self.clock())

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        outer = self.current[0]
        begin = self.clock()
        self.current = (name, begin)
        try:
            yield
            self.durations.setdefault(name, deque(maxlen=REMEMBERED)).append(self.clock() - begin)
        finally:
            self.current = (outer, self.clock())

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as a phase of this name."""

        def in_phase(*args: Any, **kwargs: Any) -> Any:
            with self.phase(name):
                return function(*args, **kwargs)

        return in_phase

    def overdue(self) -> str:
        """What there is to say when the phase that runs now has taken longer than it may, else ""."""
        name, begin = self.current
        earlier = self.durations.get(name)
        median = statistics.median(list(earlier)) if earlier else None
        times = FIRST_TIMES * self.smallest_limit if median is None else TIMES_MEDIAN * median
        limit = max(self.smallest_limit, times)
        seconds = self.clock() - begin
        if seconds <= limit:
            return ""
        usual = "it has not ended once before" if median is None else f"its median is {median:.1f} s"
        return f"no progress for {seconds:.0f} s in the phase {name} ({usual}, the limit {limit:.0f} s)"
