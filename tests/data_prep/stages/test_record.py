"""When a stage is run again, skipped or refused."""

import json
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.stages.record import Stage, read_blocks, read_record, run_stage
from data_prep.tables import open_parquet_writer
from tests.user_errors import refuses

SCHEMA = pa.schema([("n", pa.int64())])


@dataclass(frozen=True)
class Number:
    n: int


@dataclass(frozen=True)
class Factor:
    times: int


@dataclass(frozen=True)
class Text:
    text: str


def make_stages(runs):
    """`first` writes its setting n, `second` doubles it; each notes that it was run."""

    def first(folder, settings):
        runs.append("first")
        pq.write_table(pa.table({"n": [settings.n]}, SCHEMA), folder / "first.parquet")
        return {"n": settings.n}

    def second(folder, settings):
        runs.append("second")
        with open_parquet_writer(folder / "second.parquet", SCHEMA) as writer:
            for block in read_blocks(folder / "first.parquet", 1):
                writer.write_table(pa.Table.from_pylist([{"n": settings.times * row["n"]} for row in block], SCHEMA))
            if settings.times == 13:
                raise RuntimeError("killed here")
        return {}

    return Stage("first", [], ["first.parquet"], first), Stage("second", ["first"], ["second.parquet"], second)


def test_a_stage_runs_once_and_again_only_for_a_change(tmp_path):
    runs = []
    first, second = make_stages(runs)
    folder = tmp_path / "out"
    with refuses("demonstrations.stage-not-run", folder, "`first`", "`second`"):
        run_stage(second, folder, Factor(2), redo=False)
    assert run_stage(first, folder, Number(3), redo=False) == ({"n": 3}, True)
    assert run_stage(first, folder, Number(3), redo=False) == ({"n": 3}, False)
    assert run_stage(second, folder, Factor(2), redo=False) == ({}, True)
    assert run_stage(second, folder, Factor(2), redo=True) == ({}, False)  # nothing changed: nothing to redo
    assert pq.read_table(folder / "second.parquet")["n"].to_pylist() == [6]
    assert runs == ["first", "second"]

    with refuses("demonstrations.changed-settings", folder, "n was 3 and is 4", "--redo"):
        run_stage(first, folder, Number(4), redo=False)
    run_stage(first, folder, Number(4), redo=True)
    with refuses("demonstrations.changed-settings", folder, "the stage `first` has changed since"):
        run_stage(second, folder, Factor(2), redo=False)
    run_stage(second, folder, Factor(2), redo=True)
    assert pq.read_table(folder / "second.parquet")["n"].to_pylist() == [8]
    (folder / "first.parquet").unlink()  # a file that is gone is made again
    run_stage(first, folder, Number(4), redo=False)
    run_stage(second, folder, Factor(2), redo=False)  # with the same content: nothing changed for this one
    assert runs == ["first", "second", "first", "second", "first"]


def test_an_interrupted_stage_leaves_no_file_and_is_run_again(tmp_path):
    first, second = make_stages([])
    run_stage(first, tmp_path, Number(1), redo=False)
    with pytest.raises(RuntimeError):
        run_stage(second, tmp_path, Factor(13), redo=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.json", "first.parquet", "second.json"]
    assert read_record(tmp_path, "second") is None
    run_stage(second, tmp_path, Factor(2), redo=False)
    # one that ends in a redo takes the old record with it: the old files cannot pass for the new ones
    with pytest.raises(RuntimeError):
        run_stage(second, tmp_path, Factor(13), redo=True)
    assert run_stage(second, tmp_path, Factor(2), redo=False) == ({}, True)


def test_files_of_another_program_are_not_replaced_unasked(tmp_path):
    first, _ = make_stages([])
    (tmp_path / "first.parquet").write_text("mine")
    with refuses("demonstrations.foreign-file", tmp_path / "first.parquet", "first.json"):
        run_stage(first, tmp_path, Number(1), redo=False)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("first.parquet", "mine")]
    assert run_stage(first, tmp_path, Number(1), redo=True) == ({"n": 1}, True)


def test_missing_file_does_not_let_new_settings_replace_the_rest(tmp_path):
    def run(folder, settings):
        for name in ("a", "b"):
            (folder / name).write_text(settings.text)
        return {}

    stage = Stage("both", [], ["a", "b"], run)
    run_stage(stage, tmp_path, Text("old"), redo=False)
    (tmp_path / "a").unlink()
    with refuses("demonstrations.changed-settings", "text was 'old' and is 'new'"):
        run_stage(stage, tmp_path, Text("new"), redo=False)
    assert (tmp_path / "b").read_text() == "old"
    assert run_stage(stage, tmp_path, Text("old"), redo=False) == ({}, True)  # a missing file is made again


def test_a_file_that_was_changed_is_not_as_it_was(tmp_path):
    first, second = make_stages([])
    run_stage(first, tmp_path, Number(1), redo=False)
    pq.write_table(pa.table({"n": [1, 2, 3]}, SCHEMA), tmp_path / "first.parquet")
    for stage, settings in ((first, Number(1)), (second, Factor(2))):
        with refuses("demonstrations.changed-stage-file", tmp_path, "first.parquet", "--redo"):
            run_stage(stage, tmp_path, settings, redo=False)
    assert run_stage(first, tmp_path, Number(1), redo=True) == ({"n": 1}, True)
    (tmp_path / "first.parquet").unlink()
    with refuses("demonstrations.missing-stage-file", tmp_path / "first.parquet", "`first`"):
        run_stage(second, tmp_path, Factor(2), redo=False)


@pytest.mark.parametrize("content", ["{", "{}", "[]", '{"id": "0", "settings": {}}'])
def test_a_damaged_record_is_refused(tmp_path, content):
    first, _ = make_stages([])
    run_stage(first, tmp_path, Number(1), redo=False)
    assert json.loads((tmp_path / "first.json").read_text())["settings"] == {"n": 1}
    (tmp_path / "first.json").write_text(content)
    with refuses("demonstrations.damaged-record", tmp_path / "first.json"):
        run_stage(first, tmp_path, Number(1), redo=False)
