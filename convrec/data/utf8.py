"""Text in Arrow columns that is no UTF-8: Arrow reads it unseen, and Python fails where it is used."""

import pyarrow as pa


def rows_without_utf8(batch: pa.RecordBatch) -> list[int]:
    """Rows of which some text is no UTF-8. Raises pa.ArrowInvalid where more than text is damaged: then no row of the
    batch can be trusted."""
    try:
        batch.validate(full=True)
        return []
    except pa.ArrowInvalid:
        for column in batch.columns:
            column.cast(_as_bytes(column.type)).validate(full=True)
    return [row for row in range(len(batch)) if not _is_readable(batch.slice(row, 1))]


def _is_readable(batch: pa.RecordBatch) -> bool:
    try:
        batch.to_pylist()
    except UnicodeDecodeError:
        return False
    return True


def _as_bytes(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_large_string(kind):
        return pa.large_binary()
    if pa.types.is_list(kind):
        return pa.list_(_as_bytes(kind.value_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(_as_bytes(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _as_bytes(field.type)) for field in kind])
    return kind
