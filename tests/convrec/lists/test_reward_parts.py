"""The parts of a composed rank reward by hand, and what is refused."""

import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.errors import UserError
from convrec.lists.catalog import load_catalog
from convrec.lists.reward_parts import REWARD_PARTS, RewardParts, combined, is_part

CATALOG = {
    "title": ["Alien", "Heat", "Jaws", "Up"],
    "year": [1979, 1995, 1975, 2009],
    "mentions": [8, 4, 0, 4],
    "genres": [["horror", "sf"], ["crime"], ["horror"], []],
    "safety": [0.2, 0.9, 0.5, 1.0],
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    pq.write_table(pa.table(CATALOG), tmp_path / "catalog.parquet")
    return tmp_path / "catalog.parquet"


def returns_of(path: Path, name: str, weight: float = 1.0) -> list[float]:
    """Of the list Alien, no item, Jaws, Alien again, Heat, and a rank without a line."""
    parts = RewardParts({name: weight}, load_catalog(path), path)
    return parts.returns([0, -1, 2, 0, 1], [False, False, False, True, False], 6)[name]


def test_each_part_by_hand(path: Path) -> None:
    # Jaws shares one of two genres with Alien; Heat none with either
    assert returns_of(path, "diversity") == [0, 0, 0.5, 0, 1, 0]
    assert returns_of(path, "diversity", -1) == [0, 1, 0.5, 1, 1, 1]  # a line that is no item is no way out
    # 16 mentions: 8 of Alien are 1 bit of 4, none of Jaws count as one
    assert returns_of(path, "novelty") == pytest.approx([0.25, 0.25, 1, 0.25, 0.5, 0.25])
    assert returns_of(path, "popularity", -1) == [1, 1, 0, 1, 0.5, 1]
    assert returns_of(path, "catalog.safety") == [0.2, 0.2, 0.5, 0.2, 0.9, 0.2]
    assert returns_of(path, "repeats", -1) == [0, 0, 0, 1, 0, 0]
    assert returns_of(path, "out_of_catalog", -1) == [0, 1, 0, 0, 0, 0]


def test_the_sum_of_one_part_of_weight_one_is_that_part() -> None:
    returns = [0.1 + 0.2, 1 / 3, 0.0]
    assert combined({"relevance": returns}, {"relevance": 1}, 3) == returns
    assert combined({"relevance": [1, 0], "repeats": [0, 1]}, {"relevance": 2, "repeats": -0.5}, 2) == [2, -0.5]


def test_what_the_catalog_lacks_is_named_with_the_part(path: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain.parquet"
    pq.write_table(pa.table(CATALOG).select(["title", "year"]), plain)
    for name, column in (("diversity", "genres"), ("novelty", "mentions"), ("catalog.safety", "safety")):
        with pytest.raises(UserError, match=rf"convrec\.rewards\.{name}: .*plain\.parquet has no column {column}"):
            RewardParts({name: 1.0}, load_catalog(plain), plain)
    for value in (None, math.nan):
        pq.write_table(pa.table(CATALOG | {"safety": [0.1, value, 0.2, 0.3]}), path)
        with pytest.raises(UserError, match=r"catalog\.parquet: row 1: safety is (None|nan); give every item a finite"):
            RewardParts({"catalog.safety": 1.0}, load_catalog(path), path)
    assert [name for name in (*REWARD_PARTS, "catalog.safety", "catalog.", "safety", 3) if not is_part(name)] == [
        "catalog.",
        "safety",
        3,
    ]
