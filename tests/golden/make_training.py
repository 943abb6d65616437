"""Record what deterministic training runs compute, or compare with what was recorded: tests/golden/training/*.json.

    python tests/golden/make_training.py WORK             # write the files of all cases
    python tests/golden/make_training.py WORK --check     # compare; exit status 1 where a run differs
    python tests/golden/make_training.py WORK --check free repair

Each case is a run of a few steps through the scripts that users start, with `convrec.deterministic=true`, from models
that this command trains first (WORK/start; kept, so that later calls start at once). A file holds every metric that a
run logs, except times, and a digest of the exported weights after its last step.

On the machine type that recorded a file, both are equal to the last bit, except what is not deterministic:

    times and memory                          left out (MEASURED)
    log-probs of the rollout                  vLLM adds numbers in an order that depends on which requests meet in a
                                              batch: metrics of them are compared within NOISE, and so is everything in
                                              the cases where they weigh the loss (`is_exact=False`). Their standard
                                              deviation is a difference of float32 numbers near 1: 3e-4 is none
    `separate_async`, dynamic sampling        a step trains on the prompts whose rollouts are there first, which is a
                                              matter of time: only the names of their metrics are compared (`by_name`)

Other processors add numbers in another order: there all metrics are compared within TOLERANCE, and no digest is.
"""

import argparse
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file

from convrec.runs.folder import latest_step, read_metrics

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).with_name("training")
TOLERANCE = 2e-2
NOISE = 1e-4
# Times and memory, and what is computed from them.
MEASURED = ("timing_s/", "timing_per_token_ms/", "perf/", "actor/perf/", "train/mfu", "train/perf/", "actor/mfu")
# Logged in the steps in which it happens, which is a matter of time.
MEASURED += ("training/filter_groups/discarded_",)
ROLLOUT_LOG_PROBS = ("actor/rollout_diff", "training/rollout_", "rollout_corr/")
DEVIATION = "rollout_corr/rollout_is_std"
DEVIATION_NOISE = 1e-3
STEPS = "3"
CORRECTION = "algorithm.rollout_correction"


@dataclass(frozen=True)
class Case:
    """A run to record.

    Attributes:
        script: the shell script that starts it.
        start: model folder below WORK/start that it trains from.
        data: folder below WORK/start with its files.
        variables: environment variables of the run, beside those of `common_variables`.
        overrides: Hydra overrides.
        is_exact: whether two runs are equal to the last bit.
        by_name: whether two runs have only the names of their metrics in common.
    """

    script: str = "run_rank_grpo.sh"
    start: str = "sft"
    data: str = "data"
    variables: dict[str, str] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    is_exact: bool = True
    by_name: bool = False


ASKING = {"ASK": "genre,decade", "MAX_PROMPT_LENGTH": "320"}
JUDGE = {"MAX_PROMPT_LENGTH": "256", "MAX_RESPONSE_LENGTH": "24", "TRAIN_BATCH_SIZE": "8", "LR": "1e-4"}

CASES = {
    "sft": Case("run_sft.sh", "model", variables={"TRAIN_BATCH_SIZE": "8", "LR": "4e-3", "MAX_LENGTH": "384"}),
    "free": Case(),
    "constrained": Case(variables={"CONSTRAINED": "1"}),
    "asking": Case(start="asking_sft", data="asking_data", variables=ASKING),
    "asking_constrained": Case(start="asking_sft", data="asking_data", variables={**ASKING, "CONSTRAINED": "1"}),
    "repair": Case(variables={"REPAIR": "zero"}),
    "repair_constrained": Case(variables={"REPAIR": "zero", "CONSTRAINED": "1"}),
    "repair_mu_2": Case(variables={"REPAIR": "zero", "MU": "2"}),
    "rewards_normalised": Case(variables={"REWARDS": "relevance: 1, diversity: 0.3, novelty: 0.1"}),
    "rewards_sum": Case(
        variables={"REWARDS": "relevance: 1, diversity: 0.3"}, overrides=("convrec.reward_combination=sum",)
    ),
    "grpo": Case(variables={"ALGORITHM": "grpo"}),
    "gspo": Case(variables={"ALGORITHM": "gspo"}),
    "mu_2": Case(variables={"MU": "2"}),
    "mask_truncated": Case(overrides=("convrec.mask_truncated=true",)),
    "rollout_is_rank": Case(overrides=(f"{CORRECTION}.rollout_is=rank",), is_exact=False),
    "rollout_is_token_repair": Case(
        variables={"REPAIR": "zero"}, overrides=(f"{CORRECTION}.rollout_is=token",), is_exact=False
    ),
    "bypass": Case(overrides=(f"{CORRECTION}.bypass_mode=true",), is_exact=False),
    "reference": Case(variables={"PRESET": "reference"}),
    "dynamic_sampling": Case(
        overrides=("algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=reward"), by_name=True
    ),
    "separate_async": Case(
        variables={"TOTAL_STEPS": "2", "SAVE_FREQ": "2", "TEST_FREQ": "2"},
        overrides=("+scale=separate_async_cpu",),
        by_name=True,
    ),
    "separate_async_repair": Case(
        variables={"TOTAL_STEPS": "2", "SAVE_FREQ": "2", "TEST_FREQ": "2", "REPAIR": "zero"},
        overrides=("+scale=separate_async_cpu",),
        by_name=True,
    ),
    "judge_pointwise": Case(
        "recipes/judge/run_pointwise.sh", "judge_sft", "judge_data/pointwise", {**JUDGE, "ROLLOUT_N": "4"}
    ),
    "judge_pairwise": Case(
        "recipes/judge/run_pairwise.sh", "judge_sft", "judge_data/pairwise", {**JUDGE, "ROLLOUT_N": "4"}
    ),
    "judge_pairwise_consistent": Case(
        "recipes/judge/run_pairwise.sh",
        "judge_sft",
        "judge_data/both_orders",
        {**JUDGE, "ROLLOUT_N": "4"},
        ("convrec.orders=consistent",),
    ),
    "judge_pairwise_together": Case(
        "recipes/judge/run_pairwise.sh",
        "judge_sft",
        "judge_data/both_orders",
        {**JUDGE, "ROLLOUT_N": "4"},
        ("convrec.orders=together",),
    ),
}


def convrec(*arguments: object) -> None:
    """Run a command of the project, quietly."""
    command = [sys.executable, "-m", "recipes", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stdout}{done.stderr}")


def train(script: str, run_folder: Path, overrides: tuple[str, ...] = (), **variables: str) -> None:
    """Run a training script into `run_folder`; SystemExit with the end of its log where it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment |= {"PYTHON": sys.executable, "SAVE_PATH": str(run_folder), **variables}
    command = ["bash", str(ROOT / script), *overrides]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        log = run_folder / "run.log"
        tail = log.read_text(errors="replace")[-3000:] if log.exists() else ""
        raise SystemExit(f"{run_folder.name}: status {done.returncode}\n{done.stderr}\n{tail}")


def sft(folder: Path, model: Path, train_file: Path, validation_file: Path, steps: int, max_length: int) -> None:
    """Train a start model that writes well-formed answers."""
    train(
        "run_sft.sh",
        folder,
        MODEL_PATH=str(model),
        TRAIN_FILE=str(train_file),
        VAL_FILE=str(validation_file),
        LR="4e-3",
        TRAIN_BATCH_SIZE="16",
        TOTAL_EPOCHS="1000",
        MAX_LENGTH=str(max_length),
        **dict.fromkeys(("TOTAL_STEPS", "SAVE_FREQ", "TEST_FREQ"), str(steps)),
    )


def make_start(start: Path) -> None:
    """Make data and models that the cases train from, each once."""
    rows = ("--train", 400, "--validation", 40, "--test", 40)
    if not (start / "data").exists():
        convrec("data", "sample", "--out", start / "data", *rows)
        convrec("tiny-model", "--data", start / "data", "--out", start / "model")
    if not latest_step(start / "sft"):
        data = start / "data"
        sft(start / "sft", start / "model", data / "sft_train.parquet", data / "sft_validation.parquet", 150, 384)
    if not latest_step(start / "asking_sft"):
        data = start / "asking_data"
        if not data.exists():
            convrec("data", "sample", "--out", data, *rows, "--ask", "genre", "decade")
            convrec("tiny-model", "--data", data, "--out", start / "asking_model")
        files = (data / "sft_train.parquet", data / "sft_validation.parquet")
        sft(start / "asking_sft", start / "asking_model", *files, 150, 448)
    if not latest_step(start / "judge_sft"):
        make_judge_start(start)


def make_judge_start(start: Path) -> None:
    """Make preferences, ratings and a judge that knows both forms of a verdict."""
    data = start / "judge_data"
    if not data.exists():
        convrec("data", "judge-sample", "--out", data, "--count", 400)
    for split in ("train", "validation"):
        tables = []
        for mode in ("pairwise", "pointwise"):
            file = start / f"{mode}_{split}.parquet"
            if not file.exists():
                source = data / mode / f"{split}.parquet"
                convrec("data", "judge-demonstrations", "--mode", mode, "--data", source, "--out", file)
            tables.append(pq.read_table(file))
        pq.write_table(pa.concat_tables(tables), start / f"judge_{split}.parquet")
    write_both_orders(data)
    if not (start / "judge_model").exists():
        files = ("--data", start / "judge_train.parquet", "--judge", "--vocab-size", 1024, "--num-layers", 2)
        convrec("tiny-model", *files, "--tie-word-embeddings", "--out", start / "judge_model")
    sft(
        start / "judge_sft",
        start / "judge_model",
        start / "judge_train.parquet",
        start / "judge_validation.parquet",
        80,
        160,
    )


def write_both_orders(data: Path) -> None:
    """Write the pairwise rows, each followed by itself with its two responses swapped."""
    folder = data / "both_orders"
    folder.mkdir(exist_ok=True)
    shutil.copy(data / "pairwise" / "validation.parquet", folder)
    table = pq.read_table(data / "pairwise" / "train.parquet")
    rows = []
    for row in table.to_pylist():
        rows += [row, swap_responses(row)]
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), folder / "train.parquet")


def swap_responses(row: dict[str, Any]) -> dict[str, Any]:
    """Return a pairwise row with its responses, and so its label, the other way around."""
    swapped = json.loads(json.dumps(row))
    swapped["output"].reverse()
    for output in swapped["output"]:
        label = output["answer"]["label"]
        label["preference"] = {"A": "B", "B": "A"}[label["preference"]]
    return swapped


def common_variables(case: Case, start: Path) -> dict[str, str]:
    """Return the variables that all runs share: files, sizes and how often they save and validate."""
    data = start / case.data
    prefix = "sft_" if case.script == "run_sft.sh" else ""
    variables = {
        "MODEL_PATH": str(start / case.start),
        "TRAIN_FILE": str(data / f"{prefix}train.parquet"),
        "VAL_FILE": str(data / f"{prefix}validation.parquet"),
        "TOTAL_STEPS": STEPS,
        "SAVE_FREQ": "2",
        "TEST_FREQ": "2",
        "TOTAL_EPOCHS": "100",
    }
    if case.script == "run_rank_grpo.sh":
        variables |= {
            "CATALOG_FILE": str(data / "catalog.parquet"),
            "TRAIN_BATCH_SIZE": "8",
            "ROLLOUT_N": "4",
            "LR": "1e-3",
            "MAX_PROMPT_LENGTH": "256",
            "MAX_RESPONSE_LENGTH": "128",
            "KL_LOSS_COEF": "0.01",
        }
    return variables | case.variables


def record(name: str, work: Path) -> dict[str, Any]:
    """Run a case and return its metrics by step and the digest of its weights."""
    case = CASES[name]
    run_folder = work / "runs" / name
    shutil.rmtree(run_folder, ignore_errors=True)
    is_sft = case.script == "run_sft.sh"
    overrides = case.overrides if is_sft else ("convrec.deterministic=true", "data.val_max_samples=16", *case.overrides)
    train(case.script, run_folder, overrides, **common_variables(case, work / "start"))
    steps = [
        {name: value for name, value in sorted(row.items()) if not name.startswith(MEASURED)}
        for row in read_metrics(run_folder)
    ]
    return {"weights": weights_digest(run_folder), "steps": steps}


def weights_digest(run_folder: Path) -> str:
    """Return the SHA-256 of the exported weights of the newest checkpoint, by name, type, shape and bytes."""
    folder = run_folder / f"global_step_{latest_step(run_folder)}"
    digest = hashlib.sha256()
    tensors: dict[str, torch.Tensor] = {}
    for file in folder.rglob("huggingface/*.safetensors"):
        tensors |= load_file(file)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    if not tensors:
        raise SystemExit(f"{folder}: no exported weights")
    return digest.hexdigest()


def machine() -> dict[str, Any]:
    """Return what decides in which order a processor adds numbers."""
    model = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    return {
        "processor": model.partition(":")[2].strip(),
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
    }


def differences(expected: dict[str, Any], computed: dict[str, Any], tolerance: float) -> list[str]:
    """Return a line for each value that differs.

    Args:
        expected: what a file holds.
        computed: what a run gave.
        tolerance: relative and absolute; 0: to the last bit, except the rollout's log-probs. Infinite: names only.
    """
    lines = []
    if not tolerance and expected["weights"] != computed["weights"]:
        lines.append("weights: another digest")
    if len(expected["steps"]) != len(computed["steps"]):
        return [*lines, f"{len(computed['steps'])} rows of metrics, expected {len(expected['steps'])}"]
    for before, now in zip(expected["steps"], computed["steps"], strict=True):
        step = before["step"]
        missing = sorted(before.keys() - now.keys())
        added = sorted(now.keys() - before.keys())
        lines += [f"step {step}: {name} is missing" for name in missing]
        lines += [f"step {step}: {name} is new" for name in added]
        for name in sorted(before.keys() & now.keys()):
            noise = NOISE if name.startswith(ROLLOUT_LOG_PROBS) else 0.0
            if name == DEVIATION:
                noise = DEVIATION_NOISE
            if not is_close(before[name], now[name], max(tolerance, noise)):
                lines.append(f"step {step}: {name} is {now[name]!r}, expected {before[name]!r}")
    return lines


def is_close(expected: Any, computed: Any, tolerance: float) -> bool:
    """Whether two logged values agree. Tolerance 0 compares exactly; NaN equals NaN."""
    if math.isinf(tolerance):
        return True
    if isinstance(expected, float) and isinstance(computed, (int, float)):
        if math.isnan(expected):
            return math.isnan(computed)
        return math.isclose(expected, computed, rel_tol=tolerance, abs_tol=tolerance)
    return bool(expected == computed)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("work", type=Path, help="folder for data, models and runs")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--check", action="store_true", help="compare with the recorded files instead of writing them")
    options = parser.parse_intermixed_args()
    work = options.work.resolve()
    make_start(work / "start")
    failed = 0
    for name in options.cases or CASES:
        file = GOLDEN / f"{name}.json"
        # json: what is compared has gone through the same rounding as the file
        computed = json.loads(json.dumps(record(name, work)))
        if not options.check:
            GOLDEN.mkdir(exist_ok=True)
            file.write_text(json.dumps({"machine": machine(), **computed}, indent=1) + "\n")
            print(f"{name}: written", flush=True)
            continue
        expected = json.loads(file.read_text())
        exact = 0.0 if CASES[name].is_exact else NOISE
        tolerance = exact if expected["machine"] == machine() else TOLERANCE
        if CASES[name].by_name:
            tolerance = math.inf
        lines = differences(expected, computed, tolerance)
        failed += bool(lines)
        print(f"{name}: " + ("\n  ".join(["DIFFERS", *lines[:40]]) if lines else "equal"), flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
