"""Phase `step`: the recipe with the paper's batch and random weights of Qwen2.5-0.5B's shape; small without a GPU."""

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.data.chat import encode
from convrec.data.schema import RL_SCHEMA, conversation_text, split_prompt
from convrec.runs import guard
from convrec.runs.folder import RL_ENDED, read_metrics
from data_prep.sample import write_sample
from recipes.selftest.checks import HALF_B, TINY, CheckFailed, Machine, require, require_at_most
from recipes.tiny_model import read_texts

STEPS = 5
PROMPT_TOKENS = 400  # roughly those of a released prompt; prompts of the sample are shorter
MEASURED = ("timing_s/", "actor/perf/max_memory", "actor/rollout_diff", "actor/grad_norm")
PAPER = "Qwen2.5-0.5B's shape", HALF_B, {"TRAIN_BATCH_SIZE": "48", "ROLLOUT_N": "8", "MAX_RESPONSE_LENGTH": "256"}
SMALL = (
    "scaled down: no GPU",
    TINY | {"vocab_size": 2000},
    {"TRAIN_BATCH_SIZE": "4", "ROLLOUT_N": "2", "MAX_RESPONSE_LENGTH": "32"},
)


def check_step(machine: Machine) -> dict[str, Any]:
    """Run the recipe.

    Random weights end no list, so every response has the largest length.

    Returns:
        Medians over the steps after the first.

    Raises:
        CheckFailed: the recipe fails, or its rollout and actor differ too much.
    """
    data = write_sample(machine.folder / "data", counts={"train": 400, "validation": 16, "test": 16})
    size, shape, batch = PAPER if machine.gpus else SMALL
    model = machine.make_model(shape, read_texts([data / "train.parquet"]))
    train_file = data / "train.parquet"
    if machine.gpus:
        train_file = write_long_prompts(train_file, model)
    run = machine.folder / "run"
    devices = 1 if machine.gpus < 2 else 2
    variables = {
        "MODEL_PATH": str(model),
        "TRAIN_FILE": str(train_file),
        "VAL_FILE": str(data / "validation.parquet"),
        "CATALOG_FILE": str(data / "catalog.parquet"),
        "SAVE_PATH": str(run),
        "N_GPUS_PER_NODE": str(devices),
        **batch,
        "MAX_PROMPT_LENGTH": "512",
        "TOTAL_STEPS": str(STEPS),
        "SAVE_FREQ": str(STEPS),
        "TEST_FREQ": "1000",
        "LOGGER": "console,file",
    }
    removed = ("RAY_ADDRESS", guard.FOLDER_VARIABLE)
    environment = {name: value for name, value in os.environ.items() if name not in removed} | variables
    command = [sys.executable, "-m", "recipes", "train", "rank-grpo"]
    command += ["trainer.val_before_train=false", "data.val_max_samples=16"]
    # each worker is a process with its own imports: with eight of both, a start would take minutes
    command += ["actor_rollout_ref.rollout.agent.num_workers=2", "reward.num_workers=2"]
    done = subprocess.run(command, env=environment, stdout=sys.stderr, check=False)
    if done.returncode:
        log = run / "run.log"
        tail = log.read_text(errors="replace").splitlines()[-40:] if log.exists() else []
        print("\n".join(tail), file=sys.stderr)
        raise CheckFailed(f"the recipe ended with status {done.returncode}")
    figures = {"gpus": devices, "model and batch": size, **compute_figures(run)}
    require(figures["steps"] == STEPS, f"{figures['steps']} of {STEPS} steps have metrics")
    require_at_most("mean |log p_vllm - log p_actor|", figures["actor/rollout_diff_mean"], 0.05)
    return figures


def write_long_prompts(file: Path, model: Path) -> Path:
    """Write the rows of a sample with prompts of PROMPT_TOKENS tokens next to its file.

    Args:
        file: the sample's table.
        model: a folder with the tokenizer that counts.

    Returns:
        The new file.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = pq.read_table(file).to_pylist()
    rows = lengthen_prompts(rows, PROMPT_TOKENS, lambda text: len(encode(tokenizer, text)))
    long_file = file.with_name("long_prompts.parquet")
    pq.write_table(pa.Table.from_pylist(rows, RL_SCHEMA), long_file)
    return long_file


def lengthen_prompts(
    rows: Sequence[Mapping[str, Any]], num_tokens: int, count_tokens: Callable[[str], int]
) -> list[dict[str, Any]]:
    """Prepend the conversations of preceding rows to each row's own, until its prompt has `num_tokens`.

    Args:
        rows: of a sample; the last row precedes the first.
        num_tokens: smallest number of tokens in a prompt.
        count_tokens: counts the tokens of a text.
    """
    conversations = [conversation_text(row) for row in rows]
    counts = [count_tokens(text) for text in conversations]
    lengthened = []
    for place, row in enumerate(rows):
        (message,) = row["prompt"]
        instruction, conversation = split_prompt(message["content"])
        missing = num_tokens - count_tokens(message["content"])
        for distance in range(1, len(rows)):
            if missing <= 0:
                break
            earlier = (place - distance) % len(rows)
            conversation = conversations[earlier] + conversation
            missing -= counts[earlier]
        lengthened.append({**row, "prompt": [{**message, "content": instruction + conversation}]})
    return lengthened


def compute_figures(run: Path) -> dict[str, Any]:
    """Summarise the metrics of a run.

    Args:
        run: the run's folder.

    Returns:
        `steps`, the number of completed ones, and medians over those after the first: seconds, memory, differences.
    """
    rows = [row for row in read_metrics(run) if RL_ENDED in row]
    figures: dict[str, Any] = {"steps": len(rows)}
    for key in sorted({key for row in rows[1:] for key in row}):
        if key.startswith(MEASURED):
            figures[key] = statistics.median(float(row[key]) for row in rows[1:] if key in row)
    return figures
