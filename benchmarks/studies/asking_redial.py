"""ReDial with genres to ask about (notes/asking.md): a folder of benchmarks.studies.retrieval and MovieLens' genres.

    python -m benchmarks.studies.asking_redial DATA ml-25m/movies.csv OUT

Titles are found as lists are matched: "Matrix, The (1999)" is "The Matrix", 1999. Demonstrations for the prompt of a
training or validation row take its ground truth, which questions are answered from; the others ask nothing.
"""

import csv
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.base.files import atomic_write_folder
from convrec.data.schema import SFT_SCHEMA, TRUTH
from convrec.titles.catalog import load_catalog
from convrec.titles.matching import Matcher
from data_prep.questions import SPLITS, add_questions

NO_GENRE = "(no genres listed)"
NUM_ITEMS = 20


def genres_of(movies: Path, matcher: Matcher) -> dict[int, list[str]]:
    """Find the genres of catalog items in MovieLens.

    Args:
        movies: movies.csv.
        matcher: of the catalog.

    Returns:
        Row of the catalog -> the genres of the first film that matches it and has any.
    """
    with movies.open(newline="", encoding="utf-8") as file:
        films = list(csv.DictReader(file))
    # some copies have semicolons for commas
    lines = [film["title"].replace(";", ", ") for film in films]
    rows = [matcher.match_lines([line], (), None).catalog_index[0] for line in lines]
    found: dict[int, list[str]] = {}
    for row, film in zip(rows, films, strict=True):
        if row >= 0 and film["genres"] != NO_GENRE:
            found.setdefault(row, film["genres"].split("|"))
    return found


def with_truth(demonstrations: list[dict], rows: list[dict]) -> list[dict]:
    """Give demonstrations the id and the ground truth of the row with their prompt, if there is one.

    Args:
        demonstrations: rows of the SFT table.
        rows: rows with ground truth.
    """
    known = {row["prompt"][0]["content"]: {name: row[name] for name in ("sample_id", TRUTH)} for row in rows}
    return [one | known.get(one["prompt"][0]["content"], {}) for one in demonstrations]


def main(data: Path, movies: Path, out: Path) -> None:
    matcher = Matcher(load_catalog(data / "catalog.parquet"))
    with atomic_write_folder(out) as folder:
        for file in data.glob("*.parquet"):
            shutil.copyfile(file, folder / file.name)
        catalog = pq.read_table(data / "catalog.parquet")
        genres = genres_of(movies, matcher)
        column = pa.array([genres.get(row) for row in range(len(catalog))], pa.list_(pa.string()))
        pq.write_table(catalog.append_column("genres", column), folder / "catalog.parquet")
        for split in SPLITS:
            file = folder / f"sft_{split}.parquet"
            rows = with_truth(pq.read_table(file).to_pylist(), pq.read_table(folder / f"{split}.parquet").to_pylist())
            pq.write_table(pa.Table.from_pylist(rows, SFT_SCHEMA), file)
        _, counts = add_questions(folder, ["genre"], matcher, NUM_ITEMS)
    print(f"{out}: {len(genres)} of {len(catalog)} titles have genres; {counts}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
