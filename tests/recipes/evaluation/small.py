"""A few conversations as evaluation reads them, and answers to them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.data.schema import CATALOG_SCHEMA, RL_SCHEMA, format_prompt

FILMS = {"Alien": 1979, "Heat": 1995, "Toy Story": 1995, "Jaws": 1975}


def row(
    sample_id: str,
    conversation: str,
    truth: Sequence[str] = (),
    seen: Sequence[str] = (),
    films: Mapping[str, Any] = FILMS,
) -> dict[str, Any]:
    """truth: titles of films."""
    return {
        "prompt": [{"role": "user", "content": format_prompt(f"USER: {conversation}\n", 3)}],
        "seen_titles": list(seen),
        "groundtruth_with_release_year": [[title, str(films[title])] for title in truth],
        "sample_id": sample_id,
    }


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    pq.write_table(pa.Table.from_pylist(list(rows), RL_SCHEMA), path)
    return str(path)


def write_catalog(path: Path, films: Mapping[str, int] = FILMS) -> str:
    catalog = [{"title": title, "year": year} for title, year in films.items()]
    pq.write_table(pa.Table.from_pylist(catalog, CATALOG_SCHEMA), path)
    return str(path)


def generated(*texts: str, first: int = 0) -> list[tuple[int, dict[str, Any]]]:
    """A batch of convrec.inference with these texts as answers to the prompts from `first` on."""
    other = {"token_ids": [1, 2], "finish_reason": "stop", "prompt_tokens": 9, "prompt_truncated": False}
    return [(index, {"text": text, **other}) for index, text in enumerate(texts, first)]
