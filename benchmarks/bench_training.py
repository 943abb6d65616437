"""Start-up, step time and memory of Rank-GRPO against its peers: same model, data, sizes and host. Prints JSON.

python benchmarks/bench_training.py --demo outputs/demo [--steps 12] [--batch 16] [--rollouts 8] [--rounds 1]
    [--runs ours grpo stock bare trl paper] [--trl FOLDER] [--paper FOLDER]

--demo is a folder that `make demo` has left: its data and its SFT model (or --model) are trained on. The runs:

ours    run_rank_grpo.sh with ALGORITHM=rank_grpo
grpo    the same with ALGORITHM=grpo
stock   verl's own trainer, worker, loss, replay buffer and vLLM server with only what a CPU host cannot do without
        (benchmarks/stock_grpo.py), started as ours is
bare    the same started as verl's own command does
trl     GRPO by TRL's trainer (benchmarks/trl_grpo.py). `pip install --no-deps --target FOLDER trl==1.16.0` makes the
        folder of --trl
paper   Rank-GRPO by the paper's own code (benchmarks/paper_grpo.py). benchmarks/paper_environment.sh makes the folder
        of --paper

One run after the other, in --rounds turns; start nothing else meanwhile. Step times leave out the first two steps, and
are of the last round; `starts` has the seconds to the first rollout of all. `ratio` is ours against stock,
`ratio_to_trl` and `ratio_to_paper` against these; `estimate_MiB` what the doctor says this run needs.

trl and paper generate by Transformers, all responses of a step at once, and pass them through the model in
micro-batches of --micro-batch responses. They get the rows with their prompts already shortened.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from omegaconf import DictConfig, OmegaConf

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.machine import print_report
from benchmarks.peers import write_job
from convrec.runs.folder import read_metrics
from convrec.settings.run import Run
from recipes.planning import estimate, memory

ROOT = Path(__file__).resolve().parent.parent
RUNS = ("ours", "grpo", "stock", "bare", "trl", "paper")
RATIOS = {"ratio": "stock", "ratio_to_trl": "trl", "ratio_to_paper": "paper"}  # ours against each
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


class Watcher(threading.Thread):
    """Looks at the descendants of a process: when each began, and every MEMORY_SECONDS what memory it holds.

    Not more often: looking takes most of a core for a third of a second.
    """

    def __init__(self, pid: int, start: float) -> None:
        super().__init__(daemon=True)
        self.root, self.start_time = psutil.Process(pid), start
        self.began: dict[str, float] = {}
        self.peak: dict[str, int] = {}
        self.total = 0
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(MEMORY_SECONDS):
            now: dict[str, int] = {}
            for process in [self.root, *self.root.children(recursive=True)]:
                try:
                    title = (process.cmdline() or [process.name()])[0].split("(")[0] + " " + process.name()
                    memory, began = process.memory_full_info().pss, process.create_time() - self.start_time
                except psutil.Error:
                    continue
                name = next((what for key, what in MILESTONES.items() if key in title), None)
                if name:
                    self.began[name] = min(began, self.began.get(name, began))
                name = name or ("driver" if process.pid == self.root.pid else "the rest")
                now[name] = now.get(name, 0) + memory
            for name, memory in now.items():
                self.peak[name] = max(memory, self.peak.get(name, 0))
            self.total = max(self.total, sum(now.values()))


def train(kind: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One run: seconds to each milestone and to the first rollout, medians of the parts of a step, peak memory."""
    environment = make_environment(options, folder / kind, "rank_grpo" if kind == "ours" else "grpo")
    command = make_command(kind, options, environment)
    start = time.time()
    with open(folder / f"{kind}.log", "wb") as log:
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log)
        watcher = Watcher(process.pid, start)
        watcher.start()
        first_step = None
        while process.poll() is None:
            rows = read_metrics(folder / kind) if first_step is None else []
            if rows:
                first_step = time.time() - start
            time.sleep(0.2)
    watcher.done.set()
    if process.returncode or first_step is None:
        full_log = next(file for file in (folder / kind / "run.log", folder / f"{kind}.log") if file.exists())
        raise SystemExit(f"{kind} ended with status {process.returncode}: see {full_log}")
    steps = [row for row in read_metrics(folder / kind) if "timing_s/step" in row]
    medians = {
        part: round(statistics.median(row[f"timing_s/{part}"] for row in steps[2:]), 3)
        for part in PARTS
        if all(f"timing_s/{part}" in row for row in steps[2:])
    }
    times = [row["timing_s/step"] for row in steps[2:]]
    return {
        # the first step waits for the agent loop to be there: a later one's length tells when rollouts began
        "seconds_to_first_rollout": round(first_step - medians["step"], 1),
        "seconds_to": {name: round(at, 1) for name, at in sorted(watcher.began.items(), key=lambda item: item[1])},
        "seconds_in_all": round(time.time() - start, 1),
        "step_seconds": medians,
        "step_quartiles": [round(value, 3) for value in statistics.quantiles(times, n=4)],
        "response_tokens": round(statistics.median(row["response_length/mean"] for row in steps), 1),
        "peak_MiB": {name: memory >> 20 for name, memory in sorted(watcher.peak.items())},
        "peak_MiB_in_all": watcher.total >> 20,
    }


def make_environment(options: argparse.Namespace, run_folder: Path, algorithm: str) -> dict[str, str]:
    """Return the variables of a run: those of this process, the data and sizes of the options.

    Args:
        options: demo, model, batch, rollouts, response and steps.
        run_folder: its SAVE_PATH.
        algorithm: its ALGORITHM.
    """
    data = options.demo / "data"
    return {
        **os.environ,
        "PYTHON": sys.executable,
        "TRAIN_FILE": str(data / "train.parquet"),
        "VAL_FILE": str(data / "validation.parquet"),
        "CATALOG_FILE": str(data / "catalog.parquet"),
        "MODEL_PATH": str(options.model or options.demo / "sft"),
        "SAVE_PATH": str(run_folder),
        "TRAIN_BATCH_SIZE": str(options.batch),
        "ROLLOUT_N": str(options.rollouts),
        "MAX_PROMPT_LENGTH": "256",
        "MAX_RESPONSE_LENGTH": str(options.response),
        "TOTAL_STEPS": str(options.steps),
        "SAVE_FREQ": str(options.steps + 1),
        "TEST_FREQ": str(options.steps + 1),
        "LR": "2e-4",
        "KL_LOSS_COEF": "0.001",
        "LOGGER": "console,file",
        "ALGORITHM": algorithm,
    }


def make_command(kind: str, options: argparse.Namespace, environment: dict[str, str]) -> list[str]:
    """Return the command of a run, and add to its environment what only this kind needs."""
    benchmarks = ROOT / "benchmarks"
    if kind in ("trl", "paper"):
        job = str(write_job(environment, options.micro_batch))
        environment["HF_HUB_OFFLINE"] = "1"  # TRL sends telemetry
        if kind == "trl":
            environment["PYTHONPATH"] = os.pathsep.join([str(options.trl.resolve()), str(ROOT)])
            return [sys.executable, str(benchmarks / "trl_grpo.py"), job]
        environment["PYTHONPATH"] = str(ROOT)
        return [str(options.paper.resolve() / "venv" / "bin" / "python"), str(benchmarks / "paper_grpo.py"), job]
    overrides = ["trainer.val_before_train=false"]
    if kind in ("stock", "bare"):
        bare = ["--bare"] if kind == "bare" else []
        return [sys.executable, str(benchmarks / "stock_grpo.py"), *bare, *overrides]
    return ["bash", str(ROOT / "run_rank_grpo.sh"), *overrides]


def estimate_of(run: Path) -> int:
    """Bytes of host memory that the doctor estimates for a run on a CPU."""
    config = OmegaConf.load(run / "config.yaml")
    assert isinstance(config, DictConfig)
    this_run: Run[Any] = Run.from_config(config)
    return estimate.host_bytes(memory.host_workload(this_run))


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `make_environment` reads."""
    parser.add_argument("--demo", type=Path, required=True, help="folder that `make demo` has left")
    parser.add_argument("--model", type=Path, help="model to train (default: the demo's SFT model)")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=16, help="prompts per step (default 16)")
    parser.add_argument("--rollouts", type=int, default=8, help="responses per prompt (default 8)")
    parser.add_argument("--response", type=int, default=100, help="tokens of a response at most (default 100)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_run_options(parser)
    parser.add_argument("--runs", nargs="+", default=["ours", "stock"], choices=RUNS)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--trl", type=Path)
    parser.add_argument("--paper", type=Path)
    parser.add_argument("--micro-batch", type=int, default=16)
    options = parser.parse_args()
    if options.steps < 4:
        parser.error("--steps must be 4 at least: the first two are left out, and quartiles need two")
    for kind in ("trl", "paper"):
        if kind in options.runs and getattr(options, kind) is None:
            parser.error(f"--runs {kind} needs --{kind} FOLDER")
    options.demo = options.demo.resolve()
    folder = Path(tempfile.mkdtemp(prefix="bench-training-"))  # of a run that fails it stays, with the log
    report = {"cores": len(psutil.Process().cpu_affinity()), "batch": options.batch, "rollouts": options.rollouts}
    report["starts"] = {kind: [] for kind in options.runs}
    for number in range(options.rounds):
        for kind in options.runs:
            if number:
                shutil.rmtree(folder / kind)
            report[kind] = train(kind, options, folder)
            report["starts"][kind].append(report[kind]["seconds_to_first_rollout"])
    if "ours" in report:
        report["estimate_MiB"] = estimate_of(folder / "ours") >> 20
    shutil.rmtree(folder)
    for name, kind in RATIOS.items():
        if {"ours", kind} <= set(report):
            report[name] = round(report["ours"]["step_seconds"]["step"] / report[kind]["step_seconds"]["step"], 3)
    print_report(report)


if __name__ == "__main__":
    main()
