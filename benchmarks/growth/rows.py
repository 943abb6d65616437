"""Growth with the rows of training: the datasets of RL and of SFT."""

import pickle
import random
from pathlib import Path
from typing import Any

from benchmarks.growth.files import READING
from benchmarks.growth.harness import SEED, Clock, Figures, Quantity, measure_seconds

GROUP_ROWS = 50_000  # written at once
ROW_BYTES = 1000
BATCH_ROWS = 16
SENTENCE = "I like slow films about trains and the people who miss them, please name some more of these. "
ANSWER = "\n".join(f"Heat ({year})" for year in range(1990, 2010))


def prepare_rows(size: int, files: Path) -> None:
    """Write `rows-SIZE.parquet`: rows of about ROW_BYTES of text, each with a number of its own."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from convrec.data.schema import SFT_SCHEMA

    if (files / f"rows-{size}.parquet").exists():
        return
    words = " ".join(random.Random(SEED).choices(SENTENCE.split(), k=ROW_BYTES))[:ROW_BYTES]
    with pq.ParquetWriter(files / f"rows-{size}.parquet", SFT_SCHEMA) as writer:
        for start in range(0, size, GROUP_ROWS):
            rows = [make_row(number, words) for number in range(start, min(start + GROUP_ROWS, size))]
            writer.write_table(pa.Table.from_pylist(rows, SFT_SCHEMA))


def make_row(number: int, words: str) -> dict[str, Any]:
    from convrec.data.schema import TRUTH, format_prompt

    return {
        "prompt": [{"role": "user", "content": format_prompt(f"USER: {number} {words}\n")}],
        "seen_titles": ["Alien"],
        TRUTH: [["Heat", "1995"]],
        "sample_id": f"row_{number:07d}",
        "completion": [{"role": "assistant", "content": ANSWER}],
    }


def measure_rows(size: int, files: Path, repeats: int) -> Figures:
    from convrec.training.dataset import ConvRecDataset

    return measure_dataset(ConvRecDataset, "dataframe", size, files, repeats)


def measure_demonstrations(size: int, files: Path, repeats: int) -> Figures:
    from convrec.training.dataset import DemonstrationDataset

    return measure_dataset(DemonstrationDataset, "table", size, files, repeats)


def measure_dataset(kind: Any, table_name: str, size: int, files: Path, repeats: int) -> Figures:
    """Return the figures of a dataset, which holds its table as `table_name`."""
    from omegaconf import OmegaConf

    from convrec.data.schema import format_prompt
    from convrec.training.dataset import draw_rows
    from recipes.tiny_model import train_tokenizer

    clock = Clock()
    tokenizer = train_tokenizer([format_prompt(SENTENCE) + ANSWER] * 40, vocab_size=1000)
    lengths = {"max_prompt_length": 2 * ROW_BYTES, "max_length": 2 * ROW_BYTES, "seed": 1}
    file = str(files / f"rows-{size}.parquet")
    dataset = clock.time("open_s", lambda: kind(file, tokenizer, OmegaConf.create(lengths)))
    rows = iter(random.Random(SEED).choices(range(size), k=100 * repeats))
    figures = {"row_ms": 1e3 * measure_seconds(lambda: dataset[next(rows)], 100 * repeats)}
    figures["first_batch_ms"] = 1e3 * measure_seconds(lambda: next(iter(make_loader(dataset))), repeats)
    state = advance_to_middle(size)
    figures["state_kib"] = len(pickle.dumps(state)) / 2**10
    figures["resume_ms"] = 1e3 * measure_seconds(lambda: next(iter(make_loader(dataset, state))), repeats)
    table = getattr(dataset, table_name)
    figures["draw_ms"] = 1e3 * measure_seconds(lambda: draw_rows(table, max(1, size // 100), seed=1), repeats)
    return clock.figures | figures


def make_loader(dataset: Any, state: dict[str, Any] | None = None) -> Any:
    """Return a loader as verl's trainer makes it, at the beginning of an epoch or where the state was taken."""
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import RandomSampler

    sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(1))
    loader = StatefulDataLoader(dataset, BATCH_ROWS, sampler=sampler, drop_last=True, collate_fn=list)
    if state is not None:
        loader.load_state_dict(state)
    return loader


def advance_to_middle(size: int) -> dict[str, Any]:
    """Return the state of a loader that has read half of its rows, which here are only numbers."""
    loader = make_loader(range(size))
    for _ in zip(range(size // BATCH_ROWS // 2), loader, strict=False):
        pass
    return loader.state_dict()


DATASETS = (*READING, "convrec.training.dataset", "torchdata.stateful_dataloader", "recipes.tiny_model")
QUANTITIES = {
    "rows": Quantity("rows of training", measure_rows, DATASETS, prepare_rows),
    "demonstrations": Quantity("rows of training", measure_demonstrations, DATASETS, prepare_rows),
}
