"""How often the training rows want each item of the catalog: for the reward parts of mentions."""

from collections import Counter
from collections.abc import Iterable

import pyarrow.parquet as pq

from convrec.data.schema import TRUTH, Pair
from convrec.lists.matching import Matcher


def training_mentions(files: Iterable[str], matcher: Matcher) -> list[int]:
    """(M,) How many training rows want the item, at the first of its catalog rows; 0 at its other rows."""
    wanted: Counter[frozenset[Pair]] = Counter()
    for file in files:
        for batch in pq.ParquetFile(file).iter_batches(columns=[TRUTH]):
            wanted.update(
                frozenset((title, year) for title, year in truth or ()) for truth in batch.column(0).to_pylist()
            )
    mentions_M = [0] * len(matcher.catalog)
    for truth, rows in wanted.items():
        for item in {matcher.wanted(*pair).index for pair in truth} - {-1}:
            mentions_M[item] += rows
    return mentions_M
