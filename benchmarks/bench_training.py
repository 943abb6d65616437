"""Start-up, step time and memory of Rank-GRPO against its peers: same model, data, sizes and host. Prints JSON.

python benchmarks/bench_training.py --demo outputs/demo [--steps 12] [--batch 16] [--rollouts 8] [--rounds 1]
    [--runs ours grpo stock bare trl paper] [--peers FOLDER] [--evaluate 200]

--demo is a folder that `make demo` has left: its data and its SFT model are trained on. --model: another model, at the
recipe's learning rate, so that it goes on to write lists of the same length. The runs:

ours    run_rank_grpo.sh with ALGORITHM=rank_grpo
grpo    the same with ALGORITHM=grpo
stock   verl's own trainer, worker, loss, replay buffer and vLLM server with only what a CPU host cannot do without
        (benchmarks/stock_grpo.py), started as ours is
bare    the same started as verl's own command does
trl     GRPO by TRL's trainer (benchmarks/trl_grpo.py)
paper   Rank-GRPO by the paper's own code (benchmarks/paper_grpo.py)

One run after the other, in --rounds turns; start nothing else meanwhile. `runs` has the figures of each round, of steps
without the first two. `to` has the ratios of ours to each other run, step time and time to the first rollout: medians
of the rounds, with the least and the most. `estimate_MiB` is what the doctor says that ours needs.

--peers is the folder that benchmarks/peers_environment.sh has made, for trl and paper. They generate by Transformers,
all responses of a step at once, and pass them through the model in micro-batches of --micro-batch responses. They get
the rows with their prompts already shortened.

--whole-responses: every response has --response tokens. Without it those of a model that has not been trained on lists
end where chance has it, and the runs do not compute as much as each other.

--evaluate N: the models of the last round write greedy lists for the first N conversations of the test split.
`evaluation` has NDCG at the length of a list, of the start as well. verl's own trainer leaves no model for that.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.machine import ROOT, print_report
from benchmarks.meters import summarise_ratios
from benchmarks.peers import SAVED_MODEL, write_job
from benchmarks.processes import run_logged
from benchmarks.training_run import (
    IGNORE_EOS,
    TRAIN_RANK_GRPO,
    WITHOUT_VALIDATION,
    make_data_variables,
    make_run_variables,
    read_dtype,
    read_estimate,
    time_run,
)

RUNS = ("ours", "grpo", "stock", "bare", "trl", "paper")
PROMPT_TOKENS = 256
DEMO_LEARNING_RATE = "2e-4"  # of the demo's model
NUM_ITEMS = 20  # of a list, as in the demo's data
METRIC = f"ndcg@{NUM_ITEMS}"


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
        **({} if options.model else {"LR": DEMO_LEARNING_RATE}),
        "TRAIN_BATCH_SIZE": str(options.batch),
        "ROLLOUT_N": str(options.rollouts),
        "MAX_PROMPT_LENGTH": str(PROMPT_TOKENS),
        "MAX_RESPONSE_LENGTH": str(options.response),
        "ALGORITHM": algorithm,
    }


def make_command(kind: str, options: argparse.Namespace, variables: dict[str, str]) -> list[str]:
    """Return the command of a run, and add to its variables what only this kind needs."""
    benchmarks = ROOT / "benchmarks"
    if kind in ("trl", "paper"):
        job = str(write_job({**os.environ, **variables}, options.micro_batch, options.whole_responses))
        variables["HF_HUB_OFFLINE"] = "1"  # TRL sends telemetry
        if kind == "trl":
            variables["PYTHONPATH"] = os.pathsep.join([str(options.peers / "trl"), str(ROOT)])
            return [sys.executable, str(benchmarks / "trl_grpo.py"), job]
        variables["PYTHONPATH"] = str(ROOT)
        return [str(options.peers / "paper" / "venv" / "bin" / "python"), str(benchmarks / "paper_grpo.py"), job]
    if kind in ("stock", "bare"):
        bare = ["--bare"] if kind == "bare" else []
        if not bare:
            variables["RAY_AUTH_MODE"] = "token"  # of our Ray; it reads this when the script imports verl
        return [sys.executable, str(benchmarks / "stock_grpo.py"), *bare, WITHOUT_VALIDATION]
    return [*TRAIN_RANK_GRPO, WITHOUT_VALIDATION, *([IGNORE_EOS] if options.whole_responses else [])]


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `make_variables` reads."""
    parser.add_argument("--demo", type=Path, required=True, help="folder that `make demo` has left")
    parser.add_argument("--model", type=Path, help="model to train (default: the demo's SFT model)")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=16, help="prompts per step (default 16)")
    parser.add_argument("--rollouts", type=int, default=8, help="responses per prompt (default 8)")
    parser.add_argument("--response", type=int, default=100, help="tokens of a response at most (default 100)")


def compare(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Compare ours with each other run, round by round.

    Args:
        runs: kind -> figures of `time_run` of each round.

    Returns:
        kind -> "step" and "first_rollout" -> ratio of ours to it: "median", "least" and "most" of the rounds.
    """
    of_ours = runs.get("ours", ())
    return {
        kind: {
            "step": summarise_ratios(_step_seconds(of_ours), _step_seconds(figures)),
            "first_rollout": summarise_ratios(_start_seconds(of_ours), _start_seconds(figures)),
        }
        for kind, figures in runs.items()
        if kind != "ours" and of_ours
    }


def _step_seconds(rounds: Iterable[Mapping[str, Any]]) -> list[float]:
    return [one["step_seconds"]["step"] for one in rounds]


def _start_seconds(rounds: Iterable[Mapping[str, Any]]) -> list[float]:
    return [one["seconds_to_first_rollout"] for one in rounds]


def evaluate(kinds: Sequence[str], options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return NDCG of the start's greedy lists and of each run's, with the gain over the start, paired by conversation.

    Args:
        kinds: of RUNS, trained in `folder`.
    """
    models = {"start": options.model or options.demo / "sft"}
    for kind in kinds:
        saved = folder / kind / SAVED_MODEL
        models[kind] = saved if saved.exists() else folder / kind
    data = options.demo / "data"
    command = [sys.executable, "-m", "recipes", "evaluate", "--data", data / "test.parquet"]
    command += ["--catalog", data / "catalog.parquet", "--limit", options.evaluate, "--baselines"]
    command += ["--num-items", NUM_ITEMS, "--max-prompt-length", PROMPT_TOKENS, "--max-response-length"]
    command += [options.response]
    found: dict[str, Any] = {}
    for name, model in models.items():
        out = folder / f"evaluation-{name}"
        against = ["--against", folder / "evaluation-start"] if found else []
        run_logged(
            [str(part) for part in [*command, "--model", model, "--out", out, *against]], out.with_suffix(".log")
        )
        metrics = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
        found[name] = {METRIC: metrics["results"]["paper"]["model"][METRIC]}
        if against:
            found[name]["gain"] = metrics["paired"][METRIC]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_run_options(parser)
    parser.add_argument("--runs", nargs="+", default=["ours", "stock"], choices=RUNS)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--micro-batch", type=int, default=16)
    parser.add_argument("--whole-responses", action="store_true")
    parser.add_argument("--evaluate", type=int, metavar="CONVERSATIONS", help="(none)")
    options = parser.parse_args()
    if options.steps < 4:
        parser.error("--steps must be 4 at least: the first two are left out, and quartiles need two")
    if {"trl", "paper"} & set(options.runs) and options.peers is None:
        parser.error("--runs trl and paper need --peers FOLDER")
    if options.whole_responses and {"stock", "bare"} & set(options.runs):
        parser.error("--whole-responses: --runs stock and bare have no such setting")
    if options.evaluate and {"stock", "bare"} & set(options.runs):
        parser.error("--evaluate: --runs stock and bare leave no model that can be evaluated")
    options.demo = options.demo.resolve()
    options.peers = options.peers and options.peers.resolve()
    folder = Path(tempfile.mkdtemp(prefix="bench-training-"))  # of a run that fails it stays, with the log
    runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in options.runs}
    for number in range(options.rounds):
        for kind in options.runs:
            if number:
                shutil.rmtree(folder / kind)
            runs[kind].append(train(kind, options, folder))
            print(json.dumps({kind: runs[kind][-1]}), file=sys.stderr, flush=True)
    described = {name: getattr(options, name) for name in ("batch", "rollouts", "response", "steps")}
    report: dict[str, Any] = {**described, "runs": runs, "to": compare(runs)}
    if "ours" in runs:
        report["dtype"] = read_dtype(folder / "ours")
        report["estimate_MiB"] = sum(read_estimate(folder / "ours").values()) >> 20
    if options.evaluate:
        report["evaluation"] = evaluate(options.runs, options, folder)
    shutil.rmtree(folder)
    print_report(report)


if __name__ == "__main__":
    main()
