"""The parts of a composed rank reward: `convrec.rewards`, {name: weight} (docs/explanation/method.md 2).

`relevance` is what `convrec.reward` gives, one of RANK_REWARDS or a function of the user's own. The others are of the
item at the rank alone. A rank without a catalog item, or with one that an earlier rank or the conversation has, earns
the worst that a part can give, or such lines would be a way to earn: the least where the weight is positive, else the
largest.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convrec.base.errors import UserError
from convrec.lists.reward_parts import DIVERSITY, OF_MENTIONS
from convrec.titles.catalog import Catalog, parse_labels
from convrec.titles.forms import normalise

if TYPE_CHECKING:
    import pyarrow as pa

SETTING = "convrec.rewards"  # for messages


def needs_training_mentions(weights: Mapping[str, float], catalog: Catalog) -> bool:
    """Whether RewardParts needs its argument `mentions_M`: a part is of mentions, and the catalog has none."""
    return catalog.mentions is None and any(name in OF_MENTIONS for name in weights)


class RewardParts:
    """The parts but for relevance, over one catalog; built once and read only.

    mentions_M: how often each catalog row is wanted in training; read only where the catalog has no such column.
    first_rows_M: of each row the first one of the same item, which gets the mentions of all its spellings.
    Raises UserError for a part whose column the catalog lacks, or does not hold what the part needs.
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
            elif name in OF_MENTIONS:
                numbers_M = mentions_M if catalog.mentions is None else read_numbers(path, "mentions", name)
                if numbers_M is None:
                    raise UserError(f"{SETTING}.{name}: the catalog {path} has no column mentions, and no TRAIN_FILE")
                self._values_M[name] = _score_mentions(name, _sum_per_item(numbers_M, first_rows_M))
            elif name == "diversity.title":
                self._labels_M[name] = [_trigrams(normalise(title)) for title in catalog.titles]
            elif name.startswith(DIVERSITY):
                self._labels_M[name] = read_labels(path, column or "genres", name)
        self._worst = {name: min(v) if self.weights[name] > 0 else max(v) for name, v in self._values_M.items()}

    def returns(
        self, rows: Sequence[int], repeated: Sequence[bool], seen: Sequence[bool], num_ranks: int
    ) -> dict[str, list[float]]:
        """r_k of the N ranks, by part, but for relevance.

        rows: each line's catalog row, -1 for none. repeated: it stands at an earlier rank; seen: in the conversation.
        """
        new = [-1 if again or old else row for row, again, old in zip(rows, repeated, seen, strict=True)]
        lacking = num_ranks - len(new)
        new += [-1] * lacking
        found: dict[str, list[float]] = {}
        for name, weight in self.weights.items():
            if name == "repeats":
                found[name] = [float(again) for again in repeated] + [0.0] * lacking
            elif name == "out_of_catalog":
                found[name] = [float(row < 0) for row in rows] + [0.0] * lacking
            elif name in self._labels_M:
                found[name] = _diversity(new, self._labels_M[name], 0.0 if weight > 0 else 1.0)
            elif name in self._values_M:
                values_M = self._values_M[name]
                worst = self._worst[name]
                found[name] = [values_M[row] if row >= 0 else worst for row in new]
        return found


def combined(returns: Mapping[str, Sequence[float]], weights: Mapping[str, float], num_ranks: int) -> list[float]:
    """sum over the parts of weight x r_k; with one part of weight 1 its returns to the last digit."""
    return [sum(weight * returns[name][rank] for name, weight in weights.items()) for rank in range(num_ranks)]


def read_numbers(path: str | Path, column: str, part: str) -> list[float]:
    """A column of numbers of a parquet catalog. Raises UserError where there is none, or a value is not finite."""
    values = _read_column(path, column, part, "numbers")
    for row, value in enumerate(values):
        if value is None or not math.isfinite(value):
            raise UserError(
                f"{SETTING}.{part}: {path}: row {row}: {column} is {value!r}; give every item a finite number"
            )
    return [float(value) for value in values]


def read_labels(path: str | Path, column: str, part: str) -> list[frozenset[str]]:
    """A column of texts, or lists of texts, of a parquet catalog, as `Catalog.genres`; raises UserError likewise."""
    labels_M = [parse_labels(value) for value in _read_column(path, column, part, "texts")]
    if not any(labels_M):
        raise UserError(f"{SETTING}.{part}: {path}: {column} is empty for every item")
    return labels_M


def _read_column(path: str | Path, column: str, part: str, wanted: str) -> list[Any]:
    """wanted: "numbers" or "texts", as `_kind` says."""
    import pyarrow.parquet as pq

    if Path(path).suffix != ".parquet":
        raise UserError(f"{SETTING}.{part}: {path} has titles and years alone; give a .parquet with a column {column}")
    schema = pq.read_schema(path)
    fitting = [field.name for field in schema if _kind(field.type) == wanted]
    if column not in schema.names:
        raise UserError(
            f"{SETTING}.{part}: the catalog {path} has no column {column}, which it needs; add it, or leave the part "
            f"out. Columns of {wanted}: {', '.join(fitting) or 'none'}"
        )
    if column not in fitting:
        raise UserError(
            f"{SETTING}.{part}: {path}: {column} holds {schema.field(column).type}, where it needs {wanted}. Columns "
            f"of {wanted}: {', '.join(fitting) or 'none'}"
        )
    return pq.read_table(path, columns=[column]).column(0).to_pylist()


def _kind(kind: "pa.DataType") -> str:
    """ "numbers", "texts" (lists of texts too), or "" for anything else."""
    import pyarrow.types as of

    if of.is_integer(kind) or of.is_floating(kind) or of.is_decimal(kind) or of.is_boolean(kind):
        return "numbers"
    if of.is_list(kind) or of.is_large_list(kind) or of.is_dictionary(kind):
        kind = kind.value_type
    return "texts" if of.is_string(kind) or of.is_large_string(kind) else ""


def _sum_per_item(numbers_M: Sequence[float], first_rows_M: Sequence[int] | None) -> Sequence[float]:
    """Each item's sum, at its first row."""
    if first_rows_M is None:
        return numbers_M
    import numpy as np

    return np.bincount(first_rows_M, numbers_M, len(numbers_M)).tolist()


def _score_mentions(name: str, numbers_M: Sequence[float]) -> list[float]:
    if name == "novelty":
        total = max(sum(numbers_M), 2.0)
        return [math.log(total / max(number, 1.0)) / math.log(total) for number in numbers_M]
    return [number / max(max(numbers_M), 1.0) for number in numbers_M]


def _diversity(new: Sequence[int], labels_M: Sequence[frozenset[str]], worst: float) -> list[float]:
    """new: each rank's catalog row, -1 for none that counts. An item without labels is as none: it says nothing."""
    values: list[float] = []
    earlier: list[frozenset[str]] = []
    for row in new:
        labels = labels_M[row] if row >= 0 else frozenset()
        if not labels:
            values.append(worst)
            continue
        apart = [1 - len(labels & other) / len(labels | other) for other in earlier]
        values.append(sum(apart) / len(apart) if apart else 0.0)
        earlier.append(labels)
    return values


def _trigrams(title: str) -> frozenset[str]:
    """Of the letters; a shorter title is one of its own."""
    return frozenset(title[start : start + 3] for start in range(max(len(title) - 2, 1))) - {""}
