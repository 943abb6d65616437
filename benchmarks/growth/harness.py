"""The harness of bench_growth.py: measure a quantity at several sizes, each in its own process, and fit slopes.

Figures are medians of CPU time with one thread of numpy and torch, so that other work on the machine hardly changes
them. Modules with measurements import inside their functions: a child process imports what its quantity names in
`modules`, and nothing of the others, before its memory and its time count.
"""

import importlib
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Figures = dict[str, float]

# CPU time would count the threads that wait for others. The tokenizer's threads do not wait.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

SEED = 3407
LARGEST = 1_000_000
BUDGET_SECONDS = 20  # of one call's repeats together
DECADES = 2  # over which the slope is fitted
NUM_ITEMS = 20  # of a list
CATALOG_TITLES = 7404  # where another quantity grows


@dataclass(frozen=True)
class Quantity:
    """Something that grows.

    Attributes:
        unit: what a size counts.
        measure: (size, folder of the files, repeats) -> figures.
        modules: imported before, since neither their time nor their memory grows.
        prepare: writes the files that a size needs; run in a process of its own.
        smallest: size.
        largest: size.
        factor: from one size to the next.
        needs_demo: whether `measure` and `prepare` read FILES/demo, the folder of `make demo`.
        environment: variables of the process that measures.
    """

    unit: str
    measure: Callable[[int, Path, int], Figures]
    modules: tuple[str, ...]
    prepare: Callable[[int, Path], object] = lambda size, files: None
    smallest: int = 1000
    largest: int = LARGEST
    factor: int = 10
    needs_demo: bool = False
    environment: Mapping[str, str] = field(default_factory=lambda: ONE_THREAD)

    def list_sizes(self, largest: int) -> list[int]:
        """Return the sizes from the smallest to the largest, a factor apart; the smallest in any case."""
        limit = max(self.smallest, min(self.largest, largest))
        steps = math.floor(math.log(limit / self.smallest, self.factor) + 1e-9)
        return [self.smallest * self.factor**step for step in range(steps + 1)]


# ---- in the process of a size


def measure_size(quantity: Quantity, size: int, repeats: int, files: Path) -> Figures:
    """Measure one size in this process: the figures of the quantity, and where it has none, its time and memory."""
    for module in quantity.modules:
        importlib.import_module(module)
    before = read_peak_mib()
    begin = time.monotonic()
    figures = quantity.measure(size, files, repeats)
    own = {"mib": read_peak_mib() - before, "wall_s": time.monotonic() - begin}
    return figures | {name: value for name, value in own.items() if name not in figures}


def measure_seconds(call: Callable[[], object], repeats: int, prepare: Callable[[], object] = lambda: None) -> float:
    """Return the median CPU seconds of a call, of fewer repeats if they take BUDGET_SECONDS together."""
    seconds: list[float] = []
    while len(seconds) < repeats and sum(seconds) < BUDGET_SECONDS:
        prepare()
        begin = time.process_time()
        call()
        seconds.append(time.process_time() - begin)
    return statistics.median(seconds)


class Clock:
    """Collects the CPU seconds of steps that are done once, since the next one needs their result."""

    def __init__(self) -> None:
        self.figures: Figures = {}

    def time(self, name: str, call: Callable[[], Any]) -> Any:
        begin = time.process_time()
        result = call()
        self.figures[name] = time.process_time() - begin
        return result


def read_peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


# ---- all sizes


def measure_growth(quantity: Quantity, largest: int, command: list[str]) -> dict[str, Any]:
    """Measure a quantity at all sizes.

    Args:
        quantity: the quantity.
        largest: sizes above are left out.
        command: measures a size that is appended as `--size`, and prints its figures; with `--prepare` it writes the
            files of that size.
    """
    sizes = quantity.list_sizes(largest)
    points = []
    for size in sizes:
        run_child([*command, "--size", str(size), "--prepare"], quantity.environment)
        points.append(json.loads(run_child([*command, "--size", str(size)], quantity.environment)))
        print(json.dumps({quantity.unit: size, **points[-1]}), file=sys.stderr, flush=True)
    figures = {figure: [point[figure] for point in points] for figure in points[0]}
    return {
        "unit": quantity.unit,
        "sizes": sizes,
        "figures": {
            figure: {"values": [float(f"{value:.3g}") for value in values], "slope": compute_slope(sizes, values)}
            for figure, values in figures.items()
        },
    }


def run_child(command: list[str], environment: Mapping[str, str]) -> str:
    """Run a command; return what it prints last."""
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: status {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout.strip().rpartition("\n")[2]


def compute_slope(sizes: list[int], values: list[float]) -> float | None:
    """Return the slope of the values of the upper DECADES decades, None if there are too few above 0."""
    points = [(size, value) for size, value in zip(sizes, values, strict=True) if value > 0]
    points = [(size, value) for size, value in points if size * 10**DECADES >= sizes[-1]]
    if len(points) < 2:
        return None
    logs = [(math.log(size), math.log(value)) for size, value in points]
    return round(statistics.linear_regression(*zip(*logs, strict=True)).slope, 2)


def format_table(growth: Mapping[str, Any]) -> str:
    """Return a quantity's growth as a Markdown table: a line for each figure, with its slope at the end."""
    sizes = " | ".join(f"{size:,}" for size in growth["sizes"])
    lines = [f"| {growth['unit']} | {sizes} | slope |", "|---" * (len(growth["sizes"]) + 2) + "|"]
    for name, figure in growth["figures"].items():
        values = " | ".join(f"{value:g}" for value in figure["values"])
        slope = "–" if figure["slope"] is None else figure["slope"]
        lines.append(f"| {name} | {values} | {slope} |")
    return "\n".join(lines)
