"""A start that can read a list, as a pretrained model can: tables of the retrieval study (notes/retrieval.md).

A model made from nothing does not learn in 300 steps to write titles of its prompt. It does where its output words are
its input words (tied embeddings), and where it was first taught on lists of drawn titles, most of them short.
"""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.data.schema import CANDIDATES_LINE, CONVERSATION_MARKER, with_candidates
from convrec.files import folder_written_whole
from convrec.retrieval.retriever import fuse

LENGTHS = ((2, 8), (2, 8), (2, 8), (20, 50))  # titles in a prompt
DRAWN = {"sft_train": 10, "sft_validation": 1}  # prompts of a conversation


def write_lists(data: Path, lines: Sequence[str], num_items: int, out: Path, seed: int = 3407) -> None:
    """OUT: prompts of DATA's tables for SFT that name drawn titles, and the first `num_items` of them as the answer."""
    drawn = random.Random(seed)

    def rows_of(row: dict[str, Any], count: int) -> list[dict[str, Any]]:
        lists = [drawn.sample(lines, drawn.randint(*drawn.choice(LENGTHS))) for _ in range(count)]
        return [_answered(row, with_candidates(_prompt(row), titles), titles[:num_items]) for titles in lists]

    _write(data, out, rows_of)


def write_demonstrations(data: Path, num_items: int, out: Path) -> None:
    """OUT: DATA's tables for SFT, each list fused with the candidates of its prompt, both alike: what a teacher who
    reads the candidates might write."""

    def rows_of(row: dict[str, Any], _: int) -> list[dict[str, Any]]:
        named = _prompt(row).partition(CANDIDATES_LINE)[2].partition(CONVERSATION_MARKER)[0].splitlines()
        written = row["completion"][0]["content"].splitlines()
        lines = [*dict.fromkeys([*written, *named])]
        fused = fuse([[lines.index(line) for line in one] for one in (written, named)], (0.5, 0.5), 10)
        return [_answered(row, _prompt(row), [lines[item] for item in fused[:num_items]])]

    _write(data, out, rows_of)


def _prompt(row: dict[str, Any]) -> str:
    return row["prompt"][0]["content"]


def _answered(row: dict[str, Any], prompt: str, lines: Sequence[str]) -> dict[str, Any]:
    (asked,), (answer,) = row["prompt"], row["completion"]
    completion = [answer | {"content": "\n".join(lines)}]
    return row | {"prompt": [asked | {"content": prompt}], "completion": completion}


def _write(data: Path, out: Path, rows_of: Callable[[dict[str, Any], int], list[dict[str, Any]]]) -> None:
    with folder_written_whole(out) as partial:
        for name, count in DRAWN.items():
            table = pq.read_table(data / f"{name}.parquet")
            rows = [new for row in table.to_pylist() for new in rows_of(row, count)]
            pq.write_table(pa.Table.from_pylist(rows, table.schema), partial / f"{name}.parquet")
