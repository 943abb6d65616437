"""Validation of sound tables, damaged ones, and files that are not tables."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.data.schema import RL_SCHEMA, SFT_SCHEMA, format_prompt
from convrec.data.validation import validate_rl_table, validate_sft_table
from tests.user_errors import refuses

DAMAGED = "data.damaged-rows"
CONVERSATION = "USER: I like Heat (1995).\nSYSTEM: What else?\nUSER: Old crime films please.\n"


def row(**changes) -> dict:
    return {
        "prompt": [{"content": format_prompt(CONVERSATION), "role": "user"}],
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
    with refuses(DAMAGED, "row 1: no ground truth"):
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
    nulls = pa.table({name: pa.nulls(1) for name in RL_SCHEMA.names})
    pq.write_table(nulls, path)
    with refuses(DAMAGED, "row 0: `seen_titles` is null"):
        validate_rl_table(path)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"prompt": []}, "`prompt` is not exactly one user message"),
        ({"prompt": None}, "`prompt` is not exactly one user message"),
        ({"prompt": [{"role": "system", "content": "x"}]}, "`prompt` is not exactly one user message"),
        ({"prompt": [{"role": "user", "content": "x"}] * 2}, "`prompt` is not exactly one user message"),
        ({"prompt": [{"role": "user", "content": " "}]}, "`prompt` has no text"),
        ({"groundtruth_with_release_year": []}, "no ground truth"),
        ({"groundtruth_with_release_year": None}, "no ground truth"),
        ({"groundtruth_with_release_year": [["Heat"]]}, "not a [title, year] pair"),
        ({"groundtruth_with_release_year": [[" ", "1995"]]}, "a ground truth has no title"),
        ({"seen_titles": None}, "`seen_titles` is null"),
        ({"seen_titles": [None]}, "`seen_titles` contains null"),
        ({"sample_id": None}, "`sample_id` is null"),
    ],
)
def test_a_bad_row_is_named_with_its_file(tmp_path, changes, problem):
    path = write(tmp_path / "train.parquet", [row(), row(**changes), row()])
    with refuses(DAMAGED, f"{path}: row 1: ", problem):
        validate_rl_table(path)


def test_row_numbers_count_over_batches_and_long_lists_are_cut(tmp_path):
    bad = row(groundtruth_with_release_year=[])
    path = write(tmp_path / "train.parquet", [row()] * 9000 + [bad] * 7)
    with refuses(DAMAGED, "rows 9000, 9001, 9002, 9003, 9004 and 2 more: no ground truth"):
        validate_rl_table(path)
    assert validate_rl_table(path, allow_empty_ground_truth=True) == (9007, [])


def test_all_problems_are_reported_at_once(tmp_path):
    path = write(tmp_path / "train.parquet", [row(prompt=[]), row(groundtruth_with_release_year=[])])
    with refuses(DAMAGED, "row 0: `prompt`", "row 1: no ground truth"):
        validate_rl_table(path)


def test_invalid_years_are_warnings_not_errors(tmp_path):
    truth = [["Heat", "1995"], ["Up", "n/a"], ["Her", None]]
    report = validate_rl_table(write(tmp_path / "rl.parquet", [row(), row(groundtruth_with_release_year=truth)]))
    (warning,) = report.warnings
    assert "row 1: 'Up', 'n/a'; row 1: 'Her', None" in warning


def test_completion_must_be_one_assistant_message(tmp_path):
    for completion in ([], [{"role": "user", "content": "Heat (1995)"}]):
        path = write(tmp_path / "sft.parquet", [row(completion=completion)], SFT_SCHEMA)
        with refuses(DAMAGED, "row 0: `completion` is not exactly one assistant message"):
            validate_sft_table(path)


def test_missing_columns_and_columns_of_another_type_are_refused(tmp_path):
    table = pa.Table.from_pylist([row()], RL_SCHEMA)
    path = tmp_path / "t.parquet"
    pq.write_table(table.drop(["sample_id"]), path)
    with refuses("table.missing-column", path, "sample_id"):
        validate_rl_table(path)
    pq.write_table(table, path)
    with refuses("table.missing-column", path, "completion"):
        validate_sft_table(path)
    pq.write_table(table.set_column(0, "prompt", pa.array(["text"])), path)
    with refuses("table.wrong-column-type", path, "prompt is string"):
        validate_rl_table(path)


def test_files_that_are_not_tables_are_refused(tmp_path):
    with refuses("table.missing-file", tmp_path / "absent.parquet"):
        validate_rl_table(tmp_path / "absent.parquet")
    (tmp_path / "text.parquet").write_text("not parquet")
    with refuses("table.unreadable-parquet", tmp_path / "text.parquet"):
        validate_rl_table(tmp_path / "text.parquet")
    with refuses("table.no-rows", tmp_path / "empty.parquet"):
        validate_rl_table(write(tmp_path / "empty.parquet", []))


def test_data_without_years(tmp_path):
    undated = [row(groundtruth_with_release_year=[["Blue Lamp", ""]])]
    path = write(tmp_path / "rl.parquet", undated)
    assert validate_rl_table(path, dated=False) == (1, [])
    with refuses("table.missing-years", path):
        validate_rl_table(path)
    path = write(tmp_path / "rl.parquet", [*undated, row()])
    with refuses(DAMAGED, "row 1: a ground truth has a year"):
        validate_rl_table(path, dated=False)
    (warning,) = validate_rl_table(path).warnings
    assert "row 0: 'Blue Lamp', ''" in warning
    assert validate_sft_table(write(tmp_path / "sft.parquet", [*undated, row()], SFT_SCHEMA)) == (2, [])
