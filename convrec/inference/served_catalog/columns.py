"""Additional columns of a catalog, which lists show and requests filter by.

A column holds texts, whole numbers, numbers, booleans, or lists of texts. Dates are texts like 2024-03-01, decimals are
numbers, `genres` are lists of texts. Texts that are all `true` or `false` are booleans, as in catalogs that another
program made from a CSV. Columns of other types (vectors, structs, bytes) are ignored.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from convrec.base.errors import UserError
from convrec.base.kinds import did_you_mean
from convrec.titles.catalog import Catalog, parse_labels

# Every catalog may have these columns; all others are additional.
ITEM = ("item_id", "title", "year", "display")
YEAR = "year"
GENRES = "genres"
TEXTS = pa.list_(pa.string())
Normalise: TypeAlias = Callable[[pa.Array], pa.Array]
TYPE_NAMES = {pa.string(): "texts", pa.int64(): "whole numbers", pa.float64(): "numbers", pa.bool_(): "booleans"}


def read_columns(file: Path, catalog: Catalog) -> pa.Table:
    """Read a catalog's additional columns, with one row for each row of the catalog.

    Args:
        file: the catalog's file.
        catalog: the catalog from this file.

    Raises:
        UserError: a column cannot be read.
    """
    schema = pq.read_schema(file) if file.suffix == ".parquet" else ()
    kind_by_column = {field.name: _choose_type(field.type) for field in schema if field.name not in ITEM}
    kinds = {name: kind for name, kind in kind_by_column.items() if kind}
    try:
        table = pq.read_table(file, columns=[*kinds]).cast(pa.schema(kinds)) if kinds else pa.table({})
        table.validate(full=True)  # texts are UTF-8
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UserError(
            "columns.unreadable", f"catalog {file}: a column is not readable ({error}). Write the file again."
        ) from None
    for index, (name, kind) in enumerate(kinds.items()):
        if kind == pa.string() and (booleans := _parse_booleans(table[name])) is not None:
            table = table.set_column(index, name, booleans)
        if kind == pa.float64():  # JSON has no NaN
            table = table.set_column(index, name, pc.if_else(pc.is_finite(table[name]), table[name], None))
        if name == GENRES and catalog.genres is not None:
            table = table.set_column(index, name, pa.array(map(sorted, catalog.genres), TEXTS))
    return table


def check_columns(names: Iterable[str], schema: pa.Schema, here: str) -> None:
    """Check that the catalog has these additional columns.

    Args:
        names: the columns.
        schema: the additional columns of the catalog.
        here: the argument or item that names them, at the beginning of the message.

    Raises:
        UserError: the catalog lacks one.
    """
    for name in names:
        if name not in schema.names:
            hint = did_you_mean(str(name), schema.names) if schema.names else "it has none besides titles"
            raise UserError(
                "columns.unknown",
                f"{here}: the catalog has no column {name!r:.80} of texts, numbers or booleans; {hint}",
            )


def read_values(record: Mapping[str, Any], schema: pa.Schema, here: str) -> dict[str, Any]:
    """Read the additional columns of an item's record.

    Args:
        record: the item's fields.
        schema: the additional columns of the catalog.
        here: what an error calls the record.

    Returns:
        Column -> value; None for a column that the record lacks.

    Raises:
        UserError: a value has a different type than its column.
    """
    values = {field.name: record.get(field.name) for field in schema}
    if isinstance(values.get(GENRES), str):
        values[GENRES] = sorted(parse_labels(values[GENRES]))
    return {name: _convert(value, schema.field(name).type, f"{here}: {name}") for name, value in values.items()}


def find_items(
    where: Any,
    schema: pa.Schema,
    items: Collection[int],
    get_values: Callable[[str, pa.DataType], pa.Array],
    ignore_case: bool = False,
) -> set[int]:
    """Find the items that meet every condition. An item without a value meets no condition on that column.

    Args:
        where: {column: a value, a list of values of which the item must have one, or {"min": ..., "max": ...}}.
        schema: the additional columns of the catalog; `year` may also be used.
        items: numbers of the items.
        get_values: returns the items' values of a column, of the given type.
        ignore_case: whether to compare texts regardless of case and extra white space.

    Raises:
        UserError: a condition is invalid.
    """
    if not isinstance(where, Mapping) or not where:
        raise UserError(
            "filter.invalid", 'where: expected {"column": [values]} or {"column": {"min": ..., "max": ...}}.'
        )
    kinds = schema.append(pa.field(YEAR, pa.int64()))
    check_columns(where, kinds, "where")
    is_match = np.ones(len(items), bool)
    for name, condition in where.items():
        test = _is_in_range if isinstance(condition, Mapping) else _matches_any
        normalise = _fold if ignore_case else _keep
        is_match &= test(get_values(name, kinds.field(name).type), condition, normalise, f"where: {name}")
    return {item for item, matches in zip(items, is_match.tolist(), strict=True) if matches}


def _is_in_range(values: pa.Array, condition: Mapping[str, Any], normalise: Normalise, here: str) -> np.ndarray:
    if not condition or not condition.keys() <= {"min", "max"} or values.type in (pa.bool_(), TEXTS):
        raise UserError(
            "filter.invalid-range",
            f'{here}: expected {{"min": ..., "max": ...}} for numbers or texts, or a list of values.',
        )
    is_match = np.ones(len(values), bool)
    for key, bound in condition.items():
        kind = pa.float64() if values.type == pa.int64() else values.type
        compare = pc.greater_equal if key == "min" else pc.less_equal
        limit = normalise(_convert_all([bound], kind, here))[0]
        is_match &= compare(normalise(values), limit).fill_null(False).to_numpy(zero_copy_only=False)
    return is_match


def _matches_any(values: pa.Array, condition: Any, normalise: Normalise, here: str) -> np.ndarray:
    choices = list(condition) if isinstance(condition, list | tuple | set | frozenset) else [condition]
    if values.type != TEXTS:
        normalised_choices = normalise(_convert_all(choices, values.type, here))
        return pc.is_in(normalise(values), normalised_choices).to_numpy(zero_copy_only=False)
    is_choice = pc.is_in(normalise(values.flatten()), normalise(_convert_all(choices, pa.string(), here)))
    is_match = np.zeros(len(values), bool)
    is_match[pc.list_parent_indices(values).filter(is_choice).to_numpy()] = True
    return is_match


def _keep(values: pa.Array) -> pa.Array:
    return values


def _fold(values: pa.Array) -> pa.Array:
    """Return texts in lower case, with single spaces between words; other values unchanged."""
    if values.type != pa.string():
        return values
    words = pc.replace_substring_regex(pc.utf8_lower(values), r"\s+", " ")
    return pc.utf8_trim_whitespace(words)


def _parse_booleans(texts: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Parse texts that are all `true` or `false`, in any case; empty texts become null. None for other texts."""
    words = pc.utf8_lower(pc.utf8_trim_whitespace(texts))
    filled = pc.if_else(pc.equal(words, ""), None, words)
    distinct = set(pc.unique(filled).to_pylist()) - {None}
    return pc.equal(filled, "true") if distinct and distinct <= {"true", "false"} else None


def _convert_all(values: list[Any], kind: pa.DataType, here: str) -> pa.Array:
    if any(value is None for value in values):
        raise _make_type_error(None, kind, here)
    return pa.array([_convert(value, kind, here) for value in values], kind)


def _convert(value: Any, kind: pa.DataType, here: str) -> Any:
    """Convert a value to a column's type; None stays None.

    Raises:
        UserError: the value has another type. Arrow itself would turn 5.5 into the whole number 5, and true into 1.0.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None or (kind == pa.bool_() and isinstance(value, bool)):
        return value
    if kind == pa.string() and _is_text(value):
        return value
    if kind == pa.int64() and is_number and value == value // 1 and -(2**63) <= value < 2**63:
        return int(value)
    if kind == pa.float64() and is_number and _is_exact(value):
        return float(value)
    if kind == TEXTS and isinstance(value, list) and all(text is None or _is_text(text) for text in value):
        return value
    raise _make_type_error(value, kind, here)


def _is_exact(number: float) -> bool:
    """Return whether JSON and a 64-bit float can represent a number exactly."""
    return math.isfinite(number) if isinstance(number, float) else abs(number) <= 2**53


def _is_text(value: Any) -> bool:
    """Return whether a value is a text; half of a surrogate pair is not a character."""
    return isinstance(value, str) and (value.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in value))


def _make_type_error(value: Any, kind: pa.DataType, here: str) -> UserError:
    type_name = TYPE_NAMES.get(kind, "lists of texts")
    return UserError("columns.wrong-type", f"{here}: {value!r:.80} has the wrong type; the column has {type_name}.")


def _choose_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type as which a column of this type is read; None if it is ignored."""
    types = pa.types
    if types.is_dictionary(kind):
        return _choose_type(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind):
        return TEXTS if _choose_type(kind.value_type) == pa.string() else None
    if types.is_boolean(kind) or types.is_integer(kind):
        return pa.bool_() if types.is_boolean(kind) else pa.int64()
    if types.is_floating(kind) or types.is_decimal(kind):
        return pa.float64()
    return pa.string() if types.is_string(kind) or types.is_large_string(kind) or types.is_temporal(kind) else None
