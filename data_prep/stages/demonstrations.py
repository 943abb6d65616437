"""The last stage: the top N of each conversation as a list, in the SFT table's columns, and how good the lists are."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from convrec.data.schema import RL_SCHEMA, SFT_SCHEMA, TRUTH
from convrec.lists.metrics import evaluate_row, summarise
from convrec.lists.ranks import Item, format_item
from data_prep.stages.record import Summary, read_blocks
from data_prep.stages.rows import ADJUSTED, ROWS, catalog_matcher
from data_prep.tables import message, parquet_writer

FILES = {"train": "sft_train.parquet", "validation": "sft_validation.parquet"}
BLOCK = 4096


def run(folder: Path, settings: dict[str, Any]) -> Summary:
    """settings: num_items. Rows with fewer candidates than a list are left out."""
    matcher, n = catalog_matcher(folder), settings["num_items"]
    names = list(zip(matcher.catalog.titles, matcher.catalog.years, strict=True))
    written, short = dict.fromkeys(FILES, 0), 0
    scored: dict[str, list[tuple[str, dict]]] = {split: [] for split in FILES}
    columns = [*RL_SCHEMA.names, "split"]
    with (
        parquet_writer(folder / FILES["train"], SFT_SCHEMA) as train,
        parquet_writer(folder / FILES["validation"], SFT_SCHEMA) as validation,
    ):
        writers = {"train": train, "validation": validation}
        for rows, kept in zip(
            read_blocks(folder / ROWS, BLOCK, columns), read_blocks(folder / ADJUSTED, BLOCK), strict=True
        ):
            rows_of: dict[str, list[dict]] = {split: [] for split in FILES}
            for row, entry in zip(rows, kept, strict=True):
                split, items = row.pop("split"), [names[m] for m in entry["candidates"][:n]]
                if len(items) < n:
                    short += 1
                    continue
                text = "\n".join(format_item(title, year) for title, year in items)
                rows_of[split].append(row | {"completion": message("assistant", text)})
                if row[TRUTH]:
                    answer = [Item(title, year) for title, year in items]
                    metrics = evaluate_row(answer, row[TRUTH], row["seen_titles"], matcher, ks=_ks(n))
                    scored[split].append((row["prompt"][0]["content"], metrics))
            for split, rows_of_split in rows_of.items():
                writers[split].write_table(pa.Table.from_pylist(rows_of_split, SFT_SCHEMA))
                written[split] += len(rows_of_split)
    summary: Summary = {**written, "too_few_candidates": short}
    for split, results in scored.items():
        if results:
            result = summarise([m for _, m in results], _ks(n), [c for c, _ in results], num_items=n)
            summary[f"{split}_metrics"] = {
                name: [round(value["mean"], 4), round(value["se"], 4)] if isinstance(value, dict) else value
                for name, value in result.items()
            }
    return summary


def _ks(num_items: int) -> tuple[int, ...]:
    return tuple(sorted({max(1, num_items // 2), num_items}))
