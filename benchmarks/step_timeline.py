"""The arithmetic of profile_step.py: CPU time of processes along one typical step, and operators of a trace.

A driver goes through the phases of a step one after the other. Each phase of the typical step is as long as its median
over the steps, and every process is as busy in a part of it as it was on average in that part of the phase.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

DRIVER = "driver"
ACTOR = "actor, reference"
RAY = "Ray"
OTHER = "other processes"
# A process whose command line holds this -> the row that it belongs to; the first match counts.
PROCESSES = {
    "AgentLoopWorker": "agent loop",
    "RewardLoopWorker": "reward",
    "HttpServer": "vLLM server",
    "GlobalRequestLoadBalancer": "vLLM server",
    "VLLM::": "vLLM engine",
    "WorkerDict": ACTOR,
    "TransferQueue": "TransferQueue",
    "SimpleStorageUnit": "TransferQueue",
    "ray::": RAY,
    "/ray/": RAY,
}
ROWS = (DRIVER, "agent loop", "vLLM server", "vLLM engine", "reward", "TransferQueue", ACTOR, RAY, OTHER)
FIRST_PHASE = "gen"
# Phase of convrec.training.loop -> what the picture calls it. Whatever else the driver does is "driver".
BANDS = {
    "gen": "generation, reward",
    "old_log_prob": "old log-probs",
    "ref": "reference",
    "adv": "credit",
    "update_actor": "update",
    "update_weights": "weights",
}
STAGES = {"ref_compute_log_prob": "reference", "actor_update": "update"}  # verl's marks in a trace of the actor


@dataclass(frozen=True)
class Phase:
    """A phase of the driver.

    Attributes:
        name: as in convrec.training.loop, or a value of BANDS.
        begin: seconds by time.monotonic().
        end: also.
    """

    name: str
    begin: float
    end: float


@dataclass(frozen=True)
class CpuCurve:
    """CPU time that a process had used at some times.

    Attributes:
        name: its row in the picture, one of ROWS.
        times_S: seconds by time.monotonic(), rising.
        seconds_S: CPU seconds of all its threads since its start.
    """

    name: str
    times_S: Sequence[float]
    seconds_S: Sequence[float]


def name_process(command_line: str, is_driver: bool) -> str:
    """Return the row of a process, one of ROWS."""
    if is_driver:
        return DRIVER
    return next((name for words, name in PROCESSES.items() if words in command_line), OTHER)


def split_steps(phases: Sequence[Phase]) -> list[list[Phase]]:
    """Return the bands of each step, without gaps between them.

    A step lasts from the begin of its first phase to that of the next step. Time between two phases is the driver's,
    and neighbours of one name are one band. The last step has no end and is left out.

    Args:
        phases: those of a run, in order and not nested.
    """
    starts = [index for index, phase in enumerate(phases) if phase.name == FIRST_PHASE]
    steps = []
    for first, last in itertools.pairwise(starts):
        bands: list[Phase] = []
        for phase, following in zip(phases[first:last], phases[first + 1 : last + 1], strict=True):
            _append_band(bands, Phase(BANDS.get(phase.name, DRIVER), phase.begin, phase.end))
            _append_band(bands, Phase(DRIVER, phase.end, following.begin))
        steps.append(bands)
    return steps


def _append_band(bands: list[Phase], band: Phase) -> None:
    if bands and bands[-1].name == band.name:
        band = Phase(band.name, bands.pop().begin, band.end)
    bands.append(band)


def lay_out_typical_step(steps: Sequence[Sequence[Phase]]) -> list[Phase]:
    """Return the bands of the typical step, which begins at 0: each has its median length.

    Args:
        steps: bands of each step, the same ones in every step.

    Raises:
        ValueError: a step has other bands, as one that saves or validates.
    """
    names = [band.name for band in steps[0]]
    if any([band.name for band in step] != names for step in steps):
        raise ValueError(f"a step has other phases than the first one, {', '.join(names)}")
    typical: list[Phase] = []
    end = 0.0
    for index, name in enumerate(names):
        begin = end
        end = begin + statistics.median(step[index].end - step[index].begin for step in steps)
        typical.append(Phase(name, begin, end))
    return typical


def divide_into_bins(typical: Sequence[Phase], longest: float) -> np.ndarray:
    """Return the edges of bins, equal within a band and at most `longest` seconds long; no bin lies in two bands."""
    edges = [typical[0].begin]
    for band in typical:
        num_bins = max(1, math.ceil((band.end - band.begin) / longest))
        edges.extend(np.linspace(band.begin, band.end, num_bins + 1)[1:])
    return np.array(edges)


def map_to_step(times_E: np.ndarray, typical: Sequence[Phase], step: Sequence[Phase]) -> np.ndarray:
    """Map times of the typical step to those of a measured one: linearly within each band.

    Args:
        times_E: seconds since the begin of the typical step.
        typical: its bands.
        step: the bands of the measured step.

    Returns:
        Seconds by time.monotonic().
    """
    return np.interp(times_E, _list_edges(typical), _list_edges(step))


def _list_edges(bands: Sequence[Phase]) -> list[float]:
    return [bands[0].begin, *(band.end for band in bands)]


def compute_busy_cores(
    curve: CpuCurve, edges_E: np.ndarray, typical: Sequence[Phase], steps: Sequence[Sequence[Phase]]
) -> np.ndarray:
    """Return how many cores a process keeps busy along the typical step.

    Args:
        curve: its CPU time.
        edges_E: edges of the bins, seconds of the typical step.
        typical: the bands of the typical step.
        steps: those of the measured ones.

    Returns:
        For each of the E - 1 bins, the CPU time of the process in this part of all steps over the time of this part.
    """
    cpu_seconds = np.zeros(len(edges_E) - 1)
    seconds = np.zeros(len(edges_E) - 1)
    for step in steps:
        times_E = map_to_step(edges_E, typical, step)
        cpu_seconds += np.diff(np.interp(times_E, curve.times_S, curve.seconds_S))
        seconds += np.diff(times_E)
    return cpu_seconds / seconds


def compute_cpu_seconds(curve: CpuCurve, bands: Iterable[Phase]) -> float:
    """Return the CPU seconds of a process within some bands."""
    times = [(band.begin, band.end) for band in bands]
    begin_end = np.interp(np.array(times), curve.times_S, curve.seconds_S)
    return float((begin_end[:, 1] - begin_end[:, 0]).sum())


def rank_operators(trace: Iterable[Mapping[str, Any]], most: int = 10) -> dict[str, list[dict[str, Any]]]:
    """Return the operators in which the update and the reference's pass spend their time.

    An operator's own time is what it takes without the operators that it calls. Those of the backward pass run in a
    thread of their own and count by their time.

    Args:
        trace: `traceEvents` of torch.profiler.
        most: the most operators per stage.

    Returns:
        Stage, a value of STAGES -> its operators, the longest first: name, calls, own seconds, and their share of the
        stage's seconds. Stages that are not in the trace are missing.
    """
    timed = [event for event in trace if event.get("ph") == "X"]
    operators = [event for event in timed if event.get("cat") == "cpu_op"]
    own_times = _compute_own_times(operators)
    ranking = {}
    for mark, stage in STAGES.items():
        windows = [(event["ts"], event["ts"] + event["dur"]) for event in timed if event["name"] == mark]
        if not windows:
            continue
        totals: dict[str, list[float]] = {}
        for event, own_time in zip(operators, own_times, strict=True):
            if any(begin <= event["ts"] < end for begin, end in windows):
                totals.setdefault(event["name"], []).append(own_time)
        stage_time = sum(end - begin for begin, end in windows)
        longest = sorted(totals.items(), key=lambda item: -sum(item[1]))[:most]
        ranking[stage] = [
            {
                "operator": name,
                "calls": len(times),
                "seconds": round(sum(times) / 1e6, 4),
                "share": round(sum(times) / stage_time, 3),
            }
            for name, times in longest
        ]
    return ranking


def _compute_own_times(operators: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the time of each operator without that of the operators that it calls in its thread, in microseconds."""
    own_times = [float(event["dur"]) for event in operators]
    order = sorted(range(len(operators)), key=lambda index: (operators[index]["ts"], -operators[index]["dur"]))
    open_operators: dict[Any, list[int]] = {}  # of each thread, the innermost last
    for index in order:
        event = operators[index]
        stack = open_operators.setdefault((event["pid"], event["tid"]), [])
        while stack and operators[stack[-1]]["ts"] + operators[stack[-1]]["dur"] <= event["ts"]:
            stack.pop()
        if stack:
            own_times[stack[-1]] -= event["dur"]
        stack.append(index)
    return own_times
