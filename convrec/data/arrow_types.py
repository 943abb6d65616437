"""One type for what Arrow has several: pandas 3 and polars write large_string, others dictionaries or string views."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type with the same values that pyarrow writes of Python's own: string, list and struct, at every depth."""
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if _is_any_list(kind):
        return pa.list_(plain_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, plain_type(field.type)) for field in kind])
    return kind


def plain_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, plain_type(field.type)) for field in schema])


def plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with columns of plain types."""
    schema = plain_schema(batch.schema)
    columns = [column_as(column, kind) for column, kind in zip(batch.columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def batch_as(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """As `table_as`."""
    columns = [column_as(batch[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def table_as(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of `schema`, in its types; of structs the fields that it names, in its order.

    Raises:
        pa.ArrowInvalid, pa.ArrowNotImplementedError: A column holds something else.
    """
    columns = [
        pa.chunked_array([column_as(chunk, field.type) for chunk in table[field.name].chunks], field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def column_as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The array in another type with the same values; what is missing stays missing."""
    if column.type == kind:
        return column
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), kind)
    if pa.types.is_dictionary(column.type):
        return column_as(column.dictionary_decode(), kind)
    if pa.types.is_struct(kind) and pa.types.is_struct(column.type):
        fields = [column_as(pc.struct_field(column, field.name), field.type) for field in kind]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=column.is_null())
    if pa.types.is_list(kind) and _is_any_list(column.type):
        values = column_as(column.flatten(), kind.value_type)
        lengths = pc.fill_null(pc.list_value_length(column), 0).cast(pa.int64())
        offsets = np.append(0, np.cumsum(lengths)).astype(np.int32)  # the offsets of a slice do not begin at 0
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
