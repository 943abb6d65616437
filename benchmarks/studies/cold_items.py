"""The sample data with a tenth of its films hidden from training, and test conversations that want hidden ones.

    python benchmarks/studies/cold_items.py --out outputs/cold_items/data --test 5000

The catalog has every film. No training or validation row names, wants or demonstrates a hidden one. A test row is one
of convrec data sample that wants at least one, and its ground truth is those alone: what is measured is cold items.
"""

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from convrec.base.files import atomic_write_folder
from convrec.data.schema import CATALOG_SCHEMA, RL_SCHEMA, SFT_SCHEMA, TRUTH, get_truth
from convrec.lists.settings import ListSettings
from data_prep.sample import catalog_rows, make_rows
from data_prep.sample_data.films import FilmTable, load_films

SEED = 3407
BLOCK = 5000  # rows of the test split made at once, until enough of them want a hidden film


def without(table: FilmTable, hidden: np.ndarray) -> FilmTable:
    """The same films, of which nobody has heard of the hidden ones."""
    known = FilmTable(table.films)
    known.log_popularity_F = known.log_popularity_F.copy()
    known.log_popularity_F[hidden] = -np.inf
    return known


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--hidden", type=float, default=0.1, help="share of the films")
    parser.add_argument("--test", type=int, default=5000, help="rows")
    options = parser.parse_args()
    table, items = load_films(), ListSettings.num_items
    count = len(table.films)
    hidden = np.random.default_rng(SEED).choice(count, round(options.hidden * count), replace=False)
    names = {(table.films[row].title, str(table.films[row].year)) for row in hidden}
    known = without(table, hidden)
    with atomic_write_folder(options.out) as partial:
        for split, rows in (("train", 4000), ("validation", 300)):
            made = make_rows(known, split, rows, SEED, items)
            assert not any(pair in names for row in made for pair in get_truth(row))
            pq.write_table(pa.Table.from_pylist(made, RL_SCHEMA), partial / f"{split}.parquet")
            pq.write_table(pa.Table.from_pylist(made, SFT_SCHEMA), partial / f"sft_{split}.parquet")
            if split == "train":
                further = [pa.field("mentions", pa.int32()), pa.field("genres", pa.list_(pa.string()))]
                catalog = pa.Table.from_pylist(catalog_rows(table, made), pa.schema([*CATALOG_SCHEMA, *further]))
                pq.write_table(catalog, partial / "catalog.parquet")
        cold: list[dict] = []
        wanted = BLOCK
        while len(cold) < options.test:
            cold = []
            for row in make_rows(table, "test", wanted, SEED, items):
                if truth := [list(pair) for pair in get_truth(row) if tuple(pair) in names]:
                    cold.append({**row, TRUTH: truth})
            wanted *= 2
        pq.write_table(pa.Table.from_pylist(cold[: options.test], RL_SCHEMA), partial / "test.parquet")
    print(f"wrote {options.out}: {len(hidden)} of {count} films hidden")


if __name__ == "__main__":
    main()
