"""Recall and NDCG of parts of a split: by turns, by number and popularity of the wanted titles, by a column."""

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
from recipes.evaluation.beyond_accuracy import means
from recipes.evaluation.measures import Context
from recipes.evaluation.split import Split

PARTS = 4  # of numbers with more different values than this
VALUES = 12  # of a column at the most; the rarer ones are `other`


class Slice(ABC):
    """A way to divide the rows of a split."""

    @abstractmethod
    def labels(self, split: Split, context: Context) -> list[str | None]:
        """The part that each row is in; None for none."""


class Turns(Slice):
    """By the number of turns of the conversation."""

    def labels(self, split: Split, context: Context) -> list[str | None]:
        return _parts([len(TURN.findall(conversation_text(row))) for row in split.rows])


class WantedTitles(Slice):
    """By the number of titles that the row wants."""

    def labels(self, split: Split, context: Context) -> list[str | None]:
        return _parts([len(row[TRUTH] or ()) for row in split.rows])


class WantedPopularity(Slice):
    """By the mean popularity of the items that the row wants; None for all where nothing is known of popularity."""

    def labels(self, split: Split, context: Context) -> list[str | None]:
        mentions_M = context.mentions_M
        if mentions_M is None:
            return [None] * len(split.rows)
        return _parts([float(np.mean(mentions_M[list(items)])) if items else None for items in context.wanted])


@dataclass(frozen=True)
class Column(Slice):
    """By the values of a column of the split's file: ranges of numbers, or the most frequent ones."""

    name: str

    def labels(self, split: Split, context: Context) -> list[str | None]:
        values = self._values(split)
        if all(isinstance(value, int | float | None) and not isinstance(value, bool) for value in values):
            return _parts(values)
        frequent = {value for value, _ in Counter(values).most_common(VALUES)}
        return [None if value is None else str(value) if value in frequent else "other" for value in values]

    def _values(self, split: Split) -> list[Any]:
        """Raises UserError for a column that is not there, or has lists or records."""
        columns = pq.read_schema(split.data).names
        if self.name not in columns:
            choices = ", ".join((*SLICES, *columns))
            raise UserError(f"--slices {self.name}: no column of {split.data}; {choices} can be given")
        column = pq.read_table(split.data, columns=[self.name]).column(0).to_pylist()
        values = [column[number] for number in split.numbers]
        if any(isinstance(value, list | dict) for value in values):
            raise UserError(f"--slices {self.name}: its values are lists or records; give a column of single values")
        return values


_BY_NAME: Mapping[str, Slice] = {"turns": Turns(), "wanted": WantedTitles(), "popularity": WantedPopularity()}
SLICES = tuple(_BY_NAME)


def slice_labels(name: str, split: Split, context: Context) -> list[str | None]:
    """Which part of slice `name`, one of SLICES or a column, each row is in, None for none. Raises UserError for a
    column that cannot be used."""
    return _BY_NAME.get(name, Column(name)).labels(split, context)


def _parts(values: Sequence[float | None]) -> list[str | None]:
    """Each value's own part where there are few, else that of PARTS parts of about the same number of rows."""
    values_R = np.array(values, float)  # None is NaN
    known = np.sort(values_R[~np.isnan(values_R)])
    if not len(known):
        return [None] * len(values)
    distinct = np.unique(known)
    bounds = distinct  # the last value of each part
    if len(distinct) > PARTS:
        bounds = np.unique([known[len(known) * (part + 1) // PARTS - 1] for part in range(PARTS)])
    firsts = [distinct[0], *distinct[np.searchsorted(distinct, bounds[:-1], "right")]]
    labels = [*_range_labels(firsts, bounds.tolist()), None]  # the last is NaN's, which sorts behind all
    return [labels[part] for part in np.searchsorted(bounds, values_R)]


def _range_labels(firsts: Sequence[float], lasts: Sequence[float]) -> list[str]:
    """`first to last` of each range, fractions with as many digits (four or more) as tell the ranges apart."""

    def text(value: float, digits: int) -> str:
        return f"{value:.0f}" if float(value).is_integer() else f"{value:.{digits}g}"

    for digits in range(4, 18):
        ranges = [(text(first, digits), text(last, digits)) for first, last in zip(firsts, lasts, strict=True)]
        if len({*ranges}) == len(ranges):
            break
    return [first if first == last else f"{first} to {last}" for first, last in ranges]


def slice_results(
    labels: Mapping[str, Sequence[str | None]],
    rows: Sequence[Mapping[str, float]],
    contexts: Sequence[Hashable],
    metrics: Sequence[str],
    before: Sequence[Mapping[str, float] | None] | None = None,
) -> dict[str, dict[str, dict[str, Any]]]:
    """{slice: {part: {"n", metric: {"mean", "se"}, "metric gain": {"mean", "se"}}}}, parts in ascending order.

    rows: of an evaluation; those without ground truth are left out. before: the same rows of an earlier evaluation
    (None: not there), of which the gain is. Standard errors are over conversations.
    """
    columns = [*metrics, *(f"{metric} gain" for metric in metrics)]
    values_RM = _values_and_gains(rows, metrics, before)
    results: dict[str, dict[str, dict[str, Any]]] = {}
    for name, label_R in labels.items():
        scored_R = [label if row["num_truth"] else None for label, row in zip(label_R, rows, strict=True)]
        results[name] = {}
        for label in sorted({label for label in scored_R if label is not None}, key=_order):
            own = [index for index, other in enumerate(scored_R) if other == label]
            figures = means(columns, values_RM[own], [contexts[index] for index in own])
            known = {column: {"mean": of["mean"], "se": of["se"]} for column, of in figures.items() if of["n"]}
            results[name][label] = {"n": len(own), **known}
    return results


def _values_and_gains(
    rows: Sequence[Mapping[str, float]],
    metrics: Sequence[str],
    before: Sequence[Mapping[str, float] | None] | None,
) -> np.ndarray:
    """(R, 2 M): each row's metrics, then how much more they are than before, NaN where that is unknown."""
    unknown = dict.fromkeys(metrics, math.nan)
    values_RM = np.array([[row[metric] for metric in metrics] for row in rows], float)
    before_RM = np.array(
        [[(row or unknown)[metric] for metric in metrics] for row in before or [None] * len(rows)], float
    )
    return np.hstack([values_RM, values_RM - before_RM])


def _order(label: str) -> tuple[float, str]:
    try:
        return float(label.split(" to ")[0]), label
    except ValueError:
        return 0.0, label


def slice_lines(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """A row a part, for a CSV file: slice, part, rows, and of each metric and gain the mean and `se`."""
    lines = []
    for name, parts in results.items():
        for label, part in parts.items():
            line: dict[str, Any] = {"slice": name, "part": label, "rows": part["n"]}
            for metric, value in part.items():
                if metric != "n":
                    line |= {metric: value["mean"], f"{metric} se": value["se"]}
            lines.append(line)
    return lines


def slices_table(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """A row a part, for the terminal: its name under "model", rows, metrics and gains with their errors."""
    return [
        {"model": f"{name} {label}", "rows": part["n"]}
        | {format_metric(metric): (value["mean"], value["se"]) for metric, value in part.items() if metric != "n"}
        for name, parts in results.items()
        for label, part in parts.items()
    ]


def format_metric(metric: str) -> str:
    name, _, k = metric.partition("@")
    return f"{'NDCG' if name == 'ndcg' else name.capitalize()}@{k}"
