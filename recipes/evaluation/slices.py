"""Recall and NDCG by slices of a split: by turns, number and popularity of relevant titles, or a column."""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from convrec.base.errors import UserError
from convrec.data.schema import TRUTH, TURN, conversation_text
from recipes.evaluation.beyond_accuracy import compute_means
from recipes.evaluation.measures import Context
from recipes.evaluation.split import Split

MAX_PARTS = 4  # numbers with more distinct values are divided into this many ranges
MAX_VALUES = 12  # of a column; rarer ones become `other`


class Slice(ABC):
    """A way to divide the rows of a split."""

    @abstractmethod
    def label_rows(self, split: Split, context: Context) -> list[str | None]:
        """Return the part that each row is in.

        Args:
            split: the rows.
            context: with the popularity of their ground truths, if it is known.

        Returns:
            One label per row; None for a row that is in no part.
        """


class Turns(Slice):
    """By the number of turns of the conversation."""

    def label_rows(self, split: Split, context: Context) -> list[str | None]:
        return _divide_into_parts([len(TURN.findall(conversation_text(row))) for row in split.rows])


class WantedTitles(Slice):
    """By the number of relevant titles."""

    def label_rows(self, split: Split, context: Context) -> list[str | None]:
        return _divide_into_parts([len(row[TRUTH] or ()) for row in split.rows])


class WantedPopularity(Slice):
    """By the mean popularity of the relevant items; None for all rows if popularity is unknown."""

    def label_rows(self, split: Split, context: Context) -> list[str | None]:
        mentions_M = context.mentions_M
        if mentions_M is None:
            return [None] * len(split.rows)
        return _divide_into_parts(
            [float(np.mean(mentions_M[list(items)])) if items else None for items in context.wanted]
        )


@dataclass(frozen=True)
class Column(Slice):
    """By the values of a column of the split's file: ranges of numbers, or the most frequent values."""

    name: str

    def label_rows(self, split: Split, context: Context) -> list[str | None]:
        values = self._read_values(split)
        if all(isinstance(value, int | float | None) and not isinstance(value, bool) for value in values):
            return _divide_into_parts(values)
        frequent = {value for value, _ in Counter(values).most_common(MAX_VALUES)}
        return [None if value is None else str(value) if value in frequent else "other" for value in values]

    def _read_values(self, split: Split) -> list[Any]:
        """Read the column. Raises UserError if it does not exist or holds lists or records."""
        columns = pq.read_schema(split.data).names
        if self.name not in columns:
            choices = ", ".join((*SLICES, *columns))
            raise UserError(
                "evaluation.unknown-slice", f"--slices {self.name}: not in {split.data}. Choose from {choices}."
            )
        column = pq.read_table(split.data, columns=[self.name]).column(0).to_pylist()
        values = [column[number] for number in split.numbers]
        if any(isinstance(value, list | dict) for value in values):
            raise UserError(
                "evaluation.nested-slice",
                f"--slices {self.name}: holds lists or records. Name a column of single values.",
            )
        return values


_BY_NAME: Mapping[str, Slice] = {"turns": Turns(), "wanted": WantedTitles(), "popularity": WantedPopularity()}
SLICES = tuple(_BY_NAME)


def label_slice(name: str, split: Split, context: Context) -> list[str | None]:
    """Return the part of a slice that each row is in; None for none.

    Args:
        name: one of SLICES, or a column of the split.
        split: the rows.
        context: with their popularity.

    Raises:
        UserError: The column does not exist, or holds lists or records.
    """
    return _BY_NAME.get(name, Column(name)).label_rows(split, context)


def _divide_into_parts(values: Sequence[float | None]) -> list[str | None]:
    """Label each value by itself if there are few distinct ones, else by one of MAX_PARTS ranges of similar size."""
    values_R = np.array(values, float)  # None is NaN
    ordered = np.sort(values_R[~np.isnan(values_R)])
    if not len(ordered):
        return [None] * len(values)
    distinct = np.unique(ordered)
    bounds = distinct  # the last value of each part
    if len(distinct) > MAX_PARTS:
        bounds = np.unique([ordered[len(ordered) * (part + 1) // MAX_PARTS - 1] for part in range(MAX_PARTS)])
    firsts = [distinct[0], *distinct[np.searchsorted(distinct, bounds[:-1], "right")]]
    labels = [*_format_ranges(firsts, bounds.tolist()), None]  # the last label is for NaN, which sorts last
    return [labels[part] for part in np.searchsorted(bounds, values_R)]


def _format_ranges(firsts: Sequence[float], lasts: Sequence[float]) -> list[str]:
    """Format ranges as `first to last`, fractions with four digits, or more if ranges would look the same."""

    def text(value: float, digits: int) -> str:
        return f"{value:.0f}" if float(value).is_integer() else f"{value:.{digits}g}"

    for digits in range(4, 18):
        ranges = [(text(first, digits), text(last, digits)) for first, last in zip(firsts, lasts, strict=True)]
        if len({*ranges}) == len(ranges):
            break
    return [first if first == last else f"{first} to {last}" for first, last in ranges]


def compute_slice_results(
    labels: Mapping[str, Sequence[str | None]],
    rows: Sequence[Mapping[str, float]],
    contexts: Sequence[Hashable],
    metrics: Sequence[str],
    before: Sequence[Mapping[str, float] | None] | None = None,
) -> dict[str, dict[str, dict[str, Any]]]:
    """Compute metrics, and their gains over an earlier evaluation, by slice.

    Args:
        labels: for each slice, the part of each row.
        rows: of an evaluation; rows without ground truth are left out.
        contexts: the conversation of each row, over which standard errors are computed.
        metrics: columns of the rows.
        before: the rows of an earlier evaluation in the same order, None where it has none.

    Returns:
        {slice: {part: {"n", metric: {"mean", "se"}, "metric gain": {"mean", "se"}}}}, parts in ascending order.
    """
    columns = [*metrics, *(f"{metric} gain" for metric in metrics)]
    values_RM = _compute_values_and_gains(rows, metrics, before)
    results: dict[str, dict[str, dict[str, Any]]] = {}
    for name, label_R in labels.items():
        scored_R = [label if row["num_truth"] else None for label, row in zip(label_R, rows, strict=True)]
        results[name] = {}
        for label in sorted({label for label in scored_R if label is not None}, key=_make_sort_key):
            own = [index for index, other in enumerate(scored_R) if other == label]
            figures = compute_means(columns, values_RM[own], [contexts[index] for index in own])
            values = {
                column: {"mean": figure["mean"], "se": figure["se"]}
                for column, figure in figures.items()
                if figure["n"]
            }
            results[name][label] = {"n": len(own), **values}
    return results


def _compute_values_and_gains(
    rows: Sequence[Mapping[str, float]],
    metrics: Sequence[str],
    before: Sequence[Mapping[str, float] | None] | None,
) -> np.ndarray:
    """Return (R, 2 M): each row's metrics, then their gains over `before`, NaN where unknown."""
    unknown = dict.fromkeys(metrics, math.nan)
    values_RM = np.array([[row[metric] for metric in metrics] for row in rows], float)
    before_RM = np.array(
        [[(row or unknown)[metric] for metric in metrics] for row in before or [None] * len(rows)], float
    )
    return np.hstack([values_RM, values_RM - before_RM])


def _make_sort_key(label: str) -> tuple[float, str]:
    try:
        return float(label.split(" to ")[0]), label
    except ValueError:
        return 0.0, label


def make_slice_lines(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return the slices for a CSV file.

    Args:
        results: slice -> part -> metric or gain -> {"mean", "se"}, and "n".

    Returns:
        One row per part: slice, part, rows, and the mean and `se` of each metric and gain.
    """
    lines = []
    for name, parts in results.items():
        for label, part in parts.items():
            line: dict[str, Any] = {"slice": name, "part": label, "rows": part["n"]}
            for metric, value in part.items():
                if metric != "n":
                    line |= {metric: value["mean"], f"{metric} se": value["se"]}
            lines.append(line)
    return lines


def make_slices_table(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return the slices for the terminal.

    Args:
        results: as for `make_slice_lines`.

    Returns:
        One row per part: its name (key "model"), rows, and (mean, standard error) of each metric and gain.
    """
    return [
        {"model": f"{name} {label}", "rows": part["n"]}
        | {format_metric(metric): (value["mean"], value["se"]) for metric, value in part.items() if metric != "n"}
        for name, parts in results.items()
        for label, part in parts.items()
    ]


def format_metric(metric: str) -> str:
    """Format a metric's name for display: `ndcg@5` as `NDCG@5`."""
    name, _, k = metric.partition("@")
    return f"{'NDCG' if name == 'ndcg' else name.capitalize()}@{k}"
