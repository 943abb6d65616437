"""Meters of benchmarks: times, tensors' memory, views."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.meters import is_view, measure_peak, measure_seconds, summarise, summarise_ratios


def test_times_are_summarised_by_their_quartiles() -> None:
    # of 1, 2, 3, 4, 5 a quarter lies at or below 2, and a quarter at or above 4
    assert summarise([5.0, 1.0, 3.0, 2.0, 4.0]) == {"ms": 3.0, "quartiles": [2.0, 4.0]}


def test_ratios_are_those_of_a_turn() -> None:
    # 1/2, 3/2 and 5/1; of the medians it would be 3/2, of the means 9/5
    assert summarise_ratios([1.0, 3.0, 5.0], [2.0, 2.0, 1.0]) == {"median": 1.5, "least": 0.5, "most": 5.0}


def test_the_peak_counts_what_is_held_at_once() -> None:
    def call() -> None:
        first = torch.ones(1000, dtype=torch.float32)
        del first
        torch.ones(2000, dtype=torch.float32)

    assert measure_peak(call, "cpu") == 8000


def test_a_call_on_a_cpu_is_timed_once() -> None:
    calls: list[int] = []
    assert measure_seconds(lambda: calls.append(1), "cpu") >= 0
    assert calls == [1]


def test_views_are_told_from_operations_that_compute() -> None:
    views: dict[str, bool] = {}

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            views[operation._schema.name] = is_view(operation)
            return operation(*args, **(kwargs or {}))

    matrix = torch.zeros(2, 3)
    with Recorder():
        matrix.t()
        matrix + 1
        matrix.add_(1)
    assert views == {"aten::t": True, "aten::add": False, "aten::add_": False}
