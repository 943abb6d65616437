"""The parts of a composed rank reward by hand, and what is refused."""

import datetime
import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.base.errors import UserError
from convrec.features.rewards.parts import RewardParts, combined, needs_training_mentions
from convrec.lists.reward_parts import REWARD_PARTS, is_part
from convrec.titles.catalog import Catalog, load_catalog

CATALOG = {
    "title": ["Alien", "Heat", "Jaws", "Up"],
    "year": [1979, 1995, 1975, 2009],
    "mentions": [8, 4, 0, 4],
    "genres": [["horror", "sf"], ["crime"], ["horror"], []],
    "safety": [0.2, 0.9, 0.5, 1.0],
    "director": ["Scott", "Mann", "Scott|Spielberg", None],
    "seen_on": [datetime.date(2024, 1, day) for day in range(1, 5)],
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    pq.write_table(pa.table(CATALOG), tmp_path / "catalog.parquet")
    return tmp_path / "catalog.parquet"


def returns_of(path: Path, name: str, weight: float = 1.0) -> list[float]:
    """Of the list Alien, no item, Jaws, Alien again, Heat, and a rank without a line."""
    parts = RewardParts({name: weight}, load_catalog(path), path)
    return parts.returns([0, -1, 2, 0, 1], [False, False, False, True, False], [False] * 5, 6)[name]


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


def test_diversity_of_another_column_and_of_titles(path: Path) -> None:
    assert returns_of(path, "diversity.director") == [0, 0, 0.5, 0, 1, 0]  # Scott of Scott and Spielberg
    by_category = pa.table(CATALOG).append_column("studio", pa.array(["a", "b", "a", "b"]).dictionary_encode())
    pq.write_table(by_category, path)
    assert returns_of(path, "diversity.studio") == [0, 0, 0, 0, 1, 0]
    # trigrams ali lie ien; jaw aws; hea eat: none in common
    assert returns_of(path, "diversity.title") == [0, 0, 1, 0, 1, 0]
    catalog = Catalog.from_items([("Alien", 1979), ("Aliens", 1986), ("Up", 2009)])
    parts = RewardParts({"diversity.title": 1.0}, catalog, path)
    # three of four trigrams are Alien's; of a title of two letters none is, of either
    assert parts.returns([0, 1, 2], [False] * 3, [False] * 3, 3)["diversity.title"] == [0, 0.25, 1]


def test_an_item_without_genres_is_no_way_out(path: Path) -> None:
    for weight, worst in ((1, 0.0), (-1, 1.0)):
        parts = RewardParts({"diversity": weight}, load_catalog(path), path)
        assert parts.returns([0, 3, 1], [False] * 3, [False] * 3, 3)["diversity"] == [0, worst, 1]


def test_named_titles_earn_the_worst_reward_but_are_in_catalog(path: Path) -> None:
    parts = RewardParts({"catalog.safety": 1, "out_of_catalog": -1}, load_catalog(path), path)
    got = parts.returns([3, 1], [False, False], [True, False], 2)
    assert got == {"catalog.safety": [0.2, 0.9], "out_of_catalog": [0, 0]}


def test_mentions_are_the_catalogs_or_else_those_of_training(path: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain.parquet"
    pq.write_table(pa.table(CATALOG).drop_columns("mentions"), plain)
    catalog = load_catalog(plain)
    assert needs_training_mentions({"novelty": 1}, catalog)
    assert not needs_training_mentions({"diversity": 1}, catalog)
    assert not needs_training_mentions({"novelty": 1}, load_catalog(path))
    for name in ("novelty", "popularity"):
        counted = RewardParts({name: -1}, catalog, plain, mentions_M=CATALOG["mentions"])
        of_column = RewardParts({name: -1}, load_catalog(path), path, mentions_M=[0, 0, 0, 9])
        assert counted.returns([0, 1], [False] * 2, [False] * 2, 2) == of_column.returns(
            [0, 1], [False] * 2, [False] * 2, 2
        )
        with pytest.raises(
            UserError, match=rf"rewards\.{name}: .*plain\.parquet has no column mentions, and no TRAIN_FILE"
        ):
            RewardParts({name: 1}, catalog, plain)


def test_what_the_catalog_lacks_is_named_with_the_part(path: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain.parquet"
    pq.write_table(pa.table(CATALOG).select(["title", "year", "safety"]), plain)
    for part, said in {
        "diversity": r"no column genres, which it needs; add it, or leave the part out\. Columns of texts: title$",
        "catalog.margin": r"no column margin, which it needs; .* Columns of numbers: year, safety$",
        "catalog.title": r"title holds string, where it needs numbers\. Columns of numbers: year, safety$",
    }.items():
        with pytest.raises(UserError, match=rf"convrec\.rewards\.{part}: .*plain\.parquet.*{said}"):
            RewardParts({part: 1.0}, load_catalog(plain), plain)
    for part, said in {"catalog.seen_on": "date32", "diversity.safety": "double, where it needs texts"}.items():
        with pytest.raises(UserError, match=said):
            RewardParts({part: 1.0}, load_catalog(path), path)
    with pytest.raises(UserError, match=r"give a \.parquet with a column safety"):
        RewardParts({"catalog.safety": 1.0}, load_catalog(path), "catalog.pkl")
    for value in (None, math.nan):
        pq.write_table(pa.table(CATALOG | {"safety": [0.1, value, 0.2, 0.3]}), path)
        with pytest.raises(UserError, match=r"catalog\.parquet: row 1: safety is (None|nan); give every item a finite"):
            RewardParts({"catalog.safety": 1.0}, load_catalog(path), path)
    pq.write_table(pa.table(CATALOG | {"genres": [[]] * 4}, schema=pa.table(CATALOG).schema), path)
    with pytest.raises(UserError, match="genres is empty for every item"):
        RewardParts({"diversity": 1.0}, load_catalog(path), path)


def test_names_of_parts() -> None:
    known = (*REWARD_PARTS, "catalog.safety", "diversity.title")
    assert [name for name in (*known, "catalog.", "diversity.", "safety", 3) if not is_part(name)] == [
        "catalog.",
        "diversity.",
        "safety",
        3,
    ]
