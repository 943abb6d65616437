"""The items of ratings: their ids, and what else a catalog has of each."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from convrec.base.errors import UserError
from convrec.data.damage import BadRecord, Damage
from convrec.data.records import Records
from data_prep.own_data import NAMES
from data_prep.own_data.ids import SPOILED_ID, plain_id
from data_prep.own_data.layouts import plain_name, read_layout
from data_prep.own_data.ratings import ROLES

ID_NAMES = [*ROLES["item"], "id"]
KEPT = {name for names in NAMES["catalog"].values() for name in names}


def iter_items(path: Path, given: Sequence[str], damage: Damage) -> Records:
    """Read the items that ratings are of, in any layout of MovieLens, RecBole and others, or with a header.

    Args:
        path: the file.
        given: OURS=THEIRS for columns that have no usual name; ours are item_id, title, year, ...
        damage: gets items without an id.

    Yields:
        The row, and `item_id` with what a catalog can read of the item (`read_catalog`).
    """
    names = _parse_columns(path, given)
    missing = dict.fromkeys(names)  # columns that no record has had so far
    columns: dict[str, None] = {}
    for number, record in read_layout(path, damage):
        missing = {name: None for name in missing if name not in record}
        columns.update(dict.fromkeys(record))
        renamed = {names.get(name, name): cell for name, cell in record.items()}
        id_column = _find_id(renamed)
        item_id = plain_id(renamed.get(id_column))
        if item_id is None:
            damage.add(path, number, _make_bad_record(id_column, renamed))
            continue
        further = {name: cell for name, cell in renamed.items() if name in names.values() or plain_name(name) in KEPT}
        yield number, further | {"item_id": item_id}
    if missing:
        raise UserError(
            f"{path}: no column {next(iter(missing))}, which --item-columns names; it has {', '.join(columns)}"
        )


def _parse_columns(path: Path, given: Sequence[str]) -> dict[str, str]:
    """Their name of a column -> ours."""
    if wrong := [entry for entry in given if not all(entry.partition("="))]:
        raise UserError(f"{path}: --item-columns {wrong[0]}: write item_id=THEIRS title=THEIRS ...")
    return {theirs: ours for ours, _, theirs in (entry.partition("=") for entry in given)}


def _find_id(record: Mapping[str, Any]) -> str:
    """The column of the id, "" for none."""
    if "item_id" in record:
        return "item_id"
    plain_names = {plain_name(name): name for name in reversed([*record])}
    return next((plain_names[known] for known in ID_NAMES if known in plain_names), "")


def _make_bad_record(id_column: str, record: Mapping[str, Any]) -> BadRecord:
    if id_column and record[id_column] not in (None, ""):
        problem = BadRecord(SPOILED_ID, record[id_column])
        problem.column = id_column
        return problem
    return BadRecord(
        "no id of an item (the keys are %s); name its column: --item-columns item_id=THEIRS", ", ".join(record)
    )
