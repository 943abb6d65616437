"""How often training rows want each item, and after what was named: what popularity and sentences say.

`--train` of `convrec serve` and `convrec recommend` counts it, into a small file beside the catalog, which is found
without it, too. Items are told by their lines, `Title (Year)`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.base.errors import UserError
from convrec.base.files import write_table
from convrec.data.schema import RL_SCHEMA
from convrec.data.validation import validate_rl_table
from convrec.lists.settings import ListSettings, make_matcher
from convrec.retrieval.conversations import read_row
from convrec.titles.catalog import load_catalog

COLUMN = "mentions"  # of a catalog, of any source, where there is no file
LEAST = 2  # times that a pair is kept from: once would be somebody's own wish
# named: among the seen titles of these rows; null: all rows. times: how many rows
SCHEMA = pa.schema([("item", pa.string()), ("named", pa.string()), ("times", pa.int64())])
Mentions: TypeAlias = Mapping[tuple[str, str | None], int]  # (item, named) -> times


def mentions_file(catalog: Path) -> Path:
    return catalog.with_suffix(".mentions.parquet")


def load_mentions(catalog: Path) -> Mentions | None:
    """None where there is no file. Raises UserError for a damaged one."""
    try:
        columns = pq.read_table(mentions_file(catalog)).select(SCHEMA.names).cast(SCHEMA).to_pydict()
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{mentions_file(catalog)}: not readable ({error}); make it again with --train") from None
    return dict(zip(zip(columns["item"], columns["named"], strict=True), columns["times"], strict=True))


def write_mentions(train: Sequence[Path], catalog_file: Path) -> None:
    """Count these tables; of none, nothing is done. Raises UserError for files that are no training tables of RL."""
    if not train:
        return
    catalog = load_catalog(catalog_file)
    matcher = make_matcher(catalog, ListSettings())
    times = Counter[tuple[int, int | None]]()
    for file in train:
        validate_rl_table(file, allow_empty_ground_truth=True, dated=catalog.dated)
        for batch in pq.ParquetFile(file).iter_batches(columns=RL_SCHEMA.names):
            for asked in (read_row(row, matcher) for row in batch.to_pylist()):
                for item in asked.wanted:
                    times.update((item, other) for other in (None, *({*asked.named} - {item})))
    lines = catalog.lines
    rows = [
        {"item": lines[item], "named": None if named is None else lines[named], "times": count}
        for (item, named), count in times.most_common()
        if named is None or count >= LEAST
    ]
    write_table(mentions_file(catalog_file), pa.Table.from_pylist(rows, SCHEMA))
