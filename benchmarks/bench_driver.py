"""Memory and CPU of what the driver does beside the steps, over a run of 16,000 of them: metrics, samples, validations.

    python benchmarks/bench_driver.py --steps 16000        JSON on stdout

Each step logs as many metrics as a real one to the run's trackers, every 100th has a validation with its samples, and
the progress bar is told as in a real run. Nothing is trained.
"""

import argparse
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.machine import print_report
from convrec.checkpoints import saving
from convrec.runs.folder import next_metrics_file
from convrec.runs.phases import Phases
from convrec.training.trackers import tracking
from recipes.launch.console import Console, progress, redirect_output

METRICS = 150  # of a step of Rank-GRPO with 20 ranks
VALIDATION_STEPS, SAMPLES, SAMPLE_CHARACTERS = 100, 10, 2500
PARTS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=16_000)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        rows = list(simulate(Path(folder), steps))
    print_report({"steps": steps, "parts": rows})


def simulate(run: Path, steps: int) -> Iterator[dict[str, float]]:
    """A dict for each eighth of the steps: memory in MiB, CPU and wall-clock milliseconds a step."""
    os.environ["VERL_FILE_LOGGER_PATH"] = str(next_metrics_file(run))
    os.environ |= tracking.make_tracker_environment(run, "bench", os.environ)
    console, values, phases = Console(), random.Random(0), Phases(300)
    with redirect_output(run / "run.log"), progress(console, run, steps, "bench", {"rank_grpo/dcg": "DCG"}):
        trackers = tracking.open_trackers(run, "convrec", "bench", ["console", "file", "tensorboard"], {})
        samples = tracking.open_samples_logger(run, "convrec", "bench")
        cpu, begin = time.process_time(), time.monotonic()
        for step in range(1, steps + 1):
            metrics = {f"rank_grpo/metric_{i}": values.random() for i in range(METRICS)} | {"rank_grpo/dcg": 1.0}
            for name in ("gen", "old_log_prob", "ref", "adv", "update_actor", "update_weights"):
                with phases.phase(name):
                    phases.overdue()
            if step % VALIDATION_STEPS == 0:
                metrics |= {f"val/metric_{i}": values.random() for i in range(METRICS)} | {"val/ndcg": values.random()}
                samples.log(["tensorboard"], [("x" * SAMPLE_CHARACTERS, "y" * 500, 0.5)] * SAMPLES, step)
                saving.note_validation(run, step, metrics)
            trackers.log(data=metrics, step=step)
            if step % (steps // PARTS) == 0:
                resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
                used = (time.process_time() - cpu, time.monotonic() - begin)
                per_step = [round(1000 * seconds / (steps // PARTS), 3) for seconds in used]
                yield {"step": step, "mib": round(resident), "cpu_ms": per_step[0], "wall_ms": per_step[1]}
                cpu, begin = time.process_time(), time.monotonic()


if __name__ == "__main__":
    main()
