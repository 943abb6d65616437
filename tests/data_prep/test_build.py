"""Remap-Reflect-Adjust from end to end without a model; with one: test_build_models.py."""

import json
import pickle
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.data.schema import RL_SCHEMA
from convrec.data.validation import validate_sft_table
from convrec.lists.ranks import parse_items
from convrec.titles.catalog import load_catalog
from data_prep.build import main
from data_prep.stages.metadata import format_catalog_text, has_only_titles

from .conftest import BOOKS, JOKES, NUM_ITEMS, arguments, read, read_summary, refusal

NO_MODEL = ("--teacher=retrieval", "--judge=cooccurrence", "--max-epochs=20")


@pytest.fixture(scope="module")
def built(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("built") / "out"
    main(arguments(source, out, *NO_MODEL))
    return out


def test_stages_keep_row_order_and_give_valid_demonstrations(built):
    rows = read(built / "rows.parquet")
    splits = [row["split"] for row in rows]
    assert (splits.count("train"), splits.count("validation")) == (60, 16)  # half of 120, all of 16
    ids = [row["sample_id"] for row in rows]
    for file in ("teacher", "remap", "reflect", "adjusted"):
        assert [row["sample_id"] for row in read(built / f"{file}.parquet")] == ids
    for split in ("train", "validation"):
        validate_sft_table(built / f"sft_{split}.parquet")
        demonstrations = read(built / f"sft_{split}.parquet")
        assert [row["sample_id"] for row in demonstrations] == [
            i for i, s in zip(ids, splits, strict=True) if s == split
        ]
        for row in demonstrations:
            items = parse_items(row["completion"][0]["content"])
            assert len(set(items)) == len(items) == NUM_ITEMS
            assert not {item.title for item in items} & set(row["seen_titles"])
    assert read_summary(built, "demonstrations")["validation_metrics"]["recall@4"][0] > 0.5  # 1/3 by chance


def test_scores_are_the_formula_of_their_stages(built):
    rating = 0.5
    weights = read(built / "adjust_weights.parquet")
    for s, r, final in zip(*(read(built / f"{f}.parquet") for f in ("remap", "reflect", "adjusted")), strict=True):
        np.testing.assert_allclose(r["scores"], np.array(s["scores"]) + rating * np.array(r["ratings"]), atol=1e-5)
        assert s["scores"] == sorted(s["scores"], reverse=True)
        expected = {m: weights[m]["w"] * v + weights[m]["b"] for m, v in zip(s["candidates"], r["scores"], strict=True)}
        found = dict(zip(final["candidates"], final["scores"], strict=True))
        both = (
            expected.keys() & found.keys()
        )  # of the catalog's 12 items others than the 10 candidates may have come in
        assert {m: found[m] for m in both} == pytest.approx({m: expected[m] for m in both}, abs=1e-5)
        assert all(score <= final["scores"][-1] + 1e-5 for m, score in expected.items() if m not in found)
        assert final["scores"] == sorted(final["scores"], reverse=True)
    places = sum(row["lists_after"] for row in weights)
    assert places == sum(row["lists_before"] for row in weights) == NUM_ITEMS * 76


def test_metadata_is_title_year_and_the_catalogs_columns(built):
    assert read(built / "metadata.parquet")[0]["text"] == "Ghost House (1980)\ngenres: horror\npages: 100"
    row = {"title": "Heat", "year": 1995, "mentions": 7, "stars": [4.5, None], "seen": None, "new": False, "blank": " "}
    assert format_catalog_text(row | {"price": float("nan"), "image": b"png"}) == "stars: 4.5\nnew: False"


def test_a_catalog_without_years_is_built_with_titles_alone(undated, tmp_path):
    catalog = [(title, "") for title, _ in BOOKS + JOKES]
    (tmp_path / "catalog.pkl").write_bytes(pickle.dumps(catalog))
    out = tmp_path / "out"
    main(arguments(undated, out, *NO_MODEL, "--remap=full", f"--catalog={tmp_path / 'catalog.pkl'}"))
    assert not load_catalog(out / "catalog.parquet").dated
    assert read_summary(out, "teacher")["in_catalog"] == 1
    assert read_summary(out, "reflect")["not_zero"] > 0  # what is named together counts
    adjusted = read_summary(out, "adjust")
    assert adjusted["ground_truths_fitted"] == adjusted["ground_truths"] > 0
    for file in ("items", "metadata", "adjust_weights"):
        assert {row["year"] for row in read(out / f"{file}.parquet")} == {None}
    for demonstration in read(out / "sft_train.parquet"):
        lines = demonstration["completion"][0]["content"].split("\n")
        assert len({(line, "") for line in lines} & set(catalog)) == NUM_ITEMS
    assert read_summary(out, "demonstrations")["validation_metrics"]["recall@4"][0] > 0.5  # 1/3 by chance


def test_second_run_changes_nothing_and_new_setting_is_refused(built, source, tmp_path, capsys):
    before = {path.name: path.stat().st_mtime_ns for path in built.iterdir() if path.is_file()}
    main(arguments(source, built, *NO_MODEL))
    assert {path.name: path.stat().st_mtime_ns for path in built.iterdir() if path.is_file()} == before
    assert capsys.readouterr().out.count("(unchanged)") == 7
    main(["reflect", "--out", str(built), "--candidates=10", *NO_MODEL])  # a stage alone needs only its own settings
    message = refusal(capsys, ["reflect", "--out", str(built), "--candidates=10", "--gamma=0.7", *NO_MODEL])
    assert re.search(r"`reflect`.*gamma was 0.5 and is 0.7.*\[demonstrations.changed-settings\]", message)
    message = refusal(capsys, ["remap", "--out", str(built), "--candidates=10", "--trust-remote-code"])
    assert "trust_remote_code was False and is True" in message
    assert "share was 0.5 and is 1" in refusal(capsys, arguments(source, built, *NO_MODEL, "--share=1"))


def test_what_cannot_work_is_refused_at_once(source, tmp_path, monkeypatch, capsys):
    for role in ("LLM", "TEACHER", "JUDGE"):
        monkeypatch.delenv(f"{role}_BASE_URL", raising=False)
    out = tmp_path / "out"
    for argv, *messages in (
        (["remap", "--out", str(out)], str(out), "[demonstrations.rows-not-run]"),
        (["rows", "--out", str(out)], "--train", "[demonstrations.missing-option]"),
        (
            arguments(source, out, "--catalog=none.parquet", stage="rows"),
            "--catalog none.parquet",
            "[demonstrations.missing-file]",
        ),
        (arguments(source, out, "--share=0"), "--share 0: give a number above 0, at most 1"),
        (arguments(source, out), "TEACHER_BASE_URL"),  # before the first stage
        (arguments(source, out, "--teacher=retrieval"), "JUDGE_BASE_URL"),
        (
            arguments(source, out, "--num-items=20", stage="rows"),
            "asks for 4 recommendations",
            "[demonstrations.list-length-mismatch]",
        ),
    ):
        printed = refusal(capsys, argv)
        assert all(message in printed for message in messages)
    assert [path.name for path in out.iterdir()] == ["rows.json"]  # it says that the stage is unfinished
    main(arguments(source, out, stage="rows"))
    for argv, *messages in (
        (["teacher", "--out", str(out)], "TEACHER_BASE_URL"),
        (["metadata", "--out", str(out)], "`teacher`", "[demonstrations.stage-not-run]"),
        (["remap", "--out", str(out), "--candidates=3"], "--candidates 3", "[demonstrations.candidates-too-low]"),
        (["remap", "--out", str(out), "--embedding=bert"], "--embedding bert", "[demonstrations.unknown-embedding]"),
    ):
        printed = refusal(capsys, argv)
        assert all(message in printed for message in messages)


def test_ground_truth_with_non_numeric_year_is_dropped(source, tmp_path, capsys):
    rows = read(source / "validation.parquet")
    rows[3]["groundtruth_with_release_year"] = [["Ghost House", "unknown"], ["Ghost Ship", " 1981 "]]
    pq.write_table(pa.Table.from_pylist(rows, RL_SCHEMA), tmp_path / "v.parquet")
    main(arguments(source, tmp_path / "out", f"--validation={tmp_path / 'v.parquet'}", stage="rows"))
    warning = r"v.parquet: .*row 3: 'Ghost House', 'unknown'; write four digits"
    assert re.search(warning, capsys.readouterr().err)
    kept = [row for row in read(tmp_path / "out" / "rows.parquet") if row["split"] == "validation"]
    assert kept[3]["groundtruth_with_release_year"] == [["Ghost Ship", " 1981 "]]
    assert [row["groundtruth_with_release_year"] for row in kept[4:]] == [
        row["groundtruth_with_release_year"] for row in rows[4:]
    ]


def test_training_rows_without_ground_truth_are_refused(built, source, tmp_path, capsys):
    one = [row | {"groundtruth_with_release_year": []} for row in read(source / "train.parquet")[:1]]
    pq.write_table(pa.Table.from_pylist(one, RL_SCHEMA), tmp_path / "one.parquet")
    argv = arguments(source, tmp_path / "out", *NO_MODEL, f"--train={tmp_path / 'one.parquet'}")
    assert "of 1 " in refusal(capsys, argv)


def test_folder_with_foreign_files_is_refused_before_first_stage(source, tmp_path, capsys):
    before = {path: path.read_bytes() for path in source.iterdir()}
    printed = refusal(capsys, arguments(source, source, *NO_MODEL))
    assert "[demonstrations.input-in-output-folder]" in printed
    assert {path: path.read_bytes() for path in source.iterdir()} == before
    (tmp_path / "sft_validation.parquet").write_text("mine")  # a file of the last stage
    message = refusal(capsys, arguments(source, tmp_path, *NO_MODEL))
    assert "sft_validation.parquet: there is no demonstrations.json" in message
    assert "[demonstrations.foreign-file]" in message
    assert [path.name for path in tmp_path.iterdir()] == ["sft_validation.parquet"]


def test_the_training_file_must_still_be_the_one_that_was_read(source, tmp_path, capsys):
    rows = read(source / "train.parquet")
    pq.write_table(pa.Table.from_pylist(rows, RL_SCHEMA), tmp_path / "train.parquet")
    argv = arguments(source, tmp_path / "out", f"--train={tmp_path / 'train.parquet'}", stage="rows")
    main(argv)
    pq.write_table(pa.Table.from_pylist(rows[:50], RL_SCHEMA), tmp_path / "train.parquet")
    message = refusal(capsys, ["teacher", "--out", str(tmp_path / "out"), "--teacher=retrieval"])
    assert "train.parquet" in message
    assert "[demonstrations.changed-train-file]" in message
    assert "train was" in refusal(capsys, argv)


@pytest.fixture(scope="module")
def titles_only(source, tmp_path_factory):
    """The same data with a catalog that has only ids, titles and years."""
    folder = shutil.copytree(source, tmp_path_factory.mktemp("titles_only") / "source")
    table = pq.read_table(folder / "catalog.parquet").drop(["genres"])
    ids = pa.array([f"tt{n:07}" for n in range(len(table))])
    pq.write_table(table.append_column("imdb_id", ids), folder / "catalog.parquet")
    return folder


def test_a_catalog_of_titles_is_only_remapped_on_request(titles_only, source, tmp_path, capsys):
    main(arguments(titles_only, tmp_path / "out", *NO_MODEL))
    assert "warning: the catalog has only titles, so only the teacher's items are used" in capsys.readouterr().err
    assert json.loads((tmp_path / "out/remap.json").read_text())["settings"]["remap"] == "none"
    for row, teacher in zip(read(tmp_path / "out/remap.parquet"), read(tmp_path / "out/teacher.parquet"), strict=True):
        assert set(row["candidates"]) <= set(teacher["items"])
    assert len(read(tmp_path / "out/sft_train.parquet")) == 60
    main(arguments(titles_only, tmp_path / "full", *NO_MODEL, "--remap=full"))
    assert "items with similar titles are ranked too high. Give --remap none" in capsys.readouterr().err
    main(arguments(titles_only, tmp_path / "full", *NO_MODEL))  # what was chosen once stays
    assert capsys.readouterr().out.count("(unchanged)") == 7
    main(arguments(source, tmp_path / "words", *NO_MODEL))
    assert json.loads((tmp_path / "words/remap.json").read_text())["settings"]["remap"] == "full"
    assert "only titles" not in capsys.readouterr().err


def test_lists_that_the_teacher_does_not_fill_are_refused(titles_only, tmp_path, model, capsys):
    model(lambda body, count: "Ghost House (1980)\nLaughing Dog (1990)\nUp (2009)\nM (1931)")
    argv = arguments(titles_only, tmp_path / "out", "--teacher=llm", "--judge=none", "--max-epochs=0", "--share=0.1")
    message = refusal(capsys, argv)
    assert "28 of 28 lists of the teacher name fewer than 4 items" in message
    assert "[demonstrations.too-few-candidates]" in message
    main([*argv, "--remap=none"])
    assert read_summary(tmp_path / "out", "remap")["too_few_candidates"] == 28
    main([*argv, "--remap=full", "--redo"])
    assert len(read(tmp_path / "out/sft_validation.parquet")) == 16


@pytest.mark.parametrize(
    ("texts", "only_titles"),
    [
        (["", ""], True),
        (["pages: 100", "pages: 90"], True),
        (["imdb: tt01", "imdb: tt02", ""], True),
        (["genres: horror", ""], True),  # a single item: nothing to compare it with
        (["genres: horror", "genres: comedy"], False),
        (["Keywords: dark\nPlot: two ghosts", "Keywords: light\nPlot: a dog"], False),
        (["導演: 王家衛", "導演: 侯孝賢"], False),
    ],
)
def test_whether_metadata_has_more_than_titles(tmp_path, texts, only_titles):
    items = [(f"Film {name}", 1990, text) for name, text in zip("ABC", texts, strict=False)]
    rows = [{"title": t, "year": y, "text": "\n".join(filter(None, (f"{t} ({y})", text)))} for t, y, text in items]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "metadata.parquet")
    assert has_only_titles(tmp_path) == only_titles
