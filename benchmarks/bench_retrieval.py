"""Time and memory of retrieval on generated conversations. Prints one JSON object.

python benchmarks/bench_retrieval.py [--rows 1000000] [--items 7404] [--words 80] [--queries 200]

Words and items are drawn by Zipf's law. `fit` reads the rows as they are made; what it wrote is loaded again, and asked
for lists of conversations like those of training: of a half of them training has rows of the same conversation, which
are left out. Milliseconds a query are medians, of wall and of CPU; others may use the machine. `peak MiB` is this
process's, generation included.
"""

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from convrec.retrieval.conversations import Conversation
from convrec.retrieval.folder import load, save
from convrec.retrieval.retriever import Choice, fit
from convrec.titles.catalog import load_catalog
from convrec.titles.matching import Matcher

VOCABULARY, BLOCK, ROWS_OF_A_CONVERSATION = 200_000, 5000, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in {"rows": 1_000_000, "items": 7404, "words": 80, "queries": 200, "seed": 3407}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    report: dict[str, Any] = {"rows": given.rows, "items": given.items, "words": given.words, "seconds": {}}
    rng = np.random.default_rng(given.seed)
    with tempfile.TemporaryDirectory() as temporary:
        catalog, folder = Path(temporary) / "catalog.parquet", Path(temporary) / "retrieval"
        folder.mkdir()
        years = pa.array([1930 + n % 90 for n in range(given.items)], pa.int32())
        pq.write_table(pa.table({"title": [word(n + 1) for n in range(given.items)], "year": years}), catalog)
        matcher = Matcher(load_catalog(catalog), "exact")
        start = time.perf_counter()
        fitted = fit(conversations(given.rows, given.items, given.words, rng), given.rows, given.items)
        save(
            folder,
            fitted,
            matcher.catalog,
            {"choice": asdict(Choice(weights=dict.fromkeys(("neighbours", "ridge", "text"), 1.0)))},
        )
        report["seconds"]["fit"] = time.perf_counter() - start
        report["MiB of the folder"] = sum(file.stat().st_size for file in folder.iterdir()) >> 20
        del fitted
        start = time.perf_counter()
        retriever, _ = load(folder, catalog, matcher)
        report["seconds"]["load"] = time.perf_counter() - start
        spent = []
        for number, asked in enumerate(conversations(given.queries, given.items, given.words, rng)):
            if number % 2:
                asked = asked._replace(name=f"c{number}")
            wall, cpu = time.perf_counter(), time.process_time()
            found = retriever.rank(asked)
            spent.append((time.perf_counter() - wall, time.process_time() - cpu))
            assert len(found) == len(set(found)) >= min(20, given.items)
        milliseconds = 1000 * np.array(spent)
        report["ms a query"] = dict(
            zip(("wall", "cpu"), np.median(milliseconds, axis=0).round(2).tolist(), strict=True)
        )
        report["slowest of a hundred"] = dict(
            zip(("wall", "cpu"), np.quantile(milliseconds, 0.99, axis=0).round(2).tolist(), strict=True)
        )
    report["peak MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(json.dumps(report, indent=2))


def word(number: int) -> str:
    """The n-th made-up word: syllables as digits, `ba` and two at least, so that none is a stop word."""
    syllables = [first + second for first in "bcdfghklmnprstvw" for second in "aeiou"]
    text = "ba"
    while number:
        number, digit = divmod(number, len(syllables))
        text += syllables[digit]
    return text


def conversations(rows: int, items: int, words: int, rng: np.random.Generator) -> Iterator[Conversation]:
    """ROWS_OF_A_CONVERSATION in a row have one name, and each names up to four items and wants one to three."""
    vocabulary = np.array([word(n) for n in range(1, VOCABULARY + 1)])
    for start in range(0, rows, BLOCK):
        size = min(BLOCK, rows - start)
        said, drawn = zipf(rng, VOCABULARY, (size, words)), zipf(rng, items, (size, 7))
        named, wanted = rng.integers(0, 5, size), rng.integers(1, 4, size)
        for n, text in enumerate(vocabulary[said]):
            name = f"c{(start + n) // ROWS_OF_A_CONVERSATION}"
            of_row = drawn[n].tolist()
            yield Conversation(
                " ".join(text), sorted({*of_row[: named[n]]}), name, sorted({*of_row[4 : 4 + wanted[n]]})
            )


def zipf(rng: np.random.Generator, count: int, shape: tuple[int, int]) -> np.ndarray:
    """Numbers below `count`, n with a share of 1 / (n + 10)."""
    share = np.cumsum(1 / np.arange(10, count + 10))
    return np.searchsorted(share / share[-1], rng.random(shape))


if __name__ == "__main__":
    main()
