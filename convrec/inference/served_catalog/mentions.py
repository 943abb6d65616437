"""Counts how often each item is relevant in the training data, and after which named items.

The counts give popularity and explanations. `--train` of `convrec serve` and `convrec recommend` writes them to a small
file next to the catalog, which later starts find without the option. Items are identified by their lines,
`Title (Year)`.
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

COLUMN = "mentions"  # a catalog's column with counts from any source, used without a file
MIN_PAIR_MENTIONS = 2  # of a stored pair: a single one could be one person's wish
# `named` is a seen title of the counted rows, null for all rows; `times` is their number.
SCHEMA = pa.schema([("item", pa.string()), ("named", pa.string()), ("times", pa.int64())])
Mentions: TypeAlias = Mapping[tuple[str, str | None], int]  # (item, named) -> times


def find_mentions_file(catalog: Path) -> Path:
    """Return the path of the counts for a catalog."""
    return catalog.with_suffix(".mentions.parquet")


def load_mentions(catalog: Path) -> Mentions | None:
    """Load the counts for a catalog; None if there is no file.

    Raises:
        UserError: the file is damaged.
    """
    file = find_mentions_file(catalog)
    try:
        columns = pq.read_table(file).select(SCHEMA.names).cast(SCHEMA).to_pydict()
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError) as error:
        raise UserError("mentions.damaged-file", f"{file}: not readable ({error}). Recreate it with --train.") from None
    return dict(zip(zip(columns["item"], columns["named"], strict=True), columns["times"], strict=True))


def write_mentions(train: Sequence[Path], catalog_file: Path) -> None:
    """Count the mentions in training tables, and write them next to the catalog. Without tables, do nothing.

    Raises:
        UserError: a file is not an RL training table.
    """
    if not train:
        return
    catalog = load_catalog(catalog_file)
    matcher = make_matcher(catalog, ListSettings())
    times = Counter[tuple[int, int | None]]()
    for file in train:
        validate_rl_table(file, allow_empty_ground_truth=True, dated=catalog.dated)
        for batch in pq.ParquetFile(file).iter_batches(columns=RL_SCHEMA.names):
            for conversation in (read_row(row, matcher) for row in batch.to_pylist()):
                for item in conversation.wanted:
                    times.update((item, other) for other in (None, *({*conversation.named} - {item})))
    lines = catalog.lines
    rows = [
        {"item": lines[item], "named": None if named is None else lines[named], "times": count}
        for (item, named), count in times.most_common()
        if named is None or count >= MIN_PAIR_MENTIONS
    ]
    write_table(find_mentions_file(catalog_file), pa.Table.from_pylist(rows, SCHEMA))
