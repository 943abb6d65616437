"""What validation says of sound tables, damaged ones and files that are none."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.base.errors import UserError
from convrec.data.schema import RL_SCHEMA, SFT_SCHEMA, prompt_text
from convrec.data.validation import validate_rl_table, validate_sft_table

CONVERSATION = "USER: I like Heat (1995).\nSYSTEM: What else?\nUSER: Old crime films please.\n"


def row(**changes) -> dict:
    return {
        "prompt": [{"content": prompt_text(CONVERSATION), "role": "user"}],
        "seen_titles": ["Heat"],
        "groundtruth_with_release_year": [["Rififi", "1955"], ["M", "1931"]],
        "sample_id": "a",
        "completion": [{"content": "Rififi (1955)", "role": "assistant"}],
    } | changes


def write(path, rows, schema=RL_SCHEMA):
    pq.write_table(pa.Table.from_pylist(rows, schema), path)
    return path


def test_sound_tables_pass(tmp_path):
    assert validate_rl_table(write(tmp_path / "rl.parquet", [row(), row()])).rows == 2
    assert validate_sft_table(write(tmp_path / "sft.parquet", [row()], SFT_SCHEMA)).warnings == []


def test_released_real_data_passes_unchanged(shared_dir):
    folder = shared_dir / "data" / "redial"
    assert validate_rl_table(folder / "train.parquet").rows == 4418
    assert validate_rl_table(folder / "validation.parquet") == (473, [])


def test_large_lists_and_other_field_order_are_the_same_columns(tmp_path):
    message = pa.struct([("role", pa.large_string()), ("content", pa.large_string())])
    schema = pa.schema(
        [
            ("sample_id", pa.large_string()),
            ("prompt", pa.large_list(message)),
            ("seen_titles", pa.large_list(pa.large_string())),
            ("groundtruth_with_release_year", pa.large_list(pa.large_list(pa.large_string()))),
        ]
    )
    assert validate_rl_table(write(tmp_path / "large.parquet", [row()], schema)).rows == 1
    with pytest.raises(UserError, match="row 1: no ground truth"):
        validate_rl_table(write(tmp_path / "large.parquet", [row(), row(groundtruth_with_release_year=[])], schema))


def test_pandas_and_polars_columns_validate_alike(tmp_path):
    message = pa.struct([("content", pa.large_string()), ("role", pa.dictionary(pa.int8(), pa.string()))])
    schema = pa.schema(
        [
            ("prompt", pa.list_(message)),
            ("seen_titles", pa.list_(pa.null())),
            ("groundtruth_with_release_year", pa.list_(pa.list_(pa.string(), 2))),
            ("sample_id", pa.dictionary(pa.int32(), pa.large_string())),
        ]
    )
    path = write(tmp_path / "mixed.parquet", [row(seen_titles=[])] * 2, schema)
    assert validate_rl_table(path) == (2, [])
    nothing = pa.table({name: pa.nulls(1) for name in RL_SCHEMA.names})
    pq.write_table(nothing, path)
    with pytest.raises(UserError, match=r"row 0: `seen_titles` is null"):
        validate_rl_table(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": []}, "row 1: `prompt` is not exactly one user message"),
        ({"prompt": None}, "row 1: `prompt` is not exactly one user message"),
        ({"prompt": [{"role": "system", "content": "x"}]}, "row 1: `prompt` is not exactly one user message"),
        ({"prompt": [{"role": "user", "content": "x"}] * 2}, "row 1: `prompt` is not exactly one user message"),
        ({"prompt": [{"role": "user", "content": " "}]}, "row 1: `prompt` has no text"),
        ({"groundtruth_with_release_year": []}, "row 1: no ground truth; .* drop these rows"),
        ({"groundtruth_with_release_year": None}, "row 1: no ground truth"),
        ({"groundtruth_with_release_year": [["Heat"]]}, r"row 1: ground truth that is no \[title, year\] pair"),
        ({"groundtruth_with_release_year": [[" ", "1995"]]}, "row 1: a ground truth without a title"),
        ({"seen_titles": None}, "row 1: `seen_titles` is null"),
        ({"seen_titles": [None]}, "row 1: `seen_titles` holds a null"),
        ({"sample_id": None}, "row 1: `sample_id` is null"),
    ],
)
def test_a_bad_row_is_named_with_its_file(tmp_path, changes, message):
    path = write(tmp_path / "train.parquet", [row(), row(**changes), row()])
    with pytest.raises(UserError, match=rf"train\.parquet: {message}"):
        validate_rl_table(path)


def test_row_numbers_count_over_batches_and_long_lists_are_cut(tmp_path):
    bad = row(groundtruth_with_release_year=[])
    path = write(tmp_path / "train.parquet", [row()] * 9000 + [bad] * 7)
    with pytest.raises(UserError, match="rows 9000, 9001, 9002, 9003, 9004 and 2 more: no ground truth"):
        validate_rl_table(path)
    assert validate_rl_table(path, allow_empty_ground_truth=True) == (9007, [])


def test_all_problems_are_told_at_once(tmp_path):
    path = write(tmp_path / "train.parquet", [row(prompt=[]), row(groundtruth_with_release_year=[])])
    with pytest.raises(UserError) as told:
        validate_rl_table(path)
    assert "row 0: `prompt`" in str(told.value)
    assert "row 1: no ground truth" in str(told.value)


def test_years_that_are_none_are_reported_not_raised(tmp_path):
    truth = [["Heat", "1995"], ["Up", "n/a"], ["Her", None]]
    report = validate_rl_table(write(tmp_path / "rl.parquet", [row(), row(groundtruth_with_release_year=truth)]))
    (warning,) = report.warnings
    assert "row 1: 'Up', 'n/a'; row 1: 'Her', None" in warning


def test_completion_must_be_one_assistant_message(tmp_path):
    for completion in ([], [{"role": "user", "content": "Heat (1995)"}]):
        path = write(tmp_path / "sft.parquet", [row(completion=completion)], SFT_SCHEMA)
        with pytest.raises(UserError, match="row 0: `completion` is not exactly one assistant message"):
            validate_sft_table(path)


def test_columns_that_are_missing_or_of_another_type(tmp_path):
    table = pa.Table.from_pylist([row()], RL_SCHEMA)
    path = tmp_path / "t.parquet"
    pq.write_table(table.drop(["sample_id"]), path)
    with pytest.raises(UserError, match="no column sample_id"):
        validate_rl_table(path)
    pq.write_table(table, path)
    with pytest.raises(UserError, match="no column completion"):
        validate_sft_table(path)
    pq.write_table(table.set_column(0, "prompt", pa.array(["text"])), path)
    with pytest.raises(UserError, match="column prompt is string"):
        validate_rl_table(path)


def test_files_that_are_no_table(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        validate_rl_table(tmp_path / "absent.parquet")
    (tmp_path / "text.parquet").write_text("not parquet")
    with pytest.raises(UserError, match="not readable as parquet"):
        validate_rl_table(tmp_path / "text.parquet")
    with pytest.raises(UserError, match="no rows"):
        validate_rl_table(write(tmp_path / "empty.parquet", []))


def test_data_without_years(tmp_path):
    undated = [row(groundtruth_with_release_year=[["Blue Lamp", ""]])]
    path = write(tmp_path / "rl.parquet", undated)
    assert validate_rl_table(path, dated=False) == (1, [])
    with pytest.raises(UserError, match="no ground truth has a year, but the catalog has years"):
        validate_rl_table(path)
    path = write(tmp_path / "rl.parquet", [*undated, row()])
    with pytest.raises(UserError, match="row 1: a ground truth with a year, but the catalog has no years"):
        validate_rl_table(path, dated=False)
    (warning,) = validate_rl_table(path).warnings
    assert "row 0: 'Blue Lamp', ''" in warning
    assert validate_sft_table(write(tmp_path / "sft.parquet", [*undated, row()], SFT_SCHEMA)) == (2, [])
