"""Files of ratings, or of events without them -> a table of users, items and times. 25 million rows take a few hundred
MB: block by block what is read becomes numbers."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from convrec.data.damage import BadRecord, Damage, kind_of
from convrec.data.records import parquet_batches, read_records
from convrec.errors import UserError
from data_prep.own_data import NAMES

ROLES: dict[str, list[str]] = NAMES["ratings"]  # role -> columns
FIXES = {"user": "fill it in", "item": "fill it in", "rating": "write a number", "time": "write a date, or seconds"}
WITHOUT_HEADER = ("u.data", "ratings.dat")  # MovieLens; their columns are the roles
BLOCK_ROWS = 1 << 18
LATEST_SECONDS = 10**11  # a larger number is milliseconds
GOODREADS_TIME = "%a %b %d %H:%M:%S %z %Y"


def read_ratings(path: Path, given: Sequence[str], min_rating: float | None, damage: Damage) -> tuple[pa.Table, int]:
    """(`user` and `item`, dictionaries, and `time`, seconds, where the file has it; rows read) of the rows that are
    rated `min_rating` or better; None: of all. given: see `find_columns`. Damaged rows go to `damage`. Raises
    UserError."""
    tables, num_read, num_sound = [], 0, 0
    for cells in _blocks(path, given, damage):
        num_read += len(cells)
        roles = [role for role in cells if role != "rating" or min_rating is not None]
        if min_rating is not None and "rating" not in roles:
            raise UserError(f"{path}: no column of ratings, by which --min-rating chooses; --columns rating=NAME")
        values = pd.DataFrame({role: _values(role, cells[role].fillna("").astype("str").str.strip()) for role in roles})
        for role in roles:
            for row, cell in cells.loc[values[role].isna(), role].items():
                damage.add(path, int(row), BadRecord(f"{role} is %r; {FIXES[role]}", cell))
        if damage.share is None:
            damage.check()  # at once: not a finding for each of millions of rows
        values = values.dropna()
        num_sound += len(values)
        if min_rating is not None:
            values = values[values.pop("rating") >= min_rating]
        columns = {role: pa.array(values[role], pa.string()).dictionary_encode() for role in ("user", "item")}
        tables.append(pa.table(columns | {role: values[role].astype("int64") for role in values if role == "time"}))
    damage.check([path], num_sound)
    if not any(map(len, tables)):
        raise UserError(f"{path}: no ratings that count, of {num_read:,}; check how it was written, and --min-rating")
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks(), num_read


def _values(role: str, texts: pd.Series) -> pd.Series:
    """What the cells say; null for what they cannot say. Times are seconds; true and false are 1 and 0."""
    if role in ("user", "item"):
        return texts.mask(texts == "")
    numbers = pd.to_numeric(texts.str.lower().replace({"true": "1", "false": "0"}), errors="coerce")
    if role == "rating":
        return numbers
    seconds = numbers.mask(numbers > LATEST_SECONDS, numbers / 1000)
    for form in (GOODREADS_TIME, "mixed"):  # the second is slow where it is not ISO 8601
        if len(others := texts[seconds.isna() & (texts != "")]):
            dates = pd.to_datetime(others, errors="coerce", utc=True, format=form)
            seconds.update((dates - pd.Timestamp(0, tz="UTC")).dt.total_seconds())
    return seconds


def find_columns(path: Path, names: Sequence[str], given: Sequence[str]) -> dict[str, str]:
    """column -> its role, of a file that has these; given: ROLE=NAME, or nothing. Rating and time may be missing."""
    plain = {name.lower().replace("_", ""): name for name in reversed(names)}
    found = {role: next((plain[name] for name in known if name in plain), "") for role, known in ROLES.items()}
    found |= dict(entry.split("=", 1) for entry in given)
    for role, column in found.items():
        is_there = column in names and [*found.values()].count(column) == 1
        if role not in ROLES or not (is_there or (column == "" and role in ("rating", "time"))):
            raise UserError(
                f"{path}: no column {column or '?'} of its own for {role} among {', '.join(names)}; name it with "
                f"--columns {role}=NAME or, where there is no header, all in their order: --columns {' '.join(ROLES)}"
            )
    return {column: role for role, column in found.items() if column}


def _blocks(path: Path, given: Sequence[str], damage: Damage) -> Iterator[pd.DataFrame]:
    """Cells of the roles that there are; the index is the rows' numbers."""
    try:
        if kind_of(path) == ".parquet":
            roles = find_columns(path, pq.read_schema(path).names, given)
            for batch, numbers in parquet_batches(path, damage, [*roles]):
                yield batch.to_pandas().set_axis(numbers).rename(columns=roles)
        elif kind_of(path) in (".json", ".jsonl", ".ndjson"):
            records = read_records(path, damage)
            while block := dict(islice(records, BLOCK_ROWS)):
                roles = find_columns(path, list({key: None for record in block.values() for key in record}), given)
                rows = [[record.get(name) for name in roles] for record in block.values()]
                yield pd.DataFrame(rows, [*block], [*roles.values()])
        else:
            yield from _csv_blocks(path, given)
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: not readable ({error}); write CSV in UTF-8 with as many cells in every row") from None


def _csv_blocks(path: Path, given: Sequence[str]) -> Iterator[pd.DataFrame]:
    """Cells are divided as those of the first line. Columns that `given` names without `=` are those of a file that has
    no header; `-` is one that is not read."""
    with pa.input_stream(str(path)) as file:
        first = file.read(1 << 16).partition(b"\n")[0].decode("utf-8", "replace")
    names = [*ROLES] if path.name in WITHOUT_HEADER else [name for name in given if "=" not in name]
    divider = max(",\t;|", key=first.count)
    if "::" in first:  # Arrow has dividers of one character: an empty cell between any two
        divider, names = ":", [name for one in names for name in (one, "-")][:-1]
    how = csv.ReadOptions(use_threads=False, block_size=1 << 24, column_names=names or None)
    cells = csv.ParseOptions(delimiter=divider, newlines_in_values=not names)
    line, header = 1 if names else 2, names or csv.open_csv(path, how, cells).schema.names
    roles = find_columns(path, header, [entry for entry in given if "=" in entry])
    texts = csv.ConvertOptions(include_columns=[*roles], column_types=dict.fromkeys(roles, pa.string()))
    for batch in csv.open_csv(path, how, cells, texts):
        yield batch.to_pandas().set_axis(np.arange(line, line + len(batch))).rename(columns=roles)
        line += len(batch)
