"""The last stage: write the top N of each conversation as SFT demonstrations, and evaluate the lists."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from convrec.data.schema import RL_SCHEMA, SFT_SCHEMA, TRUTH
from convrec.lists.metrics import evaluate_row, summarise
from convrec.titles.item import Item, format_item
from data_prep.stages.record import Summary, read_rows
from data_prep.stages.rows import ADJUSTED, ROWS, load_matcher
from data_prep.tables import message, open_table_writer

FILES = {"train": "sft_train.parquet", "validation": "sft_validation.parquet"}


@dataclass(frozen=True)
class ListLength:
    """Settings that the demonstrations depend on: the number of items in a list."""

    num_items: int


def run(folder: Path, settings: ListLength) -> Summary:
    """Write the demonstrations, and evaluate them where there is ground truth.

    Args:
        folder: of the stages.
        settings: rows with fewer candidates than a list has items are left out.

    Returns:
        The summary of the stage.
    """
    matcher = load_matcher(folder)
    n = settings.num_items
    names = list(zip(matcher.catalog.titles, matcher.catalog.years, strict=True))
    written = dict.fromkeys(FILES, 0)
    short = 0
    scored: dict[str, list[tuple[str, dict]]] = {split: [] for split in FILES}
    columns = [*RL_SCHEMA.names, "split"]
    with ExitStack() as stack:
        add = {
            split: stack.enter_context(open_table_writer(folder / file, SFT_SCHEMA)) for split, file in FILES.items()
        }
        for row, entry in zip(read_rows(folder / ROWS, columns), read_rows(folder / ADJUSTED), strict=True):
            split = row.pop("split")
            items = [Item(*names[m]) for m in entry["candidates"][:n]]
            if len(items) < n:
                short += 1
                continue
            add[split](row | {"completion": message("assistant", "\n".join(format_item(*item) for item in items))})
            written[split] += 1
            if row[TRUTH]:
                metrics = evaluate_row(items, row[TRUTH], row["seen_titles"], matcher, ks=_choose_ks(n))
                scored[split].append((row["prompt"][0]["content"], metrics))
    summary: Summary = {**written, "too_few_candidates": short}
    for split, results in scored.items():
        if results:
            result = summarise([m for _, m in results], _choose_ks(n), [c for c, _ in results], num_items=n)
            summary[f"{split}_metrics"] = {
                name: [round(value["mean"], 4), round(value["se"], 4)] if isinstance(value, dict) else value
                for name, value in result.items()
            }
    return summary


def _choose_ks(num_items: int) -> tuple[int, ...]:
    return tuple(sorted({max(1, num_items // 2), num_items}))
