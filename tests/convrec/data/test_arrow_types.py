"""Arrow types of other programs become the types that pyarrow writes, with the same values."""

import pyarrow as pa
import pytest

from convrec.data.arrow_types import cast_column, cast_table, to_plain_batch, to_plain_type

TURN = pa.struct([("content", pa.string()), ("role", pa.string())])


@pytest.mark.parametrize(
    ("values", "stored", "plain"),
    [
        (["a", None], pa.large_string(), pa.string()),
        (["a", None], pa.string_view(), pa.string()),
        (["a", None, "a"], pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
        ([["a", None], None, []], pa.large_list(pa.large_string()), pa.list_(pa.string())),
        ([["a"], None, []], pa.list_view(pa.string_view()), pa.list_(pa.string())),
        ([["a", "b"], None], pa.list_(pa.string(), 2), pa.list_(pa.string())),
        ([[["a", "1"]], []], pa.large_list(pa.list_(pa.large_string())), pa.list_(pa.list_(pa.string()))),
        (
            [{"a": ["x"]}, None],
            pa.struct([("a", pa.large_list(pa.string()))]),
            pa.struct([("a", pa.list_(pa.string()))]),
        ),
        ([1, 2], pa.int64(), pa.int64()),
    ],
)
def test_equivalent_types_become_the_plain_type(values: list, stored: pa.DataType, plain: pa.DataType) -> None:
    column = pa.array(values, stored)
    assert to_plain_type(stored) == plain
    assert cast_column(column, plain).to_pylist() == values
    assert cast_column(column.slice(1), plain).to_pylist() == values[1:]
    batch = to_plain_batch(pa.record_batch([column], ["c"]))
    assert (batch.schema.field("c").type, batch["c"].to_pylist()) == (plain, values)


def test_an_all_null_column_takes_any_type() -> None:
    assert cast_column(pa.array([[], None]), pa.list_(pa.string())).to_pylist() == [[], None]
    assert cast_column(pa.array([None, None]), pa.list_(TURN)).to_pylist() == [None, None]


def test_a_table_has_the_fields_of_the_schema_in_its_order() -> None:
    turns = pa.array([[{"role": "user", "weight": None, "content": "hi"}], None])
    table = pa.table({"more": [1, 2], "prompt": pa.chunked_array([turns.slice(0, 1), turns.slice(1)])})
    prompts = cast_table(table, pa.schema([("prompt", pa.list_(TURN))]))
    assert prompts.schema.field("prompt").type == pa.list_(TURN)
    assert prompts.to_pylist() == [{"prompt": [{"content": "hi", "role": "user"}]}, {"prompt": None}]
    with pytest.raises(pa.ArrowInvalid):
        cast_table(pa.table({"prompt": ["a"]}), pa.schema([("prompt", pa.int64())]))
