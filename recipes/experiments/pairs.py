"""Two variants compared conversation by conversation."""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from convrec.lists.metrics import paired
from recipes.evaluation.beyond_accuracy import figures_of


def pairs(table: Sequence[Mapping[str, Any]], out: Path, k: int, num_items: int) -> list[dict[str, Any]]:
    """Each two variants with the same seeds, or of which the earlier has one, as a start: the later minus the earlier.

    Conversation by conversation, a conversation's value being its mean over the seeds; se and p are over conversations.
    A row that one seed lacks is left out. Differences between seeds are not in them: table.md has those. num_items:
    different items of the catalog.
    """
    names = (f"recall@{k}", f"ndcg@{k}")
    rows_of_run = {row["run"]: _rows(out, row["run"]) for row in table}
    runs_of_variant: dict[str, dict[Any, str]] = {}
    for row in table:
        runs_of_variant.setdefault(row["variant"], {})[row["seed"]] = row["run"]

    def rows_of(variant: str) -> dict[tuple[str, str], dict[str, float]]:
        seeds = [
            {key: [row[name] for name in names] for key, row in rows_of_run[run].items()}
            for run in runs_of_variant[variant].values()
        ]
        of_all = [key for key in seeds[0] if all(key in rows for rows in seeds)]
        means = {key: np.mean([np.array(rows[key], float) for rows in seeds], axis=0) for key in of_all}
        return {key: dict(zip(names, values, strict=True)) for key, values in means.items()}

    differences_of_pairs = []
    for first, second in itertools.combinations(runs_of_variant, 2):
        seeds_of_first, seeds = runs_of_variant[first].keys(), runs_of_variant[second].keys()
        if seeds_of_first != seeds and len(seeds_of_first) > 1:
            continue
        a, b = rows_of(first), rows_of(second)
        shared = [key for key in a if key in b]
        shared = [key for key in shared if not math.isnan(a[key][names[0]])]  # rows with ground truth
        contexts = [key[1] for key in shared]
        differences = paired([a[key] for key in shared], [b[key] for key in shared], [k], contexts)
        pair: dict[str, Any] = {"variant": second, "minus": first, "seeds": len(seeds)}
        for name in names:
            pair |= {f"{name} {what}": differences[name][what] for what in ("mean", "se", "p")}
        before, after = (
            [[rows_of_run[run][key] for key in shared] for run in runs_of_variant[variant].values()]
            for variant in (first, second)
        )
        for name, of in figures_of(after, contexts, num_items, minus=before).items():
            pair |= {f"{name} {what}": of[what] for what in ("mean", "se")}
        differences_of_pairs.append(pair)
    return differences_of_pairs


def _rows(out: Path, run: str) -> dict[tuple[str, str], dict[str, Any]]:
    rows = pq.read_table(out / "evaluation" / run / "rows.parquet").to_pylist()
    return {(row["sample_id"], row["prompt_id"]): row for row in rows}
