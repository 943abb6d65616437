"""What a catalog has besides ids and titles: columns of any names, which answers show and requests filter by.

A column holds texts, whole numbers, numbers, true and false, or lists of texts. Dates are texts as 2024-03-01, decimals
numbers, `genres` lists of texts. Texts that are all `true` or `false` are booleans: so catalogs have them that another
program made of a CSV. What has another type (vectors, structs, bytes) no answer and no filter takes.
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

# ITEM: no further columns
ITEM = ("item_id", "title", "year", "display")
YEAR = "year"
GENRES = "genres"
TEXTS = pa.list_(pa.string())
Normalise: TypeAlias = Callable[[pa.Array], pa.Array]
WORDS = {pa.string(): "texts", pa.int64(): "whole numbers", pa.float64(): "numbers", pa.bool_(): "true and false"}


def read_columns(file: Path, catalog: Catalog) -> pa.Table:
    """Those that answers and filters take, with a row for each of the catalog, which is this file's. Raises UserError
    for values that cannot be read."""
    schema = pq.read_schema(file) if file.suffix == ".parquet" else ()
    kind_of_column = {field.name: _read_as(field.type) for field in schema if field.name not in ITEM}
    kinds = {name: kind for name, kind in kind_of_column.items() if kind}
    try:
        table = pq.read_table(file, columns=[*kinds]).cast(pa.schema(kinds)) if kinds else pa.table({})
        table.validate(full=True)  # texts are UTF-8
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UserError(f"catalog {file}: a column cannot be read ({error}); write it again") from None
    for index, (name, kind) in enumerate(kinds.items()):
        if kind == pa.string() and (booleans := _as_booleans(table[name])) is not None:
            table = table.set_column(index, name, booleans)
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
        values[GENRES] = sorted(parse_labels(values[GENRES]))
    return {name: _typed(value, schema.field(name).type, f"{here}: {name}") for name, value in values.items()}


def find_items(
    where: Any,
    schema: pa.Schema,
    items: Collection[int],
    get_values: Callable[[str, pa.DataType], pa.Array],
    ignore_case: bool = False,
) -> set[int]:
    """Those of the items that fit every condition: {column: a value, a list of values of which it has one, or {"min":
    ..., "max": ...}}. An item without a value fits none.

    Args:
        get_values: gives the items' values of a column, of this type.
        ignore_case: compare texts regardless of case and of surplus white space.

    Raises:
        UserError: for what is no such condition.
    """
    if not isinstance(where, Mapping) or not where:
        raise UserError('where: write {"column": [values]}, or {"column": {"min": ..., "max": ...}}')
    kinds = schema.append(pa.field(YEAR, pa.int64()))
    check_columns(where, kinds, "where")
    fit = np.ones(len(items), bool)
    for name, condition in where.items():
        test = _in_range if isinstance(condition, Mapping) else _matches_any
        normalise = _fold if ignore_case else _unchanged
        fit &= test(get_values(name, kinds.field(name).type), condition, normalise, f"where: {name}")
    return {item for item, is_fit in zip(items, fit.tolist(), strict=True) if is_fit}


def _in_range(values: pa.Array, condition: Mapping[str, Any], normalise: Normalise, here: str) -> np.ndarray:
    if not condition or not condition.keys() <= {"min", "max"} or values.type in (pa.bool_(), TEXTS):
        raise UserError(f'{here}: write {{"min": ..., "max": ...}} for numbers or texts, or a list of values')
    fit = np.ones(len(values), bool)
    for key, bound in condition.items():
        kind = pa.float64() if values.type == pa.int64() else values.type
        compare = pc.greater_equal if key == "min" else pc.less_equal
        limit = normalise(_typed_array([bound], kind, here))[0]
        fit &= compare(normalise(values), limit).fill_null(False).to_numpy(zero_copy_only=False)
    return fit


def _matches_any(values: pa.Array, condition: Any, normalise: Normalise, here: str) -> np.ndarray:
    given = list(condition) if isinstance(condition, list | tuple | set | frozenset) else [condition]
    if values.type != TEXTS:
        wanted = normalise(_typed_array(given, values.type, here))
        return pc.is_in(normalise(values), wanted).to_numpy(zero_copy_only=False)
    is_wanted = pc.is_in(normalise(values.flatten()), normalise(_typed_array(given, pa.string(), here)))
    fit = np.zeros(len(values), bool)
    fit[pc.list_parent_indices(values).filter(is_wanted).to_numpy()] = True
    return fit


def _unchanged(values: pa.Array) -> pa.Array:
    return values


def _fold(values: pa.Array) -> pa.Array:
    """Texts in lower case, with single spaces between words; other values as they are."""
    if values.type != pa.string():
        return values
    words = pc.replace_substring_regex(pc.utf8_lower(values), r"\s+", " ")
    return pc.utf8_trim_whitespace(words)


def _as_booleans(texts: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Texts that are all `true` or `false`, in any case, as booleans; empty ones are null. None for other texts."""
    words = pc.utf8_lower(pc.utf8_trim_whitespace(texts))
    filled = pc.if_else(pc.equal(words, ""), None, words)
    distinct = set(pc.unique(filled).to_pylist()) - {None}
    return pc.equal(filled, "true") if distinct and distinct <= {"true", "false"} else None


def _typed_array(values: list[Any], kind: pa.DataType, here: str) -> pa.Array:
    if any(value is None for value in values):
        raise _wrong_type(None, kind, here)
    return pa.array([_typed(value, kind, here) for value in values], kind)


def _typed(value: Any, kind: pa.DataType, here: str) -> Any:
    """The value as a column of this type has it; None stays None. Raises UserError for a value of another type; Arrow
    itself would take 5.5 for the whole number 5, and true for 1.0."""
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
    raise _wrong_type(value, kind, here)


def _is_exact(number: float) -> bool:
    """Whether JSON and a 64-bit float have this number."""
    return math.isfinite(number) if isinstance(number, float) else abs(number) <= 2**53


def _is_text(value: Any) -> bool:
    """Half of a surrogate pair is no character."""
    return isinstance(value, str) and (value.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in value))


def _wrong_type(value: Any, kind: pa.DataType, here: str) -> UserError:
    words = WORDS.get(kind, "lists of texts")
    return UserError(f"{here}: {value!r:.80} is of another type; the column has {words}")


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
