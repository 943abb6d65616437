from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.data.schema import RL_SCHEMA
from convrec.titles.catalog import Catalog
from convrec.titles.matching import Matcher
from reward.catalog_match import count_training_mentions


def test_mentions_count_rows_under_the_items_first_spelling(tmp_path: Path) -> None:
    # row 2 of the catalog is row 0 in another spelling
    catalog = Catalog.from_items([("Amélie", 2001), ("Heat", 1995), ("Amelie", 2001), ("Jaws", 1975)])
    files = []
    for number, truths in enumerate(
        [
            [[["Amelie", "2001"], ["Amélie", "2001"]], [["Heat", "1995"], ["Nowhere", "1999"]]],  # once a row
            [[["Amélie", "2001"]], None, [["Heat", ""], ["Jaw", None]]],  # no year: the only film of that name
        ]
    ):
        rows = [{"prompt": [], "seen_titles": [], "groundtruth_with_release_year": truth} for truth in truths]
        files.append(str(tmp_path / f"{number}.parquet"))
        pq.write_table(pa.Table.from_pylist(rows, RL_SCHEMA), files[-1])
    assert count_training_mentions(files, Matcher(catalog)) == [2, 2, 0, 0]
    assert count_training_mentions(files[1:], Matcher(catalog)) == [1, 1, 0, 0]
