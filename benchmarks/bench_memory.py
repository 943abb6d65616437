"""Peak memory of training steps on a CPU against what the plan estimates. Prints JSON.

    python benchmarks/bench_memory.py --model FOLDER --data data/sample [--tokens 1024 2048 3072] [--rows 5]
    python benchmarks/bench_memory.py --model FOLDER --data data/sample --rl [--rows 4] [--rollouts 4] [--steps 1]

Trains SFT at each of these micro-batches, or Rank-GRPO, each step on the first --rows rows of the data. Adam's moments
are there from the second step on. Memory is PSS of all processes of the run, read every --interval seconds: what
processes share counts once. `parts` are what the doctor adds up.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.machine import ROOT, print_report
from benchmarks.processes import iter_process_tree, read_pss
from benchmarks.training_run import WITHOUT_VALIDATION, make_data_variables, read_estimate

MIB = 2**20


def watch(process: subprocess.Popen[bytes], interval: float) -> dict[str, int]:
    """Return MiB by process name at the moment at which all of them together held most."""
    peak: dict[str, int] = {}
    while process.poll() is None:
        held: dict[str, int] = {}
        for each in iter_process_tree(process.pid):
            with contextlib.suppress(psutil.Error):
                name = each.name() if each.pid != process.pid else "driver"
                held[name] = held.get(name, 0) + read_pss(each) // MIB
        if sum(held.values()) > sum(peak.values()):
            peak = held
        print(time.monotonic(), sum(held.values()), file=sys.stderr)
        time.sleep(interval)
    return peak


def train(options: argparse.Namespace, folder: Path, tokens: int | None) -> dict[str, Any]:
    """One run of one step.

    Args:
        options: of the command line.
        folder: for the run.
        tokens: of a micro-batch; None: what the run chooses.
    """
    prefix = "" if options.rl else "sft_"
    first = pq.read_table(options.data / f"{prefix}train.parquet").slice(0, options.rows)
    pq.write_table(first, folder / "train.parquet")
    variables = {
        **make_data_variables(options.data.resolve(), prefix),
        "TRAIN_FILE": folder / "train.parquet",
        "MODEL_PATH": options.model.resolve(),
        "SAVE_PATH": folder / "run",
        "TRAIN_BATCH_SIZE": options.rows,
        "TOTAL_STEPS": options.steps,
        "LOGGER": "console,file",
    }
    if options.rl:
        variables |= {"ROLLOUT_N": options.rollouts, "TEST_FREQ": -1}
        variables |= {"MAX_PROMPT_LENGTH": 512, "MAX_RESPONSE_LENGTH": options.response}
        overrides = [WITHOUT_VALIDATION]
        key = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
    else:
        variables |= {"MAX_LENGTH": 1024}
        overrides = ["data.val_max_samples=1"]
        key = "data.max_token_len_per_gpu"
    if tokens:
        overrides.append(f"{key}={tokens}")
    environment = os.environ | {name: str(value) for name, value in variables.items()}
    command = [sys.executable, "-m", "recipes", "train", "rank-grpo" if options.rl else "sft", *overrides]
    start = time.monotonic()
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=output, stderr=output)
        peak = watch(process, options.interval)
    if process.returncode:
        raise SystemExit(f"status {process.returncode}: {(folder / 'output').read_text()[-2000:]}")
    parts = {name: part // MIB for name, part in read_estimate(folder / "run").items() if part}
    return {
        "tokens": tokens,
        "seconds": round(time.monotonic() - start),
        "peak_MiB": sum(peak.values()),
        "estimate_MiB": sum(parts.values()),
        "processes": peak,
        "parts": parts,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 2048, 3072])
    parser.add_argument("--rl", action="store_true")
    parser.add_argument("--rows", type=int, default=5, help="sequences (SFT) or prompts (RL) of a step")
    parser.add_argument("--rollouts", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--response", type=int, default=256)
    parser.add_argument("--interval", type=float, default=0.5)
    options = parser.parse_args()
    runs = []
    for tokens in options.tokens:
        with tempfile.TemporaryDirectory(prefix="bench-memory-") as folder:
            runs.append(train(options, Path(folder), tokens))
            print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    print_report({"runs": runs})


if __name__ == "__main__":
    main()
