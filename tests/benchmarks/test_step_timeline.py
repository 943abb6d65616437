"""profile_step.py: which phase a reading belongs to, what a process is called, and whose time an operator's is."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.profile_step import CpuReader, describe_step, read_machine_seconds, read_process_seconds
from benchmarks.step_figure import draw
from benchmarks.step_timeline import (
    CpuCurve,
    Phase,
    compute_busy_cores,
    compute_cpu_seconds,
    divide_into_bins,
    lay_out_typical_step,
    map_to_step,
    name_process,
    rank_operators,
    split_steps,
)

PHASES = ("gen", "balance_batch", "ref", "adv", "update_actor", "update_weights")


def record_run(*lengths: float) -> list[Phase]:
    """Return the phases of a run: as many steps as lengths, each phase of a step so long, 0.5 s between two phases."""
    phases = []
    now = 100.0
    for length in lengths:
        for name in PHASES:
            phases.append(Phase(name, now, now + length))
            now += length + 0.5
    return phases


def test_a_step_lasts_until_the_next_one_and_gaps_are_the_drivers() -> None:
    (step,) = split_steps(record_run(1.0, 2.0))  # the second one has no end
    assert [(band.name, round(band.begin, 6), round(band.end, 6)) for band in step] == [
        ("generation, reward", 100.0, 101.0),
        ("driver", 101.0, 103.0),  # 0.5 s, balance_batch, 0.5 s
        ("reference", 103.0, 104.0),
        ("driver", 104.0, 104.5),
        ("credit", 104.5, 105.5),
        ("driver", 105.5, 106.0),
        ("update", 106.0, 107.0),
        ("driver", 107.0, 107.5),
        ("weights", 107.5, 108.5),
        ("driver", 108.5, 109.0),
    ]


def test_each_phase_of_the_typical_step_has_its_median_length() -> None:
    typical = lay_out_typical_step(split_steps(record_run(1.0, 2.0, 6.0, 1.0)))
    assert [(band.begin, band.end) for band in typical[:3]] == [(0.0, 2.0), (2.0, 5.0), (5.0, 7.0)]


def test_a_step_that_saves_is_not_like_the_others() -> None:
    phases = record_run(1.0, 1.0, 1.0)
    phases.insert(len(PHASES) - 1, Phase("old_log_prob", 107.0, 107.5))
    with pytest.raises(ValueError, match="other phases"):
        lay_out_typical_step(split_steps(phases))


def test_a_time_is_in_the_same_part_of_the_same_phase() -> None:
    typical = [Phase("update", 0.0, 2.0), Phase("driver", 2.0, 3.0)]
    step = [Phase("update", 10.0, 14.0), Phase("driver", 14.0, 14.5)]
    assert map_to_step(np.array([0.0, 1.0, 2.0, 2.5, 3.0]), typical, step).tolist() == [10.0, 12.0, 14.0, 14.25, 14.5]


def test_busy_cores_are_those_of_the_phase_whatever_its_length() -> None:
    """A process with two busy threads in the update, and idle otherwise, in steps of different length."""
    steps = split_steps(record_run(1.0, 3.0, 1.0))
    typical = lay_out_typical_step(steps)
    updates = [band for step in steps for band in step if band.name == "update"]
    times = np.arange(99.0, 140.0, 0.05)
    seconds = sum(2 * np.clip(times - band.begin, 0, band.end - band.begin) for band in updates)
    curve = CpuCurve("actor, reference", times.tolist(), seconds.tolist())

    edges = divide_into_bins(typical, longest=0.3)
    busy = compute_busy_cores(curve, edges, typical, steps)
    middles = (edges[:-1] + edges[1:]) / 2
    (update,) = [band for band in typical if band.name == "update"]
    inside = (middles > update.begin) & (middles < update.end)
    assert np.diff(edges).max() < 0.3 + 1e-9
    assert busy[inside] == pytest.approx(2.0, abs=0.1)
    assert busy[~inside] == pytest.approx(0.0, abs=0.1)
    assert compute_cpu_seconds(curve, updates) == pytest.approx(2 * (1.0 + 3.0))


def test_no_bin_lies_in_two_phases() -> None:
    typical = [Phase("update", 0.0, 1.0), Phase("driver", 1.0, 1.001), Phase("weights", 1.001, 2.0)]
    edges = divide_into_bins(typical, longest=0.4)
    assert edges[[0, 3, 4, 7]].tolist() == [0.0, 1.0, 1.001, 2.0]


@pytest.mark.parametrize(
    ("command_line", "name"),
    [
        ("ray::WorkerDict.actor_rollout_ref_update_actor", "actor, reference"),
        ("VLLM::EngineCore", "vLLM engine"),
        ("ray::CPUHttpServer", "vLLM server"),
        ("ray::ConvRecAgentLoopWorker", "agent loop"),
        ("ray::RewardLoopWorker", "reward"),
        ("ray::TransferQueueController", "TransferQueue"),
        ("ray::SimpleStorageUnit", "TransferQueue"),
        ("ray::IDLE", "Ray"),
        ("site-packages/ray/core/src/ray/raylet/raylet --raylet_socket_name=s", "Ray"),
        (".venv/bin/python -P -m convrec.cpu.fork_server 6 /tmp/c/python transfer_queue", "other processes"),
    ],
)
def test_names_of_processes(command_line: str, name: str) -> None:
    assert name_process(command_line, is_driver=False) == name
    assert name_process(command_line, is_driver=True) == "driver"


def test_an_operators_own_time_is_without_those_it_calls() -> None:
    def event(name: str, begin: int, length: int, thread: int = 1, kind: str = "cpu_op") -> dict[str, Any]:
        return {"ph": "X", "cat": kind, "name": name, "ts": begin, "dur": length, "pid": 7, "tid": thread}

    trace = [
        event("actor_update", 1000, 1000, kind="user_annotation"),
        event("aten::linear", 1000, 300),
        event("aten::addmm", 1050, 200),  # within linear
        event("aten::addmm", 1300, 100),  # begins when linear has ended
        event("aten::mm", 1020, 400, thread=2),  # the backward pass, at the same time
        event("aten::mm", 5000, 900),  # in no stage
        {"ph": "M", "name": "process_name", "pid": 7},
    ]
    assert rank_operators(trace) == {
        "update": [
            {"operator": "aten::mm", "calls": 1, "seconds": 0.0004, "share": 0.4},
            {"operator": "aten::addmm", "calls": 2, "seconds": 0.0003, "share": 0.3},
            {"operator": "aten::linear", "calls": 1, "seconds": 0.0001, "share": 0.1},
        ]
    }
    assert [row["operator"] for row in rank_operators(trace, most=1)["update"]] == ["aten::mm"]


def test_the_cpu_time_of_a_process_has_that_of_all_its_threads() -> None:
    code = """
import threading, time
def work():
    while time.thread_time() < 0.2: pass
threads = [threading.Thread(target=work) for _ in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            reader = CpuReader(child.pid)
            reader.read()
            reader.read()
        finally:
            child.kill()
    (curve,) = reader.list_curves(driver=child.pid)
    assert curve.name == "driver"
    assert curve.times_S[0] < curve.times_S[1]
    assert curve.seconds_S[0] >= 0.4
    assert read_process_seconds(child.pid) is None  # it has ended
    assert read_machine_seconds() >= reader.machine[0][1] > 0


def test_readings_become_a_step_and_a_picture(tmp_path: Path) -> None:
    """Two vLLM engines use half a core each all the time; the actor has both cores in the update."""
    phases = record_run(1.0, 1.0, 2.0, 3.0, 1.0)
    updates = [phase for phase in phases if phase.name == "update_actor"]
    times = np.arange(99.0, 170.0, 0.05)
    actor = sum(2 * np.clip(times - phase.begin, 0, phase.end - phase.begin) for phase in updates)
    reader = CpuReader(os.getpid())
    reader.command_lines = {2: "VLLM::EngineCore", 3: "VLLM::EngineCore", 4: "ray::WorkerDict"}
    curves = {2: times / 2, 3: times / 2, 4: actor}
    reader.readings = {pid: list(zip(times, seconds, strict=True)) for pid, seconds in curves.items()}
    reader.machine = list(zip(times, times + actor, strict=True))

    step = describe_step(reader, [{**asdict(phase), "pid": 1} for phase in phases])
    assert step["steps"] == 2  # those of 2 and 3 seconds per phase
    assert step["seconds"] == pytest.approx((6 * 2 + 6 * 3) / 2 + 3)
    engines, worker = step["processes"]
    assert (engines["name"], engines["processes"]) == ("vLLM engine", 2)
    assert engines["busy_cores"] == pytest.approx([1.0] * len(engines["busy_cores"]), abs=0.01)
    assert worker["name"] == "actor, reference"
    assert worker["cpu_seconds"] == pytest.approx(2 * (2 + 3) / 2, abs=0.05)
    assert worker["cpu_seconds_by_phase"]["reference"] == 0

    report = {"machine": {"cores": 3, "processor": "none"}, "model": "m", "batch": 1, "rollouts": 2, "step": step}
    (tmp_path / "step.json").write_text(json.dumps(report))
    draw(tmp_path / "step.json", tmp_path / "step.svg", "beside other work")
    picture = (tmp_path / "step.svg").read_text()
    for text in ("vLLM engine (2)", "actor, reference", "all cores", "reference", "update", "beside other work"):
        assert text in picture
