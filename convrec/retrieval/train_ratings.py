"""All training ratings of `convrec data ratings`, for EASE and similar models.

Training rows name only a few of them.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from convrec.base.errors import UserError
from convrec.base.files import write_table
from convrec.titles.catalog import Catalog

TRAIN_RATINGS = "train_ratings.parquet"  # next to train.parquet
SCHEMA = pa.schema([("user", pa.int32()), ("item", pa.dictionary(pa.int32(), pa.string()))])


def write_train_ratings(folder: Path, users_E: np.ndarray, items_E: np.ndarray, catalog: Catalog) -> None:
    """Write E ratings: the user's number, and the item's line.

    Args:
        folder: the folder of the tables.
        users_E: numbers of users.
        items_E: rows of the catalog.
        catalog: the folder's catalog.
    """
    items = pa.DictionaryArray.from_arrays(pa.array(items_E, pa.int32()), pa.array(catalog.lines, pa.string()))
    write_table(folder / TRAIN_RATINGS, pa.table([pa.array(users_E, pa.int32()), items], SCHEMA))


def read_train_ratings(train: Path, catalog: Catalog) -> tuple[np.ndarray, np.ndarray] | None:
    """Read the ratings next to a training table.

    Args:
        train: the table.
        catalog: the catalog; ratings of items that it lacks are ignored.

    Returns:
        Numbers of users and rows of the catalog; None without a file.

    Raises:
        UserError: the file is not readable.
    """
    path = train.with_name(TRAIN_RATINGS)
    if not path.is_file():
        return None
    try:
        table = pq.read_table(path).cast(SCHEMA).combine_chunks()
    except (pa.ArrowInvalid, KeyError, ValueError, OSError) as error:
        raise UserError(
            "ratings.damaged-file", f"{path}: not readable ({error}). Make the folder again, or remove the file."
        ) from None
    items = table["item"].chunk(0)
    row_by_line = {line: row for row, line in enumerate(catalog.lines)}
    rows_I = np.array([row_by_line.get(line, -1) for line in items.dictionary.to_pylist()], np.int32)
    rows_E = rows_I[items.indices.to_numpy()]
    return table["user"].to_numpy()[rows_E >= 0], rows_E[rows_E >= 0]
