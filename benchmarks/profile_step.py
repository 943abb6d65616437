"""Draw where the seconds of a Rank-GRPO step go, process by process, and list the operators of its passes.

python benchmarks/profile_step.py --demo outputs/demo [--out outputs/profile] [--model FOLDER] [--steps 12]
    [--batch 16] [--rollouts 8] [--response 100]

Trains as the run "ours" of bench_training.py does and writes step.json and step.svg into --out. Start nothing else
meanwhile; the picture shows what other programs took.

- The CPU time of every process of the run is read from /proc, 20 times per second. The first two steps do not count.
- The driver logs when each phase begins and ends, so each reading belongs to a phase (benchmarks/step_timeline.py).
- One more step is recorded by torch.profiler, through verl's settings: step.json has the ten operators with the most
  time of their own in the update and in the reference's pass. This step is slower, and not in the picture.

What a GPU does is not seen, nor which Python function is busy: for that, install py-spy (`pip install --target FOLDER
py-spy`) and call `FOLDER/bin/py-spy record --pid PID` while the run trains.
To draw step.json again: python benchmarks/step_figure.py FILE.json FILE.svg
"""

import argparse
import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_training import add_run_options, make_variables
from benchmarks.machine import print_report
from benchmarks.step_figure import draw
from benchmarks.step_timeline import (
    ROWS,
    CpuCurve,
    Phase,
    compute_busy_cores,
    compute_cpu_seconds,
    divide_into_bins,
    lay_out_typical_step,
    name_process,
    rank_operators,
    split_steps,
)
from convrec.base.files import atomic_write

ROOT = Path(__file__).resolve().parents[1]
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
READ_SECONDS = 0.05
SEARCH_SECONDS = 5.0  # between two searches for new processes, which take most of a core for some milliseconds
NUM_BINS = 160  # of the picture, about
NUM_SKIPPED_STEPS = 2  # they compile and fill caches


class CpuReader:
    """Reads the CPU time of a process, of its descendants and of the machine."""

    def __init__(self, pid: int) -> None:
        self.root = psutil.Process(pid)
        self.command_lines: dict[int, str] = {}
        self.readings: dict[int, list[tuple[float, float]]] = {}
        self.machine: list[tuple[float, float]] = []
        self._next_search = 0.0

    def read(self) -> None:
        """Add a reading of each process and of the machine."""
        if time.monotonic() >= self._next_search:
            self._find_processes()
            self._next_search = time.monotonic() + SEARCH_SECONDS
        for pid in self.command_lines:
            seconds = read_process_seconds(pid)
            if seconds is not None:
                self.readings.setdefault(pid, []).append((time.monotonic(), seconds))
        self.machine.append((time.monotonic(), read_machine_seconds()))

    def _find_processes(self) -> None:
        """Note the command line of each process; Ray and vLLM change theirs once they have started."""
        for process in [self.root, *self.root.children(recursive=True)]:
            try:
                self.command_lines[process.pid] = " ".join(process.cmdline())
            except psutil.Error:
                continue

    def list_curves(self, driver: int) -> list[CpuCurve]:
        """Return the curve of each process.

        Args:
            driver: its process id.
        """
        return [
            make_curve(name_process(self.command_lines[pid], pid == driver), readings)
            for pid, readings in self.readings.items()
        ]


def make_curve(name: str, readings: Sequence[tuple[float, float]]) -> CpuCurve:
    """Return the curve of (time, CPU seconds) pairs."""
    times_S = [time for time, _ in readings]
    seconds_S = [seconds for _, seconds in readings]
    return CpuCurve(name=name, times_S=times_S, seconds_S=seconds_S)


def read_process_seconds(pid: int) -> float | None:
    """Return the CPU seconds of a process and all its threads; None if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    user_ticks = int(fields[11])
    system_ticks = int(fields[12])
    return (user_ticks + system_ticks) / TICKS_PER_SECOND


def read_machine_seconds() -> float:
    """Return the CPU seconds that the cores of this process were busy, or taken by the host of a virtual machine."""
    cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    ticks = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *values = line.split()
        if name in cores:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, values[:8])
            ticks += user + nice + system + irq + softirq + steal
    return ticks / TICKS_PER_SECOND


def train(options: argparse.Namespace, folder: Path) -> tuple[CpuReader, list[dict[str, Any]]]:
    """Train, with a last step for torch.profiler.

    Args:
        options: of the command.
        folder: gets the run, its log and its trace.

    Returns:
        The readings from the end of the first phase on, and the phases that `timed_phases.py` has logged.
    """
    phases_file = folder / "phases.jsonl"
    total_steps = options.steps + 1
    environment = {
        **os.environ,
        **make_variables(options, folder / "run", "rank_grpo"),
        "PYTHONPATH": str(ROOT),
        "TOTAL_STEPS": str(total_steps),
        "TEST_FREQ": "-1",
    }
    command = [sys.executable, str(ROOT / "benchmarks" / "timed_phases.py"), str(phases_file), "train", "rank-grpo"]
    command += ["trainer.val_before_train=false", *list_profiler_overrides(folder / "trace", total_steps)]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log)
        reader = CpuReader(process.pid)
        while process.poll() is None:
            if phases_file.exists():
                reader.read()
            time.sleep(READ_SECONDS)
    if process.returncode:
        raise SystemExit(f"the run ended with status {process.returncode}: see {folder}")
    return reader, [json.loads(line) for line in phases_file.read_text().splitlines()]


def list_profiler_overrides(folder: Path, step: int) -> list[str]:
    """Return the overrides by which verl records a step of the actor's process with torch.profiler."""
    actor = "actor_rollout_ref.actor.profiler"
    return [
        "global_profiler.tool=torch",
        f"global_profiler.steps=[{step}]",
        f"global_profiler.save_path={folder}",
        f"{actor}.enable=true",
        f"{actor}.tool_config.torch.contents=[cpu]",
    ]


def read_trace(folder: Path) -> list[dict[str, Any]]:
    """Return the events of the trace in a folder."""
    (file,) = folder.glob("*.json.gz")
    with gzip.open(file, "rt", encoding="utf-8") as text:
        events: list[dict[str, Any]] = json.load(text)["traceEvents"]
    return events


def describe_step(reader: CpuReader, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the typical step: its length, its bands, and the CPU time of each row of the picture.

    Args:
        reader: the readings of a run.
        rows: its phases.
    """
    phases = [Phase(row["name"], row["begin"], row["end"]) for row in rows]
    # The last step is torch.profiler's, and has no end.
    steps = split_steps(phases)[NUM_SKIPPED_STEPS:]
    typical = lay_out_typical_step(steps)
    lengths = [step[-1].end - step[0].begin for step in steps]
    edges_E = divide_into_bins(typical, typical[-1].end / NUM_BINS)
    curves = reader.list_curves(driver=rows[0]["pid"])
    processes = []
    for name in ROWS:
        own_curves = [curve for curve in curves if curve.name == name]
        if not own_curves:
            continue
        busy_cores = sum(compute_busy_cores(curve, edges_E, typical, steps) for curve in own_curves)
        in_bands = {
            band: sum(
                compute_cpu_seconds(curve, [part for step in steps for part in step if part.name == band])
                for curve in own_curves
            )
            / len(steps)
            for band in dict.fromkeys(part.name for part in typical)
        }
        processes.append(
            {
                "name": name,
                "processes": len(own_curves),
                "cpu_seconds": round(sum(in_bands.values()), 3),
                "cpu_seconds_by_phase": {band: round(seconds, 3) for band, seconds in in_bands.items()},
                "busy_cores": np.round(busy_cores, 3).tolist(),
            }
        )
    machine = make_curve("machine", reader.machine)
    return {
        "steps": len(steps),
        "seconds": round(statistics.median(lengths), 3),
        "quartiles": [round(value, 3) for value in statistics.quantiles(lengths, n=4)],
        "phases": [{"name": band.name, "begin": round(band.begin, 5), "end": round(band.end, 5)} for band in typical],
        "edges": edges_E.round(5).tolist(),
        "processes": processes,
        "machine_busy_cores": compute_busy_cores(machine, edges_E, typical, steps).round(3).tolist(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_run_options(parser)
    parser.add_argument("--out", type=Path, default=Path("outputs/profile"), help="folder of step.json and step.svg")
    options = parser.parse_args()
    if options.steps < NUM_SKIPPED_STEPS + 2:
        parser.error(f"--steps must be {NUM_SKIPPED_STEPS + 2} at least: the first {NUM_SKIPPED_STEPS} do not count")
    options.demo = options.demo.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="profile-step-"))  # stays, with the log, if the run fails
    reader, rows = train(options, folder)
    report = {
        "model": (options.model or options.demo / "sft").name,
        "batch": options.batch,
        "rollouts": options.rollouts,
        "response": options.response,
        "step": describe_step(reader, rows),
        "operators": rank_operators(read_trace(folder / "trace")),
    }
    shutil.rmtree(folder)
    with atomic_write(options.out / "step.json") as partial, open(partial, "w", encoding="utf-8") as file:
        print_report(report, file)
    draw(options.out / "step.json", options.out / "step.svg")
    print(options.out / "step.svg")


if __name__ == "__main__":
    main()
