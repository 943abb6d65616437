"""Explanations: each is true of the sample's catalog and training rows, which are counted independently here."""

import random
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec import Recommender
from convrec.base.errors import UserError
from convrec.data.schema import TRUTH
from convrec.inference.served_catalog.mentions import find_mentions_file, load_mentions, write_mentions
from data_prep.sample import write_sample
from tests.user_errors import refuses


class Sample(NamedTuple):
    rows: list[dict[str, Any]]
    films: dict[str, dict[str, Any]]  # item_id -> row of the catalog
    recommender: Recommender


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory, unread_model: Path) -> Sample:
    folder = write_sample(tmp_path_factory.mktemp("sample") / "data", counts={"train": 600, "validation": 1, "test": 1})
    train, catalog = folder / "train.parquet", folder / "catalog.parquet"
    write_mentions([train], catalog)
    films = {str(row): film for row, film in enumerate(pq.read_table(catalog).to_pylist())}
    recommender = Recommender.load(unread_model, catalog, max_items=20, with_engine=False)
    return Sample(pq.read_table(train).to_pylist(), films, recommender)


def get_name(film: dict[str, Any]) -> list[str]:
    return [film["title"], str(film["year"])]


def wanted_after(sample: Sample, film: dict[str, Any], named: str) -> int:
    return sum(named in row["seen_titles"] and get_name(film) in row[TRUTH] for row in sample.rows)


def test_every_sentence_is_true(sample: Sample) -> None:
    wanted = Counter(tuple(pair) for row in sample.rows for pair in row[TRUTH])
    times = {item_id: wanted[tuple(get_name(film))] for item_id, film in sample.films.items()}
    rng, kinds = random.Random(3), Counter[str]()
    for liked in ([], *(rng.sample(sorted(sample.films), 3) for _ in range(4))):
        titles = {sample.films[one]["title"] for one in liked}
        found = [
            item
            for item_id in sample.films
            for item in sample.recommender.popular("hi", 1, allow=[item_id], liked=liked, why=True)
        ]
        assert len(found) == len(sample.films)
        for item in found:
            film = sample.films[item.item_id]
            match item.why and re.split(r" (?=named|like |times,)|, which| wanted this| more often", item.why):
                case ["Others who", named, count]:
                    title = named.removeprefix("named ")
                    assert title in titles - ({film["title"]} if liked == [item.item_id] else set())
                    assert wanted_after(sample, film, title) == int(count.split()[0]) > 1
                    kinds["others"] += 1
                case [genres, other, " you liked."]:
                    title = other.removeprefix("like ")
                    (similar, *_) = [sample.films[one] for one in liked if sample.films[one]["title"] == title]
                    shared = set(re.split(", | and ", genres.removesuffix(",")))
                    assert shared <= {*film["genres"]} & {*similar["genres"]}
                    kinds["genres"] += 1
                case [count, "times,", " than nine of ten others."]:
                    own = times[item.item_id]
                    assert own == int(count.removeprefix("Wanted "))
                    fewer = sum(own > other for other in times.values())
                    assert fewer >= 0.9 * (len(times) - 1)
                    kinds["popular"] += 1
                case _:
                    assert item.why is None
                    assert not any(
                        {*film["genres"]} & {*sample.films[one]["genres"]} for one in liked if one != item.item_id
                    )
                    assert all(wanted_after(sample, film, title) < 2 for title in titles)
                    kinds["none"] += 1
    assert min(kinds[kind] for kind in ("others", "genres", "popular", "none")) > 3, kinds


@pytest.mark.parametrize(
    ("genres", "mentions", "expected"),
    [
        (["Crime"], [9, 0], "Crime, like Heat, which you liked."),
        (["Crime", "Drama"], [9, 0], "Crime and Drama, like Heat, which you liked."),
        (["Crime", "Drama", "War", "Western"], [9, 0], "Crime, Drama and War, like Heat, which you liked."),
        ([], [0, 1], "Wanted once, more often than nine of ten others."),
        ([], [0, 2], "Wanted 2 times, more often than nine of ten others."),
        ([], [0, 12345], "Wanted 12,345 times, more often than nine of ten others."),
    ],
)
def test_numbers_and_lists_are_written_naturally(
    tmp_path: Path, unread_model: Path, genres: list[str], mentions: list[int], expected: str
) -> None:
    others = [f"Film {number}" for number in range(18)]
    table = {
        "title": ["Heat", "Ran", *others],
        "year": [1995] * 20,
        "genres": [["Crime", "Drama", "War", "Western"], genres, *[[]] * 18],
        "mentions": [*mentions, *[0] * 18],
    }
    pq.write_table(pa.table(table), tmp_path / "catalog.parquet")
    recommender = Recommender.load(unread_model, tmp_path / "catalog.parquet", max_items=20, with_engine=False)
    (item,) = recommender.popular("hi", 1, allow=["Ran"], liked=["Heat"], why=True)
    assert item.why == expected


def test_why_is_none_by_default_and_for_the_liked_item_itself(sample: Sample) -> None:
    (item,) = sample.recommender.popular("hi", 1, liked=["0"])
    assert item.why is None
    rare = min(sample.films, key=lambda one: sum(get_name(sample.films[one]) in row[TRUTH] for row in sample.rows))
    (item,) = sample.recommender.popular("hi", 1, allow=[rare], liked=[rare], why=True)
    assert item.why is None
    with refuses("recommender.items", "liked: "):
        sample.recommender.popular("hi", 1, liked="0", why=True)


def test_counts_are_those_of_the_rows_of_one_catalog(sample: Sample, tmp_path: Path) -> None:
    snapshot = sample.recommender.catalog.snapshot
    assert [snapshot.count_mentions(int(item_id)) for item_id in sample.films] == [
        film["mentions"]
        for film in sample.films.values()  # counted by `data sample`
    ]
    catalog = tmp_path / "catalog.parquet"
    pq.write_table(pa.Table.from_pylist([*sample.films.values()]), catalog)
    assert load_mentions(catalog) is None
    write_mentions([], catalog)
    assert not find_mentions_file(catalog).exists()
    with pytest.raises(UserError, match=r"no\.parquet: no such file"):
        write_mentions([tmp_path / "no.parquet"], catalog)
    pairs = [times for (_, named), times in (snapshot.mentions or {}).items() if named is not None]
    assert min(pairs) == 2  # a single mention could be one person's wish
