"""A judge's answers -> a line a row, its metrics, and its difference from another judge's evaluation."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from convrec.errors import UserError
from convrec.judges.criteria import Scores
from convrec.judges.metrics import Summary, comparison_metrics, pairwise_summary, pointwise_summary
from convrec.judges.prompt import query_text
from convrec.judges.schema import label_of, scores_of
from convrec.judges.verdict import TIE, comparison_verdict, pointwise_reward, score_verdict
from convrec.statistics import bootstrap
from recipes.evaluation.results import metrics_of, rows_of

Rows = list[tuple[int, dict[str, Any]]]  # (number in the data, row)
COMPARED = {
    "pairwise": ("accuracy", "accuracy_swapped", "right_both_ways", "agreement"),
    "pointwise": ("exact_match", "reward"),
}


def rows_table(kept: Rows, mode: str, texts: Mapping[bool, Sequence[str]]) -> list[dict[str, Any]]:
    """A line a row; verdicts None where there are none. texts: by whether A and B were swapped."""
    table: list[dict[str, Any]] = []
    for index, (number, row) in enumerate(kept):
        record: dict[str, Any] = {
            "row": number,
            "query": query_text(row["input"]),
            "source": row["source"] or "",
            "label": label_of(row, mode),
        }
        record["text"] = texts[False][index]
        if mode == "pointwise":
            record["verdict"] = score_verdict(record["text"], scores_of(row))
        else:
            record["text_swapped"] = texts[True][index]
            record["verdict"] = comparison_verdict(record["text"])
            record["verdict_swapped"] = comparison_verdict(record["text_swapped"])
        table.append(record)
    return table


def summary_of(table: Sequence[Mapping[str, Any]], mode: str, scores: Scores, seed: int) -> Summary:
    columns = {name: [row[name] for row in table] for name in table[0]}
    labels, queries, sources = columns["label"], columns["query"], columns["source"]
    verdicts = columns["verdict"]
    if mode == "pairwise":
        return pairwise_summary(labels, verdicts, columns["verdict_swapped"], queries, sources, seed)
    rewards = [pointwise_reward(verdict, label, scores) for verdict, label in zip(verdicts, labels, strict=True)]
    constants = range(scores[0], scores[1] + 1)
    best = max(sum(pointwise_reward(one, label, scores) for label in labels) / len(labels) for one in constants)
    return pointwise_summary(labels, verdicts, rewards, queries, sources, scores, best, seed)


def read_other(folder: Path, mode: str, contents: Mapping[str, str]) -> dict[int, dict[str, Any]]:
    """Row number -> line of an earlier evaluation. Raises UserError where there is none of that mode and of data with
    these contents (its `sha256`)."""
    settings = metrics_of(folder, "--against ")["settings"]
    if settings.get("judge") != mode:
        raise UserError(f"--against {folder}: not the evaluation of a {mode} judge; evaluate both alike")
    if settings["sha256"] != contents:
        raise UserError(f"--against {folder}: its data had other contents ({settings['data']}); evaluate both alike")
    return rows_of(folder, "--against ", key="row")


def compare(
    other: Mapping[int, Mapping[str, Any]], table: Sequence[Mapping[str, Any]], mode: str, scores: Scores, seed: int
) -> dict[str, Any]:
    """This evaluation minus the other on the rows both have, ties aside: {metric: {"mean", "se"}, "n"}."""
    both = [
        (row, other[row["row"]])
        for row in table
        if other.get(row["row"], {}).get("query") == row["query"] and row["label"] != TIE
    ]
    if not both:
        raise UserError("--against: no row of that evaluation is in this data; compare evaluations of the same data")
    names = COMPARED[mode]
    new, old = (
        np.array([[_metrics(pair[which], mode, scores)[name] for name in names] for pair in both]) for which in (0, 1)
    )
    means, errors = bootstrap(new - old, [row["query"] for row, _ in both], seed)
    differences = {name: {"mean": float(m), "se": float(e)} for name, m, e in zip(names, means, errors, strict=True)}
    return {"n": len(both)} | differences


def _metrics(row: Mapping[str, Any], mode: str, scores: Scores) -> dict[str, float]:
    label, verdict = row["label"], row["verdict"]
    if mode == "pairwise":
        return comparison_metrics(label, verdict, row["verdict_swapped"])
    return {"exact_match": float(verdict == label), "reward": pointwise_reward(verdict, label, scores)}
