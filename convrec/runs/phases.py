"""Measure how long each phase of a step takes, and detect a phase that takes too long."""

import contextlib
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

TIMES_MEDIAN = 10
FIRST_TIMES = 6  # limit of a phase without a median, in smallest limits: it loads, compiles and fills caches
OUTSIDE = "between the phases"
REMEMBERED = 50  # durations per phase


class Phases:
    """Phases of one thread, which another thread may watch. Phases may be nested: the inner one counts.

    Args:
        smallest_limit: seconds that every phase may take.
        clock: returns seconds; it must stop with the machine, so that a suspended laptop does not look like a hang.
    """

    def __init__(self, smallest_limit: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.smallest_limit = smallest_limit
        self.clock = clock
        self.durations: dict[str, deque[float]] = {}
        self.current: tuple[str, float] = (OUTSIDE, clock())  # name and start; replaced as a whole

    def restart(self) -> None:
        """Discard the time until now, such as a long start."""
        self.current = (OUTSIDE, self.clock())

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Run the block as a phase; an error in it leaves no duration."""
        outer = self.current[0]
        begin = self.clock()
        self.current = (name, begin)
        try:
            yield
            self.durations.setdefault(name, deque(maxlen=REMEMBERED)).append(self.clock() - begin)
        finally:
            self.current = (outer, self.clock())

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function to run as a phase of this name.

        Args:
            name: as in `phase`.
            function: called with the same arguments; the wrapper returns its result and raises its errors.
        """

        def in_phase(*args: Any, **kwargs: Any) -> Any:
            with self.phase(name):
                return function(*args, **kwargs)

        return in_phase

    def overdue(self) -> str:
        """Return a message if the current phase has taken longer than its limit, else ""."""
        name, begin = self.current
        earlier = self.durations.get(name)
        median = statistics.median(list(earlier)) if earlier else None
        times = FIRST_TIMES * self.smallest_limit if median is None else TIMES_MEDIAN * median
        limit = max(self.smallest_limit, times)
        seconds = self.clock() - begin
        if seconds <= limit:
            return ""
        usual = "it has not finished before" if median is None else f"median {median:.1f} s"
        return f"no progress for {seconds:.0f} s in phase {name} ({usual}, limit {limit:.0f} s)"
