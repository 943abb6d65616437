"""The harness of the growth benchmark: sizes, slopes, processes."""

import sys
from pathlib import Path

import pytest

from benchmarks.growth.harness import (
    ONE_THREAD,
    Quantity,
    compute_slope,
    format_table,
    measure_growth,
    measure_size,
)

# Stands for bench_growth.py: a figure that is the size's square, and one that says whether the child has one thread.
CHILD = """
import os, sys
size = int(sys.argv[sys.argv.index("--size") + 1])
if "--prepare" not in sys.argv:
    print("a line before")
    print('{"squared": %d, "threads": %s}' % (size**2, os.environ["OMP_NUM_THREADS"]))
"""


def measure_nothing(size: int, files: Path, repeats: int) -> dict[str, float]:
    return {}


def test_slopes_are_exponents_over_the_upper_decades() -> None:
    sizes = [10, 100, 1000, 10_000]
    assert compute_slope(sizes, [7.0, 1.0, 10.0, 100.0]) == 1  # the smallest size does not count
    assert compute_slope(sizes, [1.0, 1.0, 100.0, 10_000.0]) == 2
    assert compute_slope(sizes, [9.0, 3.0, 3.0, 3.0]) == 0
    assert compute_slope(sizes, [0.0, 0.0, 0.0, 5.0]) is None


def test_slopes_of_doubled_sizes_count_all_of_them() -> None:
    assert compute_slope([8, 16, 32, 64, 128], [3.0, 6.0, 12.0, 24.0, 48.0]) == 1


def test_all_sizes_are_measured_by_the_command() -> None:
    quantity = Quantity("things", measure_nothing, (), smallest=2, largest=8, factor=2)
    growth = measure_growth(quantity, 1_000_000, [sys.executable, "-c", CHILD])
    assert growth == {
        "unit": "things",
        "sizes": [2, 4, 8],
        "figures": {
            "squared": {"values": [4, 16, 64], "slope": 2},
            "threads": {"values": [int(ONE_THREAD["OMP_NUM_THREADS"])] * 3, "slope": 0},
        },
    }


def test_a_command_that_fails_ends_the_measurement_with_its_words() -> None:
    with pytest.raises(SystemExit, match=r"status 1:\n(.|\n)*KeyError: 'gone'"):
        measure_growth(
            Quantity("things", measure_nothing, ()), 1000, [sys.executable, "-c", "import os; os.environ['gone']"]
        )


def test_a_quantity_s_own_memory_comes_before_that_of_the_process(tmp_path: Path) -> None:
    measured = measure_size(Quantity("things", lambda size, files, repeats: {"mib": 7.0}, ()), 1, 1, tmp_path)
    assert measured["mib"] == 7
    assert measured.keys() == {"mib", "wall_s"}


def test_a_table_has_a_line_for_each_figure_with_its_slope() -> None:
    growth = {
        "unit": "lists of a step",
        "sizes": [8, 16],
        "figures": {
            "step_s": {"values": [1.5, 3], "slope": 1.0},
            "gone": {"values": [0, 0], "slope": None},
        },
    }
    assert format_table(growth).splitlines() == [
        "| lists of a step | 8 | 16 | slope |",
        "|---|---|---|---|",
        "| step_s | 1.5 | 3 | 1.0 |",
        "| gone | 0 | 0 | – |",
    ]
