"""What a catalog has besides ids and titles: columns of any names, which answers show and requests filter by.

A column holds texts, whole numbers, numbers, true and false, or lists of texts. Dates are texts as 2024-03-01, decimals
numbers, `genres` lists of texts. What has another type (vectors, structs, bytes) no answer and no filter takes.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from convrec.errors import UserError
from convrec.kinds import did_you_mean
from convrec.lists.catalog import Catalog, labels_of

ITEM, YEAR, GENRES = ("item_id", "title", "year", "display"), "year", "genres"  # ITEM: no further columns
TEXTS = pa.list_(pa.string())
WORDS = {pa.string(): "texts", pa.int64(): "whole numbers", pa.float64(): "numbers", pa.bool_(): "true and false"}


def read_columns(file: Path, catalog: Catalog) -> pa.Table:
    """Those that answers and filters take, with a row for each of the catalog, which is this file's. Raises UserError
    for values that cannot be read."""
    schema = pq.read_schema(file) if file.suffix == ".parquet" else ()
    kinds = {field.name: kind for field in schema if field.name not in ITEM and (kind := _read_as(field.type))}
    try:
        table = pq.read_table(file, columns=[*kinds]).cast(pa.schema(kinds)) if kinds else pa.table({})
        table.validate(full=True)  # texts are UTF-8
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UserError(f"catalog {file}: a column cannot be read ({error}); write it again") from None
    for index, (name, kind) in enumerate(kinds.items()):
        if kind == pa.float64():  # JSON has no NaN
            table = table.set_column(index, name, pc.if_else(pc.is_finite(table[name]), table[name], None))
        if name == GENRES and catalog.genres is not None:
            table = table.set_column(index, name, pa.array(map(sorted, catalog.genres), TEXTS))
    return table


def check_columns(names: Iterable[str], schema: pa.Schema, asker: str) -> None:
    """Raise UserError, which begins with who asks, for one that no answer and no filter takes."""
    for name in names:
        if name not in schema.names:
            told = did_you_mean(str(name), schema.names) if schema.names else "it has none besides titles"
            raise UserError(f"{asker}: the catalog has no column {name!r:.80} of texts, numbers or booleans; {told}")


def read_values(record: Mapping[str, Any], schema: pa.Schema, here: str) -> dict[str, Any]:
    """The further columns of an item that is put; None for what it lacks. Raises UserError for a value of another
    type."""
    values = {field.name: record.get(field.name) for field in schema}
    if isinstance(values.get(GENRES), str):
        values[GENRES] = sorted(labels_of(values[GENRES]))
    given = [name for name, value in values.items() if value is not None]
    typed = {name: _typed([values[name]], schema.field(name).type, f"{here}: {name}") for name in given}
    return values | {name: array[0].as_py() for name, array in typed.items()}


def find_items(
    where: Any, schema: pa.Schema, items: Collection[int], values_of: Callable[[str, pa.DataType], pa.Array]
) -> set[int]:
    """Those of the items that fit every condition: {column: a value, a list of values of which it has one, or {"min":
    ..., "max": ...}}. An item without a value fits none. values_of: the items' values of a column, of this type.

    Raises UserError for what is no such condition.
    """
    if not isinstance(where, Mapping) or not where:
        raise UserError('where: write {"column": [values]}, or {"column": {"min": ..., "max": ...}}')
    kinds = schema.append(pa.field(YEAR, pa.int64()))
    check_columns(where, kinds, "where")
    fit = np.ones(len(items), bool)
    for name, condition in where.items():
        test = _in_range if isinstance(condition, Mapping) else _is_one_of
        fit &= test(values_of(name, kinds.field(name).type), condition, f"where: {name}")
    return {item for item, is_fit in zip(items, fit.tolist(), strict=True) if is_fit}


def _in_range(values: pa.Array, condition: Mapping[str, Any], here: str) -> np.ndarray:
    if not condition or not condition.keys() <= {"min", "max"} or values.type in (pa.bool_(), TEXTS):
        raise UserError(f'{here}: write {{"min": ..., "max": ...}} for numbers or texts, or a list of values')
    fit = np.ones(len(values), bool)
    for key, bound in condition.items():
        kind = pa.float64() if values.type == pa.int64() else values.type
        compare = pc.greater_equal if key == "min" else pc.less_equal
        fit &= compare(values, _typed([bound], kind, here)[0]).fill_null(False).to_numpy(zero_copy_only=False)
    return fit


def _is_one_of(values: pa.Array, condition: Any, here: str) -> np.ndarray:
    given = list(condition) if isinstance(condition, list | tuple | set | frozenset) else [condition]
    if values.type != TEXTS:
        return pc.is_in(values, _typed(given, values.type, here)).to_numpy(zero_copy_only=False)
    is_one = pc.is_in(values.flatten(), _typed(given, pa.string(), here))
    fit = np.zeros(len(values), bool)
    fit[pc.list_parent_indices(values).filter(is_one).to_numpy()] = True
    return fit


def _typed(values: list[Any], kind: pa.DataType, here: str) -> pa.Array:
    """Raises UserError for a value of another type; Arrow would take 5.5 for the whole number 5, and true for 1.0."""
    for value in values:
        try:
            is_same = pa.array([value], kind).to_pylist() == json.loads(json.dumps([value], allow_nan=False))
        except (TypeError, ValueError, OverflowError):  # Arrow's and Unicode's errors are such
            is_same = False
        if not is_same or value is None or isinstance(value, bool) != (kind == pa.bool_()):
            words = WORDS.get(kind, "lists of texts")
            raise UserError(f"{here}: {value!r:.80} is of another type; the column has {words}")
    return pa.array(values, kind)


def _read_as(kind: pa.DataType) -> pa.DataType | None:
    """The type that a column of this one is read as; None: it is not."""
    types = pa.types
    if types.is_dictionary(kind):
        return _read_as(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind):
        return TEXTS if _read_as(kind.value_type) == pa.string() else None
    if types.is_boolean(kind) or types.is_integer(kind):
        return pa.bool_() if types.is_boolean(kind) else pa.int64()
    if types.is_floating(kind) or types.is_decimal(kind):
        return pa.float64()
    return pa.string() if types.is_string(kind) or types.is_large_string(kind) or types.is_temporal(kind) else None
