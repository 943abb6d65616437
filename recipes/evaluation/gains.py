"""How much models gain over the first of several evaluations of one split, row by row, from their rows.parquet."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from convrec.lists.metrics import paired
from convrec.report.page import GainTable
from convrec.statistics import FLIPS
from recipes.evaluation.results import rows_of

_CAPTION = (
    "{n} rows, {contexts} conversations. Standard errors by bootstrap over conversations. p: two-sided, of each metric "
    "alone, by {flips:,} sign flips of whole conversations, so that {least:.4f} is the least."
)


def gain_tables(evaluations: Mapping[str, Path], ks: Sequence[int], seed: int) -> list[GainTable]:
    """A table for each further evaluation (name -> OUT of recipes.evaluate), a row a metric; [] of fewer than two.

    Raises UserError when the rows of one are gone.
    """
    if len(evaluations) < 2:
        return []
    (reference, rows), *others = ((name, rows_of(folder)) for name, folder in evaluations.items())
    in_all = set(rows).intersection(*(model_rows for _, model_rows in others))
    samples = [sample for sample, row in rows.items() if sample in in_all and row["num_truth"]]
    conversations = [rows[sample]["prompt_id"] for sample in samples]
    before = [rows[sample] for sample in samples]
    differences: dict[str, dict[str, Any]] = {
        name: paired(before, [model_rows[sample] for sample in samples], ks, conversations, seed)
        for name, model_rows in others
    }
    caption = _CAPTION.format(n=len(samples), contexts=len(set(conversations)), flips=FLIPS, least=1 / (1 + FLIPS))
    metrics = [f"{metric}@{k}" for metric in ("ndcg", "recall") for k in sorted(ks, reverse=True)]
    return [
        GainTable(f"{name} minus {reference}", {title_of(metric): gains_of_name[metric] for metric in metrics}, caption)
        for name, gains_of_name in differences.items()
    ]


def title_of(metric: str) -> str:
    """`NDCG@20` of `ndcg@20`."""
    name, _, k = metric.partition("@")
    return f"{'NDCG' if name == 'ndcg' else name.capitalize()}@{k}"
