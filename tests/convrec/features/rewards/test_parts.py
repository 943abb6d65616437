"""The parts of a composed rank reward, computed by hand, and the catalogs that are refused."""

import datetime
import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.features.rewards.parts import RewardParts, combined, needs_training_mentions, score_mentions
from convrec.lists.reward_parts import REWARD_PARTS, is_part
from convrec.titles.catalog import Catalog, load_catalog
from tests.user_errors import refuses

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


def compute_returns(path: Path, name: str, weight: float = 1.0) -> list[float]:
    """Return a part's returns for the list Alien, no item, Jaws, Alien again, Heat, and a rank without a line."""
    parts = RewardParts({name: weight}, load_catalog(path), path)
    return parts.returns([0, -1, 2, 0, 1], [False, False, False, True, False], [False] * 5, 6)[name]


def test_each_part_by_hand(path: Path) -> None:
    # Jaws shares one of two genres with Alien; Heat none with either
    assert compute_returns(path, "diversity") == [0, 0, 0.5, 0, 1, 0]
    assert compute_returns(path, "diversity", -1) == [0, 1, 0.5, 1, 1, 1]  # a line without an item is no escape
    # 16 mentions: Alien's 8 are 1 bit of 4, Jaws' 0 count as one
    assert compute_returns(path, "novelty") == pytest.approx([0.25, 0.25, 1, 0.25, 0.5, 0.25])
    assert compute_returns(path, "popularity", -1) == [1, 1, 0, 1, 0.5, 1]
    assert compute_returns(path, "catalog.safety") == [0.2, 0.2, 0.5, 0.2, 0.9, 0.2]
    assert compute_returns(path, "repeats", -1) == [0, 0, 0, 1, 0, 0]
    assert compute_returns(path, "out_of_catalog", -1) == [0, 1, 0, 0, 0, 0]


def test_a_single_part_of_weight_one_stays_unchanged() -> None:
    returns = [0.1 + 0.2, 1 / 3, 0.0]
    assert combined({"relevance": returns}, {"relevance": 1}, 3) == returns
    assert combined({"relevance": [1, 0], "repeats": [0, 1]}, {"relevance": 2, "repeats": -0.5}, 2) == [2, -0.5]


def test_diversity_of_another_column_and_of_titles(path: Path) -> None:
    assert compute_returns(path, "diversity.director") == [0, 0, 0.5, 0, 1, 0]  # Scott; Scott and Spielberg share one
    by_category = pa.table(CATALOG).append_column("studio", pa.array(["a", "b", "a", "b"]).dictionary_encode())
    pq.write_table(by_category, path)
    assert compute_returns(path, "diversity.studio") == [0, 0, 0, 0, 1, 0]
    # trigrams ali lie ien; jaw aws; hea eat: none in common
    assert compute_returns(path, "diversity.title") == [0, 0, 1, 0, 1, 0]
    catalog = Catalog.from_items([("Alien", 1979), ("Aliens", 1986), ("Up", 2009)])
    parts = RewardParts({"diversity.title": 1.0}, catalog, path)
    # three of four trigrams are also Alien's; a title of two letters shares none with either
    assert parts.returns([0, 1, 2], [False] * 3, [False] * 3, 3)["diversity.title"] == [0, 0.25, 1]
    short = RewardParts({"diversity.title": 1.0}, Catalog.from_items([("Up", 2009), ("P", 2005)]), path)
    assert short.returns([0, 1], [False] * 2, [False] * 2, 2)["diversity.title"] == [0, 1]


def test_an_item_without_genres_gets_the_worst_diversity(path: Path) -> None:
    for weight, worst in ((1, 0.0), (-1, 1.0)):
        parts = RewardParts({"diversity": weight}, load_catalog(path), path)
        assert parts.returns([0, 3, 1], [False] * 3, [False] * 3, 3)["diversity"] == [0, worst, 1]


def test_named_titles_earn_the_worst_reward_but_are_in_catalog(path: Path) -> None:
    parts = RewardParts({"catalog.safety": 1, "out_of_catalog": -1}, load_catalog(path), path)
    got = parts.returns([3, 1], [False, False], [True, False], 2)
    assert got == {"catalog.safety": [0.2, 0.9], "out_of_catalog": [0, 0]}


def test_mentions_come_from_the_catalog_or_else_from_training(path: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain.parquet"
    pq.write_table(pa.table(CATALOG).drop_columns("mentions"), plain)
    catalog = load_catalog(plain)
    assert needs_training_mentions({"novelty": 1}, catalog)
    assert not needs_training_mentions({"diversity": 1}, catalog)
    assert not needs_training_mentions({"novelty": 1}, load_catalog(path))
    for name in ("novelty", "popularity"):
        counted = RewardParts({name: -1}, catalog, plain, mentions_M=CATALOG["mentions"])
        from_column = RewardParts({name: -1}, load_catalog(path), path, mentions_M=[0, 0, 0, 9])
        assert counted.returns([0, 1], [False] * 2, [False] * 2, 2) == from_column.returns(
            [0, 1], [False] * 2, [False] * 2, 2
        )
        with refuses("rewards.no-mentions", f"convrec.rewards.{name}", plain):
            RewardParts({name: 1}, catalog, plain)


def test_spellings_of_an_item_share_their_mentions(tmp_path: Path) -> None:
    plain = tmp_path / "plain.parquet"
    pq.write_table(pa.table(CATALOG).drop_columns("mentions"), plain)
    counts = {"mentions_M": [3, 1, 0, 2], "first_rows_M": [0, 0, 2, 3]}  # Alien has 4
    parts = RewardParts({"popularity": 1}, load_catalog(plain), plain, **counts)
    assert parts.returns([0, 2, 3], [False] * 3, [False] * 3, 3)["popularity"] == [1, 0, 0.5]


@pytest.mark.parametrize(
    ("mentions", "novelty", "popularity"),
    [([0, 0, 0, 0], [1, 1], [0, 0]), ([1, 0, 0, 0], [1, 1], [1, 0]), ([2, 0, 0, 0], [0, 1], [1, 0])],
)
def test_few_mentions_are_no_division_by_zero(
    path: Path, mentions: list[int], novelty: list[float], popularity: list[float]
) -> None:
    pq.write_table(pa.table(CATALOG | {"mentions": mentions}), path)
    parts = RewardParts({"novelty": 1, "popularity": 1}, load_catalog(path), path)
    returns = parts.returns([0, 1], [False] * 2, [False] * 2, 2)
    assert returns == {"novelty": pytest.approx(novelty), "popularity": popularity}


def test_columns_of_every_type_of_numbers_and_texts_are_read(path: Path) -> None:
    columns = {
        "flag": pa.array([True, False, True, False]),
        "price": pa.array([Decimal("1.5"), Decimal("2.5"), Decimal("0.5"), Decimal("3.5")]),
        "stars": pa.array([1, 2, 3, 4], pa.int8()),
        "tags": pa.array([["a"], ["a", "b"], ["b"], []], pa.large_list(pa.large_string())),
        "studio": pa.array(["a", "b", "a", "b"], pa.large_string()),
    }
    table = pa.table(CATALOG)
    for name, column in columns.items():
        table = table.append_column(name, column)
    pq.write_table(table, path)
    names = ["catalog.flag", "catalog.price", "catalog.stars", "diversity.tags", "diversity.studio"]
    parts = RewardParts(dict.fromkeys(names, 1.0), load_catalog(path), path)
    assert list(parts.returns([0, 1], [False] * 2, [False] * 2, 2).values()) == [
        [1, 0],
        [1.5, 2.5],
        [1, 2],
        [0, 0.5],
        [0, 1],
    ]


def test_a_catalog_without_a_parts_column_is_refused(path: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain.parquet"
    pq.write_table(pa.table(CATALOG).select(["title", "year", "safety"]), plain)
    for part, code, choices in (
        ("diversity", "rewards.missing-column", "title."),
        ("catalog.margin", "rewards.missing-column", "year, safety."),
        ("catalog.title", "rewards.column-type", "year, safety."),
    ):
        with refuses(code, f"convrec.rewards.{part}", plain, choices):
            RewardParts({part: 1.0}, load_catalog(plain), plain)
    kinds = {"catalog.seen_on": "date32", "diversity.seen_on": "date32", "diversity.safety": "double"}
    for part, kind in kinds.items():
        with refuses("rewards.column-type", f"convrec.rewards.{part}", kind):
            RewardParts({part: 1.0}, load_catalog(path), path)
    with refuses("rewards.no-columns", "convrec.rewards.catalog.safety", "catalog.pkl"):
        RewardParts({"catalog.safety": 1.0}, load_catalog(path), "catalog.pkl")
    for value in (None, math.nan):
        pq.write_table(pa.table(CATALOG | {"safety": [0.1, value, 0.2, 0.3]}), path)
        with refuses("rewards.not-finite", path, "row 1", f"safety is {value!r}"):
            RewardParts({"catalog.safety": 1.0}, load_catalog(path), path)
    pq.write_table(pa.table(CATALOG | {"genres": [[]] * 4}, schema=pa.table(CATALOG).schema), path)
    with refuses("rewards.empty-column", path, "genres"):
        RewardParts({"diversity": 1.0}, load_catalog(path), path)


def test_names_of_parts() -> None:
    known = (*REWARD_PARTS, "catalog.safety", "diversity.title")
    assert [name for name in (*known, "catalog.", "diversity.", "safety", 3) if not is_part(name)] == [
        "catalog.",
        "diversity.",
        "safety",
        3,
    ]


class CountedList(list[float]):
    """Counts how many of its values are read."""

    num_read = 0

    def __iter__(self) -> Iterator[float]:
        for value in super().__iter__():
            self.num_read += 1
            yield value


@pytest.mark.parametrize("name", ["popularity", "novelty"])
def test_mentions_are_read_a_few_times_however_many_there_are(name: str) -> None:
    mentions_M = CountedList(range(1000))
    scores_M = score_mentions(name, mentions_M)
    assert len(scores_M) == 1000
    assert mentions_M.num_read <= 3 * 1000
