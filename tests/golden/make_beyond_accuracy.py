"""Writes into beyond_accuracy.json what LensKit, RecTools and SciPy say of the lists that it holds.

They were drawn once: 0 to 6 of 30 items a list, popular ones more often; every fifth item has no genres.
In an environment of its own (the pins of LensKit and RecTools exclude each other, both work with pyarrow 19):
    pip install lenskit==2025.8.1 rectools==0.19.0 scipy==1.17.1; pip install pyarrow==19.0.1
    python tests/golden/make_beyond_accuracy.py
"""

import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
from lenskit.data import ItemList, ItemListCollection
from lenskit.metrics import ListGini, RunAnalysis
from rectools.metrics import (
    AvgRecPopularity,
    CatalogCoverage,
    IntraListDiversity,
    MeanInvUserFreq,
    PairwiseDistanceCalculator,
)
from scipy.stats import entropy

FILE = Path(__file__).with_name("beyond_accuracy.json")
GIVEN = json.loads(FILE.read_text())
ITEMS, LONGEST, GENRES = GIVEN["items"], GIVEN["longest"], "abcdef"


class JaccardDistances(PairwiseDistanceCalculator):
    def __init__(self, genres: list[str]):
        self.genres = [set(text) for text in genres]

    def _get_distances_for_item_pairs(self, items_0, items_1):
        pairs = [(self.genres[a], self.genres[b]) for a, b in zip(items_0, items_1, strict=True)]
        return np.array([1 - len(a & b) / len(a | b) for a, b in pairs])


def frame(lists: list[list[int]]) -> pd.DataFrame:
    rows = [(user, item, rank) for user, items in enumerate(lists) for rank, item in enumerate(items, 1)]
    return pd.DataFrame(rows, columns=["user_id", "item_id", "rank"])


def genre_shares(items: list[int], genres: list[str]) -> pd.Series:
    shares = [pd.Series(1 / len(genres[item]), list(genres[item])) for item in items if genres[item]]
    return pd.concat(shares).groupby(level=0).sum() / len(shares) if shares else pd.Series(dtype=float)


def calibration(mentioned: list[int], listed: list[int], genres: list[str]) -> float | None:
    p, q = (genre_shares(items, genres).reindex(list(GENRES), fill_value=0.0) for items in (mentioned, listed))
    return float(entropy(p, 0.99 * q + 0.01 * p)) if p.any() and q.any() else None


def figures(drawn: dict[str, list]) -> dict[str, object]:
    lists, genres, rows = drawn["lists"], drawn["genres"], range(len(drawn["lists"]))
    reco, training, wanted = (frame(drawn[name]) for name in ("lists", "training", "wanted"))
    known = [[item for item in items if genres[item]] for items in lists]
    diversity = IntraListDiversity(LONGEST, JaccardDistances(genres)).calc_per_user(
        frame([items if len(items) > 1 else [] for items in known])
    )
    popularity = AvgRecPopularity(LONGEST)
    has_list = wanted[wanted.user_id.isin(reco.user_id)]
    analysis = RunAnalysis(ListGini(items=ITEMS))
    collection = ItemListCollection.from_dict({row: ItemList(item_ids=lists[row], ordered=True) for row in rows})
    gini = analysis.measure(collection, collection).global_metrics().iloc[0]

    def by_row(values: pd.Series) -> list[float | None]:
        return [float(values[row]) if row in values.index else None for row in rows]

    return {
        "coverage": CatalogCoverage(LONGEST, normalize=True).calc(reco, range(ITEMS)),
        "gini": float(gini),
        "popularity_lift": popularity.calc(reco, training) / popularity.calc(has_list, training) - 1,
        "popularity": by_row(popularity.calc_per_user(reco, training)),
        "novelty": by_row(MeanInvUserFreq(LONGEST).calc_per_user(reco, training)),
        "diversity": by_row(diversity),
        "calibration": [calibration(drawn["mentioned"][row], lists[row], genres) for row in rows],
    }


if __name__ == "__main__":
    versions = {name: version(name) for name in ("lenskit", "rectools", "scipy")}
    golden = GIVEN | {"versions": versions, "expected": figures(GIVEN)}
    text = ",\n".join(f' "{name}": {json.dumps(value)}' for name, value in golden.items())
    FILE.write_text("{\n" + text + "\n}\n")
