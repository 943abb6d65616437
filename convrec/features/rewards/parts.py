"""The parts of a composed rank reward: `convrec.rewards`, {name: weight} (docs/explanation/method.md 2).

`relevance` is the return of `convrec.reward`, one of RANK_REWARDS or a custom function. The other parts depend only on
the item at the rank. A rank without a catalog item, or whose item is also at an earlier rank or in the conversation,
gets the worst value of a part, or such lines would pay: the smallest value for a positive weight, else the largest.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convrec.base.errors import UserError
from convrec.lists.reward_parts import DIVERSITY, MENTION_PARTS
from convrec.titles.catalog import Catalog, parse_labels
from convrec.titles.forms import normalise

if TYPE_CHECKING:
    import pyarrow as pa

SETTING = "convrec.rewards"  # named in error messages


def needs_training_mentions(weights: Mapping[str, float], catalog: Catalog) -> bool:
    """Return whether RewardParts needs `mentions_M`: a part counts mentions, and the catalog has no such column."""
    return catalog.mentions is None and any(name in MENTION_PARTS for name in weights)


class RewardParts:
    """All parts except relevance for one catalog; built once, then read-only.

    Args:
        weights: part -> weight.
        catalog: the items.
        path: the catalog's file, for its columns and error messages.
        mentions_M: how often each catalog row is relevant in the training data; read only if the catalog has no column
            `mentions`. None: unknown.
        first_rows_M: for each row the first row of the same item, which gets the mentions of all its spellings.

    Raises:
        UserError: the catalog has no column for a part, or the column's values do not fit.
    """

    def __init__(
        self,
        weights: Mapping[str, float],
        catalog: Catalog,
        path: str | Path,
        mentions_M: Sequence[float] | None = None,
        first_rows_M: Sequence[int] | None = None,
    ):
        self.weights = dict(weights)
        self._labels_M: dict[str, Sequence[frozenset[str]]] = {}
        self._values_M: dict[str, Sequence[float]] = {}
        for name in self.weights:
            column = name.partition(".")[2]
            if name.startswith("catalog."):
                self._values_M[name] = read_numbers(path, column, name)
            elif name in MENTION_PARTS:
                numbers_M = mentions_M if catalog.mentions is None else read_numbers(path, "mentions", name)
                if numbers_M is None:
                    raise UserError(
                        "rewards.no-mentions",
                        f"{SETTING}.{name}: the catalog {path} has no column mentions, and there is no TRAIN_FILE to "
                        "count them in. Add the column, or set TRAIN_FILE.",
                    )
                self._values_M[name] = score_mentions(name, _sum_per_item(numbers_M, first_rows_M))
            elif name == "diversity.title":
                self._labels_M[name] = [_trigrams(normalise(title)) for title in catalog.titles]
            elif name.startswith(DIVERSITY):
                self._labels_M[name] = read_labels(path, column or "genres", name)
        self._worst = {name: min(v) if self.weights[name] > 0 else max(v) for name, v in self._values_M.items()}

    def returns(
        self, rows: Sequence[int], repeated: Sequence[bool], seen: Sequence[bool], num_ranks: int
    ) -> dict[str, list[float]]:
        """Compute the returns of the ranks for each part except relevance.

        Args:
            rows: each line's catalog row, -1 for none.
            repeated: whether the line's item is at an earlier rank, too.
            seen: whether the conversation names the line's item.
            num_ranks: N; missing lines count as ranks without an item.

        Returns:
            Part -> N returns.
        """
        new = [-1 if again or old else row for row, again, old in zip(rows, repeated, seen, strict=True)]
        lacking = num_ranks - len(new)
        new += [-1] * lacking
        returns: dict[str, list[float]] = {}
        for name, weight in self.weights.items():
            if name == "repeats":
                returns[name] = [float(again) for again in repeated] + [0.0] * lacking
            elif name == "out_of_catalog":
                returns[name] = [float(row < 0) for row in rows] + [0.0] * lacking
            elif name in self._labels_M:
                returns[name] = _score_diversity(new, self._labels_M[name], 0.0 if weight > 0 else 1.0)
            elif name in self._values_M:
                values_M = self._values_M[name]
                worst = self._worst[name]
                returns[name] = [values_M[row] if row >= 0 else worst for row in new]
        return returns


def combined(returns: Mapping[str, Sequence[float]], weights: Mapping[str, float], num_ranks: int) -> list[float]:
    """Return the weighted sum of the parts at each rank; a single part of weight 1 stays exactly as it is.

    Args:
        returns: part -> N returns, for every part that has a weight.
        weights: part -> weight.
        num_ranks: N.
    """
    return [sum(weight * returns[name][rank] for name, weight in weights.items()) for rank in range(num_ranks)]


def read_numbers(path: str | Path, column: str, part: str) -> list[float]:
    """Read a numeric column of a parquet catalog for a part.

    Args:
        path: the catalog's file.
        column: the column to read.
        part: the part that needs it, for error messages.

    Returns:
        A number for each row.

    Raises:
        UserError: the column is missing or not numeric, or a value is not finite.
    """
    values = _read_column(path, column, part, "numbers")
    for row, value in enumerate(values):
        if value is None or not math.isfinite(value):
            raise UserError(
                "rewards.not-finite",
                f"{SETTING}.{part}: {path}: row {row}: {column} is {value!r}. Give every item a finite number.",
            )
    return [float(value) for value in values]


def read_labels(path: str | Path, column: str, part: str) -> list[frozenset[str]]:
    """Read a column of texts, or of lists of texts, of a parquet catalog for a part.

    Args:
        path: the catalog's file.
        column: the column to read.
        part: the part that needs it, for error messages.

    Returns:
        The labels of each row, in the form of `Catalog.genres`; an empty set for a row without any.

    Raises:
        UserError: the column is missing, holds no texts, or is empty for every item.
    """
    labels_M = [parse_labels(value) for value in _read_column(path, column, part, "texts")]
    if not any(labels_M):
        raise UserError(
            "rewards.empty-column",
            f"{SETTING}.{part}: {path}: column {column} is empty for every item. Fill it, or remove the part.",
        )
    return labels_M


def _read_column(path: str | Path, column: str, part: str, kind: str) -> list[Any]:
    """Read a column of one kind, "numbers" or "texts" (see `_classify_type`)."""
    import pyarrow.parquet as pq

    if Path(path).suffix != ".parquet":
        raise UserError(
            "rewards.no-columns",
            f"{SETTING}.{part}: {path} has only titles and years. Use a .parquet catalog with a column {column}.",
        )
    schema = pq.read_schema(path)
    matching_columns = [field.name for field in schema if _classify_type(field.type) == kind]
    choices = f"Columns with {kind}: {', '.join(matching_columns) or 'none'}."
    if column not in schema.names:
        raise UserError(
            "rewards.missing-column",
            f"{SETTING}.{part}: the catalog {path} has no column {column}. Add it, or remove the part. {choices}",
        )
    if column not in matching_columns:
        raise UserError(
            "rewards.column-type",
            f"{SETTING}.{part}: {path}: column {column} has type {schema.field(column).type}, but the part needs "
            f"{kind}. {choices}",
        )
    return pq.read_table(path, columns=[column]).column(0).to_pylist()


def _classify_type(data_type: "pa.DataType") -> str:
    """Return "numbers", "texts" (also for lists of texts), or "" for anything else."""
    import pyarrow.types as pa_types

    is_number = (pa_types.is_integer, pa_types.is_floating, pa_types.is_decimal, pa_types.is_boolean)
    if any(check(data_type) for check in is_number):
        return "numbers"
    if pa_types.is_list(data_type) or pa_types.is_large_list(data_type) or pa_types.is_dictionary(data_type):
        data_type = data_type.value_type
    return "texts" if pa_types.is_string(data_type) or pa_types.is_large_string(data_type) else ""


def _sum_per_item(numbers_M: Sequence[float], first_rows_M: Sequence[int] | None) -> Sequence[float]:
    """Return each item's sum at its first row, and 0 at its other rows."""
    if first_rows_M is None:
        return numbers_M
    import numpy as np

    return np.bincount(first_rows_M, numbers_M, len(numbers_M)).tolist()


def score_mentions(name: str, numbers_M: Sequence[float]) -> list[float]:
    """Return the values of the part `novelty` or `popularity` for each row of the catalog."""
    if name == "novelty":
        total = max(sum(numbers_M), 2.0)
        return [math.log(total / max(number, 1.0)) / math.log(total) for number in numbers_M]
    most = max(1.0, max(numbers_M))
    return [number / most for number in numbers_M]


def _score_diversity(new: Sequence[int], labels_M: Sequence[frozenset[str]], worst: float) -> list[float]:
    """Return the mean Jaccard distance of each rank's labels to those of earlier ranks; 0 for the first.

    Args:
        new: each rank's catalog row, -1 for a rank that gets the worst value. An item without labels also gets it.
        labels_M: the labels of each catalog row.
        worst: the worst value.
    """
    values: list[float] = []
    earlier: list[frozenset[str]] = []
    for row in new:
        labels = labels_M[row] if row >= 0 else frozenset()
        if not labels:
            values.append(worst)
            continue
        distances = [1 - len(labels & other) / len(labels | other) for other in earlier]
        values.append(sum(distances) / len(distances) if distances else 0.0)
        earlier.append(labels)
    return values


def _trigrams(title: str) -> frozenset[str]:
    """Return a title's character trigrams; a shorter title is a single one."""
    return frozenset(title[start : start + 3] for start in range(max(len(title) - 2, 1)))
