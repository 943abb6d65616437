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
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.machine import ROOT, print_report
from benchmarks.peers import write_job
from benchmarks.training_run import (
    TRAIN_RANK_GRPO,
    WITHOUT_VALIDATION,
    make_data_variables,
    make_run_variables,
    read_estimate,
    time_run,
)

RUNS = ("ours", "grpo", "stock", "bare", "trl", "paper")
RATIOS = {"ratio": "stock", "ratio_to_trl": "trl", "ratio_to_paper": "paper"}  # ours against each


def train(kind: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train one of RUNS; return the figures of `time_run`."""
    variables = make_variables(options, folder / kind, "rank_grpo" if kind == "ours" else "grpo")
    command = make_command(kind, options, variables)
    return time_run(command, variables, folder / f"{kind}.log")


def make_variables(options: argparse.Namespace, run: Path, algorithm: str) -> dict[str, str]:
    """Return the variables of a run.

    Args:
        options: those of `add_run_options`.
        run: its SAVE_PATH.
        algorithm: its ALGORITHM.
    """
    return {
        **make_data_variables(options.demo / "data"),
        **make_run_variables(run, options.model or options.demo / "sft", options.steps),
        "TRAIN_BATCH_SIZE": str(options.batch),
        "ROLLOUT_N": str(options.rollouts),
        "MAX_PROMPT_LENGTH": "256",
        "MAX_RESPONSE_LENGTH": str(options.response),
        "ALGORITHM": algorithm,
    }


def make_command(kind: str, options: argparse.Namespace, variables: dict[str, str]) -> list[str]:
    """Return the command of a run, and add to its variables what only this kind needs."""
    benchmarks = ROOT / "benchmarks"
    if kind in ("trl", "paper"):
        job = str(write_job({**os.environ, **variables}, options.micro_batch))
        variables["HF_HUB_OFFLINE"] = "1"  # TRL sends telemetry
        if kind == "trl":
            variables["PYTHONPATH"] = os.pathsep.join([str(options.trl.resolve()), str(ROOT)])
            return [sys.executable, str(benchmarks / "trl_grpo.py"), job]
        variables["PYTHONPATH"] = str(ROOT)
        return [str(options.paper.resolve() / "venv" / "bin" / "python"), str(benchmarks / "paper_grpo.py"), job]
    if kind in ("stock", "bare"):
        bare = ["--bare"] if kind == "bare" else []
        if not bare:
            variables["RAY_AUTH_MODE"] = "token"  # of our Ray; it reads this when the script imports verl
        return [sys.executable, str(benchmarks / "stock_grpo.py"), *bare, WITHOUT_VALIDATION]
    return [*TRAIN_RANK_GRPO, WITHOUT_VALIDATION]


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `make_variables` reads."""
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
        report["estimate_MiB"] = sum(read_estimate(folder / "ours").values()) >> 20
    shutil.rmtree(folder)
    for name, kind in RATIOS.items():
        if {"ours", kind} <= set(report):
            report[name] = round(report["ours"]["step_seconds"]["step"] / report[kind]["step_seconds"]["step"], 3)
    print_report(report)


if __name__ == "__main__":
    main()
