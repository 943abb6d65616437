"""Phase `step`: the recipe itself at the paper's batch, with a model of Qwen2.5-0.5B's shape and random weights."""

import os
import statistics
import subprocess
import sys
from typing import Any

from convrec.runs import guard
from convrec.runs.folder import read_metrics
from data_prep.sample import write_sample
from recipes.selftest.checks import HALF_B, CheckFailed, Machine, require, require_at_most

STEPS, PROMPTS, ROLLOUTS, NEW_TOKENS = 4, 48, 8, 256


def step(machine: Machine) -> dict[str, Any]:
    """Medians of the steps after the first. Random weights end no list: every response has `NEW_TOKENS` tokens."""
    from recipes.tiny_model import read_texts

    data = write_sample(machine.folder / "data", counts={"train": 400, "validation": 16, "test": 16})
    model = machine.model(HALF_B, read_texts([data / "train.parquet"]))
    run = machine.folder / "run"
    devices = 1 if machine.gpus < 2 else 2
    variables = {
        "MODEL_PATH": str(model),
        "TRAIN_FILE": str(data / "train.parquet"),
        "VAL_FILE": str(data / "validation.parquet"),
        "CATALOG_FILE": str(data / "catalog.parquet"),
        "SAVE_PATH": str(run),
        "N_GPUS_PER_NODE": str(devices),
        "TRAIN_BATCH_SIZE": str(PROMPTS),
        "ROLLOUT_N": str(ROLLOUTS),
        "MAX_PROMPT_LENGTH": "512",
        "MAX_RESPONSE_LENGTH": str(NEW_TOKENS),
        "TOTAL_STEPS": str(STEPS),
        "SAVE_FREQ": str(STEPS),
        "TEST_FREQ": "1000",
        "LOGGER": "console,file",
    }
    left_out = ("RAY_ADDRESS", guard.FOLDER_VARIABLE)
    environment = {name: value for name, value in os.environ.items() if name not in left_out} | variables
    command = [sys.executable, "-m", "recipes", "train", "rank-grpo"]
    command += ["trainer.val_before_train=false", "data.val_max_samples=16"]
    # each is a process with imports of its own, and eight of both make a start of minutes
    command += ["actor_rollout_ref.rollout.agent.num_workers=2", "reward.num_workers=2"]
    done = subprocess.run(command, env=environment, stdout=sys.stderr, check=False)
    if done.returncode:
        log = run / "run.log"
        tail = log.read_text(errors="replace").splitlines()[-40:] if log.exists() else []
        print("\n".join(tail), file=sys.stderr)
        raise CheckFailed(f"the recipe ended with status {done.returncode}")
    rows = [row for row in read_metrics(run) if "timing_s/step" in row]
    require(len(rows) == STEPS, f"{len(rows)} of {STEPS} steps have metrics")
    figures: dict[str, Any] = {"gpus": devices}
    for key in sorted({key for row in rows[1:] for key in row}):
        if key.startswith(("timing_s/", "actor/perf/max_memory", "actor/rollout_diff", "actor/grad_norm")):
            figures[key] = statistics.median(float(row[key]) for row in rows[1:] if key in row)
    require_at_most("mean |log p_vllm - log p_actor|", figures["actor/rollout_diff_mean"], 0.05)
    return figures
