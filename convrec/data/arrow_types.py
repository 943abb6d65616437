"""Convert Arrow's equivalent types to one: pandas 3 and polars write large_string, others dictionaries or views."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def to_plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the equivalent type that pyarrow infers from Python values: string, list and struct, at every depth."""
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return to_plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if _is_any_list(kind):
        return pa.list_(to_plain_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, to_plain_type(field.type)) for field in kind])
    return kind


def to_plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with plain types, as `to_plain_type` defines them."""
    return pa.schema([pa.field(field.name, to_plain_type(field.type)) for field in schema])


def to_plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with columns of plain types."""
    schema = to_plain_schema(batch.schema)
    columns = [cast_column(column, kind) for column, kind in zip(batch.columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def cast_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns in `schema`, cast to its types, as `cast_table` does for a table.

    Args:
        batch: may have further columns.
        schema: the columns to return, in this order.

    Raises:
        pa.ArrowInvalid, pa.ArrowNotImplementedError: a column has values of another kind.
    """
    columns = [cast_column(batch[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def cast_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns in `schema`, cast to its types; structs get its fields, in its order.

    Args:
        table: may have further columns.
        schema: the columns to return, in this order.

    Raises:
        pa.ArrowInvalid, pa.ArrowNotImplementedError: a column has values of another kind.
    """
    columns = [
        pa.chunked_array([cast_column(chunk, field.type) for chunk in table[field.name].chunks], field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def cast_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the same values in another type; nulls stay null.

    Args:
        column: the values.
        kind: a plain type, as `to_plain_type` returns it.

    Raises:
        pa.ArrowInvalid, pa.ArrowNotImplementedError: the values are of another kind.
    """
    if column.type == kind:
        return column
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), kind)
    if pa.types.is_dictionary(column.type):
        return cast_column(column.dictionary_decode(), kind)
    if pa.types.is_struct(kind) and pa.types.is_struct(column.type):
        fields = [cast_column(pc.struct_field(column, field.name), field.type) for field in kind]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=column.is_null())
    if pa.types.is_list(kind) and _is_any_list(column.type):
        values = cast_column(column.flatten(), kind.value_type)
        lengths = pc.fill_null(pc.list_value_length(column), 0).cast(pa.int64())
        offsets = np.append(0, np.cumsum(lengths)).astype(np.int32)  # the offsets of a slice do not start at 0
        return pa.ListArray.from_arrays(pa.array(offsets), values, kind, mask=column.is_null())
    return column.cast(kind)


def _is_any_list(kind: pa.DataType) -> bool:
    return (
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
    )
