"""Seconds, memory and operations of a call, and how benchmarks summarise times."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any


def summarise(milliseconds: Sequence[float]) -> dict[str, Any]:
    """Return the median as `ms`, and the quartiles."""
    low, median, high = statistics.quantiles(milliseconds, n=4, method="inclusive")
    return {"ms": round(median, 3), "quartiles": [round(low, 3), round(high, 3)]}


def summarise_ratios(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Return the median of the ratios of ours to theirs, turn by turn, with the least and the most."""
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    summary = {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
    return {name: round(value, 3) for name, value in summary.items()}


def measure_seconds(call: Callable[[], object], device: str) -> float:
    """Return the seconds of a call by the clock.

    Args:
        call: the call.
        device: "cuda" waits for the GPU's work before the call and after it.
    """
    synchronize(device)
    begin = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - begin


def synchronize(device: str) -> None:
    """Wait for the work of a GPU; on a CPU calls have ended when they return."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def measure_peak(call: Callable[[], object], device: str) -> int:
    """Return the most bytes of tensors that are held at once above the start."""
    import torch

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def is_view(operation: Any) -> bool:
    """Return whether an operation of torch only returns views of its inputs."""
    returns = operation._schema.returns
    return any(result.alias_info and not result.alias_info.is_write for result in returns)
