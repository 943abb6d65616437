"""Growth of a whole step of Rank-GRPO with its lists, the prompts, the catalog and the rows: runs of the demo's model.

Each size is a run of its own; its start and its first steps do not count. All responses have RESPONSE_TOKENS tokens,
about as many as the demo's lists: with `ignore_eos` their length does not change with the prompts.
"""

import random
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.growth.harness import SEED, Figures, Quantity

ROLLOUTS = 8
LISTS = 32  # of a step, where something else grows
PROMPT_TOKENS = 256  # at most, where something else grows
RESPONSE_TOKENS = 48
CONTEXT_TOKENS = 4096
TIMED_STEPS = 3  # at least
LONG_PROMPTS = 256  # different ones of each length


# ---- files


def prepare_model(size: int, files: Path) -> None:
    """Write FILES/long-model: the demo's SFT model with CONTEXT_TOKENS positions.

    Rotary positions have no weights, so a step costs what it costs with the demo's model.
    """
    from convrec.base.files import read_json, write_json
    from convrec.checkpoints.models import resolve_model

    model = files / "long-model"
    if model.exists():
        return
    shutil.copytree(resolve_model(files / "demo" / "sft"), model)
    config = read_json(model / "config.json")
    write_json(model / "config.json", config | {"max_position_embeddings": CONTEXT_TOKENS})


def prepare_prompts(size: int, files: Path) -> None:
    """Write `prompts-SIZE.parquet`: rows of the demo whose prompts have `size` tokens, or a word fewer."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from convrec.data.tokenizer import load_tokenizer

    prepare_model(size, files)
    tokenizer, _ = load_tokenizer(str(files / "long-model"))
    table = pq.read_table(files / "demo" / "data" / "train.parquet").slice(0, LONG_PROMPTS)
    prompts = [fill_prompt(prompt, tokenizer, size) for prompt in table["prompt"].to_pylist()]
    column = table.schema.get_field_index("prompt")
    longer = table.set_column(column, "prompt", pa.array(prompts, table.schema.field(column).type))
    pq.write_table(longer, files / f"prompts-{size}.parquet")


def fill_prompt(prompt: list[dict[str, str]], tokenizer: Any, num_tokens: int) -> list[dict[str, str]]:
    """Repeat a prompt's conversation and cut its oldest words, as a run does, so that it has this many tokens.

    Args:
        prompt: one user message.
        tokenizer: the model's.
        num_tokens: of the rendered prompt, at most. It may lack a word and its speaker.
    """
    from convrec.data.chat import encode, fit_prompt
    from convrec.data.schema import split_prompt

    instruction, conversation = split_prompt(prompt[0]["content"])
    copies = num_tokens // len(encode(tokenizer, conversation)) + 1
    return fit_prompt(tokenizer, [{**prompt[0], "content": instruction + copies * conversation}], num_tokens)


def prepare_titles(size: int, files: Path) -> None:
    """Write `titles-SIZE.parquet`: the demo's catalog, filled up with generated titles."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from benchmarks.generated import generate_catalog

    prepare_model(size, files)
    catalog = pq.read_table(files / "demo" / "data" / "catalog.parquet", columns=["title", "year"])
    added = generate_catalog(size - len(catalog), random.Random(SEED))
    generated = pa.table({"title": added.titles, "year": added.years}, schema=catalog.schema)
    pq.write_table(pa.concat_tables([catalog, generated]), files / f"titles-{size}.parquet")


def prepare_rows(size: int, files: Path) -> None:
    """Write `demo-rows-SIZE.parquet`: the demo's rows of training, over and over."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    prepare_model(size, files)
    table = pq.read_table(files / "demo" / "data" / "train.parquet")
    rows = table.take(np.arange(size) % len(table))
    names = pa.array([f"row_{number:07d}" for number in range(size)])
    pq.write_table(
        rows.set_column(rows.schema.get_field_index("sample_id"), "sample_id", names),
        files / f"demo-rows-{size}.parquet",
    )


# ---- runs


def measure_lists(size: int, files: Path, repeats: int) -> Figures:
    return measure_step(files, repeats, TRAIN_BATCH_SIZE=str(size // ROLLOUTS))


def measure_prompts(size: int, files: Path, repeats: int) -> Figures:
    prompts = str(files / f"prompts-{size}.parquet")
    return measure_step(files, repeats, TRAIN_FILE=prompts, MAX_PROMPT_LENGTH=str(size))


def measure_titles(size: int, files: Path, repeats: int) -> Figures:
    return measure_step(files, repeats, CATALOG_FILE=str(files / f"titles-{size}.parquet"))


def measure_rows(size: int, files: Path, repeats: int) -> Figures:
    return measure_step(files, repeats, TRAIN_FILE=str(files / f"demo-rows-{size}.parquet"))


def measure_step(files: Path, repeats: int, **variables: str) -> Figures:
    """Train the demo's model; return the median seconds of a step and of its parts.

    Args:
        files: folder with `demo` and `long-model`.
        repeats: steps that are timed.
        variables: of the run, where they differ from those of the other sizes.
    """
    from benchmarks.training_run import (
        IGNORE_EOS,
        TRAIN_RANK_GRPO,
        WARM_UP_STEPS,
        WITHOUT_VALIDATION,
        make_data_variables,
        make_run_variables,
        time_run,
    )
    from convrec.runs.folder import read_metrics

    with tempfile.TemporaryDirectory(dir=files) as folder:
        run = Path(folder) / "run"
        steps = WARM_UP_STEPS + max(TIMED_STEPS, repeats)
        found = time_run(
            [*TRAIN_RANK_GRPO, WITHOUT_VALIDATION, IGNORE_EOS],
            {
                **make_data_variables(files / "demo" / "data"),
                **make_run_variables(run, files / "long-model", steps),
                "ALGORITHM": "rank_grpo",
                "TRAIN_BATCH_SIZE": str(LISTS // ROLLOUTS),
                "ROLLOUT_N": str(ROLLOUTS),
                "MAX_PROMPT_LENGTH": str(PROMPT_TOKENS),
                "MAX_RESPONSE_LENGTH": str(RESPONSE_TOKENS),
                **variables,
            },
            Path(folder) / "log",
        )
        prompt_tokens = [row["prompt_length/mean"] for row in read_metrics(run) if "prompt_length/mean" in row]
    seconds = found["step_seconds"]
    return {
        "step_s": seconds["step"],
        **{f"{part}_s": value for part, value in seconds.items() if part != "step"},
        "prompt_tokens": statistics.median(prompt_tokens),
        "response_tokens": found["response_tokens"],
        "first_rollout_s": found["seconds_to_first_rollout"],
        "mib": found["peak_MiB_in_all"],
    }


RUN = ("benchmarks.training_run",)
QUANTITIES = {
    "step_lists": Quantity(
        "lists of a step",
        measure_lists,
        RUN,
        prepare_model,
        smallest=ROLLOUTS,
        largest=128,
        factor=2,
        needs_demo=True,
        environment={},
    ),
    "step_prompts": Quantity(
        "tokens of a prompt",
        measure_prompts,
        RUN,
        prepare_prompts,
        smallest=128,
        largest=2048,
        factor=2,
        needs_demo=True,
        environment={},
    ),
    "step_titles": Quantity(
        "titles of the catalog",
        measure_titles,
        RUN,
        prepare_titles,
        smallest=2000,  # the demo has 1,087
        largest=200_000,
        needs_demo=True,
        environment={},
    ),
    "step_rows": Quantity(
        "rows of training",
        measure_rows,
        RUN,
        prepare_rows,
        largest=100_000,
        needs_demo=True,
        environment={},
    ),
}
