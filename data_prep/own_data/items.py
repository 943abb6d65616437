"""The items that ratings refer to: their ids, and the columns that a catalog needs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from convrec.base.errors import UserError
from convrec.data.damage import BadRecord, Damage
from convrec.data.records import Records
from data_prep.own_data import NAMES
from data_prep.own_data.ids import make_truncated_id_error, normalise_id
from data_prep.own_data.layouts import normalise_name, read_layout
from data_prep.own_data.ratings import ROLES

ID_NAMES = [*ROLES["item"], "id"]
CATALOG_NAMES = {name for names in NAMES["catalog"].values() for name in names}


def iter_items(path: Path, column_options: Sequence[str], damage: Damage) -> Records:
    """Read the items that ratings refer to: a table with a header, or a layout of MovieLens, RecBole or others.

    Args:
        path: the file.
        column_options: OURS=THEIRS for columns without a usual name; ours are item_id, title, year, ...
        damage: collects items without an id.

    Yields:
        The row number, and `item_id` with the columns that `read_catalog` understands.

    Raises:
        UserError: An entry of `column_options` is not OURS=THEIRS, or names a column that the file lacks.
    """
    names = _parse_columns(path, column_options)
    missing = dict.fromkeys(names)  # columns that no record has had so far
    columns: dict[str, None] = {}
    for number, record in read_layout(path, damage):
        missing = {name: None for name in missing if name not in record}
        columns.update(dict.fromkeys(record))
        renamed = {names.get(name, name): cell for name, cell in record.items()}
        id_column = _find_id(renamed)
        item_id = normalise_id(renamed.get(id_column))
        if item_id is None:
            damage.add(path, number, _make_bad_record(id_column, renamed))
            continue
        catalog_cells = {
            name: cell
            for name, cell in renamed.items()
            if name in names.values() or normalise_name(name) in CATALOG_NAMES
        }
        yield number, catalog_cells | {"item_id": item_id}
    if missing:
        name = next(iter(missing))
        raise UserError(
            "items.missing-column",
            f"--item-columns {names[name]}={name}: {path} has no such column; its columns are {', '.join(columns)}",
        )


def _parse_columns(path: Path, column_options: Sequence[str]) -> dict[str, str]:
    """Return the file's name of each column -> ours."""
    malformed = [entry for entry in column_options if not all(entry.partition("="))]
    if malformed:
        raise UserError(
            "items.malformed-column",
            f"--item-columns {malformed[0]}: not OURS=THEIRS; write item_id=THEIRS title=THEIRS ... (for {path})",
        )
    return {theirs: ours for ours, _, theirs in (entry.partition("=") for entry in column_options)}


def _find_id(record: Mapping[str, Any]) -> str:
    """Return the column that holds the id, "" if there is none."""
    if "item_id" in record:
        return "item_id"
    plain_names = {normalise_name(name): name for name in reversed([*record])}
    return next((plain_names[known] for known in ID_NAMES if known in plain_names), "")


def _make_bad_record(id_column: str, record: Mapping[str, Any]) -> BadRecord:
    if id_column and record[id_column] not in (None, ""):
        return make_truncated_id_error(record[id_column], id_column)
    return BadRecord(
        "ratings.no-item-id",
        "no item id (the keys are %s); name its column: --item-columns item_id=THEIRS",
        ", ".join(record),
    )
