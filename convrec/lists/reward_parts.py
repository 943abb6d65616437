"""The parts of a composed rank reward: `convrec.rewards`, {name: weight} (docs/explanation/method.md 2).

`relevance` is what `convrec.reward` gives, one of RANK_REWARDS or a function of the user's own. The others are of the
item at the rank alone. A rank without a catalog item, or with one that an earlier rank has, earns the worst that a part
can give, or lines that are no items would be a way to earn: the least where the weight is positive, else the largest.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from convrec.errors import UserError
from convrec.lists.catalog import Catalog

RELEVANCE = "relevance"
COLUMN = "catalog."  # catalog.NAME: a column of the user's own
COMBINATIONS = ("sum", "normalised")


@dataclass(frozen=True)
class RewardPart:
    """formula: of its return r_k. needs: the catalog's column, "" for none."""

    formula: str
    needs: str = ""


REWARD_PARTS: dict[str, RewardPart] = {
    RELEVANCE: RewardPart("r_k of `convrec.reward`"),
    "diversity": RewardPart(
        "mean over the catalog items of earlier ranks of 1 - genres in common / genres of either; 0 for the first",
        "genres",
    ),
    "novelty": RewardPart("log(S / m) / log(S): m mentions of the item (at least 1), S of all; 0 to 1", "mentions"),
    "popularity": RewardPart(
        "m / the most mentions of an item; a negative weight asks for less known items", "mentions"
    ),
    "repeats": RewardPart("1 where the item stands at an earlier rank, else 0; for a negative weight"),
    "out_of_catalog": RewardPart("1 for a line that is no item of the catalog, else 0; for a negative weight"),
}


def is_part(name: object) -> bool:
    """Whether it is a part's name; whether the catalog has the column is another question."""
    return isinstance(name, str) and (name in REWARD_PARTS or (name.startswith(COLUMN) and name != COLUMN))


class RewardParts:
    """The parts but for relevance, over one catalog; built once and read only.

    Raises UserError for a part whose column the catalog lacks, or that is not a finite number for every item.
    """

    def __init__(self, weights: Mapping[str, float], catalog: Catalog, path: str | Path):
        self.weights = dict(weights)
        self._genres = catalog.genres
        self._values_M: dict[str, Sequence[float]] = {}
        for name in self.weights:
            column = REWARD_PARTS[name].needs if name in REWARD_PARTS else name.removeprefix(COLUMN)
            numbers_M = read_numbers(path, column, name) if column and column != "genres" else None
            if numbers_M is not None:
                self._values_M[name] = _item_values(name, numbers_M)
            elif column and not (column == "genres" and catalog.genres):
                raise UserError(f"convrec.rewards.{name}: the catalog {path} has no column {column}, which it needs")
        self._worst = {name: min(v) if self.weights[name] > 0 else max(v) for name, v in self._values_M.items()}

    def returns(self, rows: Sequence[int], repeated: Sequence[bool], num_ranks: int) -> dict[str, list[float]]:
        """r_k of the N ranks, by part. rows: each line's catalog row, -1 for none; repeated: at an earlier rank."""
        new = [row if row >= 0 and not again else -1 for row, again in zip(rows, repeated, strict=True)]
        new += [-1] * (num_ranks - len(new))
        found: dict[str, list[float]] = {}
        for name, weight in self.weights.items():
            if name == "repeats":
                found[name] = _padded([float(again) for again in repeated], num_ranks)
            elif name == "out_of_catalog":
                found[name] = _padded([float(row < 0) for row in rows], num_ranks)
            elif name == "diversity":
                found[name] = self._diversity(new, 0.0 if weight > 0 else 1.0)
            elif name != RELEVANCE:
                values_M, worst = self._values_M[name], self._worst[name]
                found[name] = [values_M[row] if row >= 0 else worst for row in new]
        return found

    def _diversity(self, new: Sequence[int], worst: float) -> list[float]:
        assert self._genres is not None
        values: list[float] = []
        earlier: list[frozenset[str]] = []
        for row in new:
            if row < 0:
                values.append(worst)
                continue
            genres = self._genres[row]
            apart = [1 - len(genres & other) / (len(genres | other) or 1) for other in earlier]
            values.append(sum(apart) / len(apart) if apart else 0.0)
            earlier.append(genres)
        return values


def combined(returns: Mapping[str, Sequence[float]], weights: Mapping[str, float], num_ranks: int) -> list[float]:
    """sum over the parts of weight x r_k; with one part of weight 1 its returns to the last digit."""
    return [sum(weight * returns[name][rank] for name, weight in weights.items()) for rank in range(num_ranks)]


def read_numbers(path: str | Path, column: str, part: str) -> list[float] | None:
    """A column of a parquet catalog; None where it has none. Raises UserError for a value that is no finite number."""
    import pyarrow.parquet as pq

    if Path(path).suffix != ".parquet" or column not in pq.read_schema(path).names:
        return None
    values = pq.read_table(path, columns=[column]).column(0).to_pylist()
    for row, value in enumerate(values):
        if isinstance(value, str | list | dict | None) or not math.isfinite(value):
            raise UserError(
                f"convrec.rewards.{part}: {path}: row {row}: {column} is {value!r}; give every item a finite number"
            )
    return [float(value) for value in values]


def _item_values(name: str, numbers_M: Sequence[float]) -> list[float]:
    if name == "novelty":
        total = max(sum(numbers_M), 2.0)
        return [math.log(total / max(number, 1.0)) / math.log(total) for number in numbers_M]
    if name == "popularity":
        return [number / max(max(numbers_M), 1.0) for number in numbers_M]
    return list(numbers_M)


def _padded(values: list[float], num_ranks: int) -> list[float]:
    return values + [0.0] * (num_ranks - len(values))
