"""A training run that a benchmark starts on a demo's data: its variables, the seconds of its steps, its memory."""

import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from omegaconf import DictConfig, OmegaConf

from benchmarks.machine import ROOT
from benchmarks.processes import iter_process_tree, read_pss
from convrec.runs.folder import read_metrics
from convrec.settings.run import Run
from recipes.planning import estimate, memory

WARM_UP_STEPS = 2  # left out: the first waits for the agent loop, and engines and allocators warm up
MEMORY_SECONDS = 10.0
PARTS = ("gen", "reward", "old_log_prob", "ref", "adv", "update_actor", "update_weights", "step")
MILESTONES = {  # a process whose title holds this has begun -> what begins with it
    "gcs_server": "Ray",
    "TransferQueueController": "TransferQueue",
    "WorkerDict": "FSDP worker",
    "vllm_server": "vLLM server",
    "VLLM::EngineCore": "vLLM engine",
    "AgentLoopWorker": "agent loop",
}
TRAIN_RANK_GRPO = ("bash", str(ROOT / "run_rank_grpo.sh"))
IGNORE_EOS = "actor_rollout_ref.rollout.ignore_eos=true"
WITHOUT_VALIDATION = "trainer.val_before_train=false"


def make_data_variables(data: Path, prefix: str = "") -> dict[str, str]:
    """Return the variables that name the tables of a demo.

    Args:
        data: the demo's folder `data`.
        prefix: "sft_" for demonstrations.
    """
    return {
        "TRAIN_FILE": str(data / f"{prefix}train.parquet"),
        "VAL_FILE": str(data / f"{prefix}validation.parquet"),
        "CATALOG_FILE": str(data / "catalog.parquet"),
    }


def make_run_variables(run: Path, model: Path, steps: int) -> dict[str, str]:
    """Return the variables of a run of so many steps that does not validate, and saves after its last step."""
    return {
        "PYTHON": sys.executable,
        "MODEL_PATH": str(model),
        "SAVE_PATH": str(run),
        "TOTAL_STEPS": str(steps),
        "SAVE_FREQ": str(steps + 1),
        "TEST_FREQ": "-1",
        "LOGGER": "console,file",
    }


class Watcher(threading.Thread):
    """Looks at the descendants of a process: when each began, and every MEMORY_SECONDS what memory it holds.

    Not more often: looking takes most of a core for a third of a second.
    """

    def __init__(self, pid: int, start: float) -> None:
        super().__init__(daemon=True)
        self.pid, self.start_time = pid, start
        self.began: dict[str, float] = {}
        self.peak: dict[str, int] = {}
        self.total = 0
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(MEMORY_SECONDS):
            held: dict[str, int] = {}
            for process in iter_process_tree(self.pid):
                try:
                    title = (process.cmdline() or [process.name()])[0].split("(")[0] + " " + process.name()
                    began = process.create_time() - self.start_time
                except psutil.Error:
                    continue
                name = next((what for key, what in MILESTONES.items() if key in title), None)
                if name:
                    self.began[name] = min(began, self.began.get(name, began))
                name = name or ("driver" if process.pid == self.pid else "the rest")
                held[name] = held.get(name, 0) + read_pss(process)
            for name, memory_bytes in held.items():
                self.peak[name] = max(memory_bytes, self.peak.get(name, 0))
            self.total = max(self.total, sum(held.values()))


def time_run(command: Sequence[str], variables: Mapping[str, str], log: Path) -> dict[str, Any]:
    """Run a training to its end.

    Args:
        command: starts it.
        variables: of its environment; SAVE_PATH is the run's folder.
        log: gets its output.

    Returns:
        Seconds to each milestone and to the first rollout, medians of the parts of a step without the warm-up, peak
        memory.
    """
    run = Path(variables["SAVE_PATH"])
    start = time.time()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env={**os.environ, **variables}, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT
        )
        watcher = Watcher(process.pid, start)
        watcher.start()
        first_step = None
        while process.poll() is None:
            rows = read_metrics(run) if first_step is None else []
            if rows:
                first_step = time.time() - start
            time.sleep(0.2)
    watcher.done.set()
    if process.returncode or first_step is None:
        full_log = next(file for file in (run / "run.log", log) if file.exists())
        end = full_log.read_text(errors="replace")[-2000:]
        raise SystemExit(f"{run.name} ended with status {process.returncode}: see {full_log}\n{end}")
    steps = [leave_out_checkpoint(row) for row in read_metrics(run) if "timing_s/step" in row]
    timed = steps[WARM_UP_STEPS:]
    medians = {
        part: round(statistics.median(row[f"timing_s/{part}"] for row in timed), 3)
        for part in PARTS
        if all(f"timing_s/{part}" in row for row in timed)
    }
    times = [row["timing_s/step"] for row in timed]
    return {
        # the first step waits for the agent loop to be there: a later one's length tells when rollouts began
        "seconds_to_first_rollout": round(first_step - medians["step"], 1),
        "seconds_to": {name: round(at, 1) for name, at in sorted(watcher.began.items(), key=lambda item: item[1])},
        "seconds_in_all": round(time.time() - start, 1),
        "step_seconds": medians,
        "step_quartiles": [round(value, 3) for value in statistics.quantiles(times, n=4)],
        "response_tokens": round(statistics.median(row["response_length/mean"] for row in steps), 1),
        "peak_MiB": {name: memory_bytes >> 20 for name, memory_bytes in sorted(watcher.peak.items())},
        "peak_MiB_in_all": watcher.total >> 20,
    }


def leave_out_checkpoint(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of a step without the time of its checkpoint, which the last step of a run always writes."""
    seconds = metrics["timing_s/step"] - metrics.get("timing_s/save_checkpoint", 0.0)
    return {**metrics, "timing_s/step": seconds}


def read_dtype(run: Path) -> str:
    """Return the dtype of a run's passes."""
    config = OmegaConf.load(run / "config.yaml")
    return str(OmegaConf.select(config, "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype"))


def read_estimate(run: Path) -> dict[str, int]:
    """Return the host memory that the plan estimates for a run on a CPU: part -> bytes."""
    config = OmegaConf.load(run / "config.yaml")
    assert isinstance(config, DictConfig)
    loaded: Run[Any] = Run.from_config(config)
    return estimate.host_parts(memory.host_workload(loaded))
