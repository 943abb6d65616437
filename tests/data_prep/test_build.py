"""The whole of Remap-Reflect-Adjust without a model; with one: test_build_models.py."""

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
from data_prep.stages.metadata import catalog_text, has_only_titles

from .conftest import BOOKS, JOKES, NUM_ITEMS, arguments, read, refusal, summary_of

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
    assert summary_of(built, "demonstrations")["validation_metrics"]["recall@4"][0] > 0.5  # 1/3 by chance


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
    assert catalog_text(row | {"price": float("nan"), "image": b"png"}) == "stars: 4.5\nnew: False"


def test_a_catalog_without_years_is_built_with_titles_alone(undated, tmp_path):
    catalog = [(title, "") for title, _ in BOOKS + JOKES]
    (tmp_path / "catalog.pkl").write_bytes(pickle.dumps(catalog))
    out = tmp_path / "out"
    main(arguments(undated, out, *NO_MODEL, "--remap=full", f"--catalog={tmp_path / 'catalog.pkl'}"))
    assert not load_catalog(out / "catalog.parquet").dated
    assert summary_of(out, "teacher")["in_catalog"] == 1
    assert summary_of(out, "reflect")["not_zero"] > 0  # what is named together counts
    adjusted = summary_of(out, "adjust")
    assert adjusted["ground_truths_fitted"] == adjusted["ground_truths"] > 0
    for file in ("items", "metadata", "adjust_weights"):
        assert {row["year"] for row in read(out / f"{file}.parquet")} == {None}
    for demonstration in read(out / "sft_train.parquet"):
        lines = demonstration["completion"][0]["content"].split("\n")
        assert len({(line, "") for line in lines} & set(catalog)) == NUM_ITEMS
    assert summary_of(out, "demonstrations")["validation_metrics"]["recall@4"][0] > 0.5  # 1/3 by chance


def test_second_run_changes_nothing_and_new_setting_is_refused(built, source, tmp_path, capsys):
    before = {path.name: path.stat().st_mtime_ns for path in built.iterdir() if path.is_file()}
    main(arguments(source, built, *NO_MODEL))
    assert {path.name: path.stat().st_mtime_ns for path in built.iterdir() if path.is_file()} == before
    assert capsys.readouterr().out.count("as it was") == 7
    main(["reflect", "--out", str(built), "--candidates=10", *NO_MODEL])  # a stage alone needs only its own settings
    message = refusal(capsys, ["reflect", "--out", str(built), "--candidates=10", "--gamma=0.7", *NO_MODEL])
    assert re.search(r"`reflect`.*gamma was 0.5 and is 0.7.*--redo", message)
    message = refusal(capsys, ["remap", "--out", str(built), "--candidates=10", "--trust-remote-code"])
    assert "trust_remote_code was False and is True" in message
    assert "share was 0.5 and is 1" in refusal(capsys, arguments(source, built, *NO_MODEL, "--share=1"))


def test_what_cannot_work_is_said_at_once(source, tmp_path, monkeypatch, capsys):
    for role in ("LLM", "TEACHER", "JUDGE"):
        monkeypatch.delenv(f"{role}_BASE_URL", raising=False)
    out = tmp_path / "out"
    for given, says in (
        (["remap", "--out", str(out)], "stage `rows` is not there yet"),
        (["rows", "--out", str(out)], "--train is not given"),
        (arguments(source, out, "--catalog=none.parquet", stage="rows"), "none.parquet: no such file"),
        (arguments(source, out, "--share=0"), "--share 0: give a number above 0, at most 1"),
        (arguments(source, out), "LLM_BASE_URL or TEACHER_BASE_URL is not set"),  # before the first stage
        (arguments(source, out, "--teacher=retrieval"), "LLM_BASE_URL or JUDGE_BASE_URL is not set"),
        (arguments(source, out, "--num-items=20", stage="rows"), "asks for 4 recommendations and --num-items is 20"),
    ):
        assert says in refusal(capsys, given)
    assert [path.name for path in out.iterdir()] == ["rows.json"]  # which says that it is unfinished
    main(arguments(source, out, stage="rows"))
    for given, says in (
        (["teacher", "--out", str(out)], "LLM_BASE_URL or TEACHER_BASE_URL is not set"),
        (["metadata", "--out", str(out)], "stage `teacher` is not there yet"),
        (["remap", "--out", str(out), "--candidates=3"], "give at least --num-items (4)"),
        (["remap", "--out", str(out), "--embedding=bert"], "tfidf-svd or sentence-transformers:MODEL"),
    ):
        assert says in refusal(capsys, given)


def test_ground_truth_with_non_numeric_year_is_dropped(source, tmp_path, capsys):
    rows = read(source / "validation.parquet")
    rows[3]["groundtruth_with_release_year"] = [["Ghost House", "unknown"], ["Ghost Ship", " 1981 "]]
    pq.write_table(pa.Table.from_pylist(rows, RL_SCHEMA), tmp_path / "v.parquet")
    main(arguments(source, tmp_path / "out", f"--validation={tmp_path / 'v.parquet'}", stage="rows"))
    warned = r"v.parquet: invalid ground-truth years: row 3: 'Ghost House', 'unknown'; write four digits"
    assert re.search(warned, capsys.readouterr().err)
    kept = [row for row in read(tmp_path / "out" / "rows.parquet") if row["split"] == "validation"]
    assert kept[3]["groundtruth_with_release_year"] == [["Ghost Ship", " 1981 "]]
    assert [row["groundtruth_with_release_year"] for row in kept[4:]] == [
        row["groundtruth_with_release_year"] for row in rows[4:]
    ]


def test_what_leaves_nothing_to_learn_from_is_said(built, source, tmp_path, capsys):
    one = [row | {"groundtruth_with_release_year": []} for row in read(source / "train.parquet")[:1]]
    pq.write_table(pa.Table.from_pylist(one, RL_SCHEMA), tmp_path / "one.parquet")
    given = arguments(source, tmp_path / "out", *NO_MODEL, f"--train={tmp_path / 'one.parquet'}")
    assert "none of 1 training rows has a relevant item in the catalog" in refusal(capsys, given)


def test_folder_with_foreign_files_is_refused_before_first_stage(source, tmp_path, capsys):
    before = {path: path.read_bytes() for path in source.iterdir()}
    assert "in the folder of the stages" in refusal(capsys, arguments(source, source, *NO_MODEL))
    assert {path: path.read_bytes() for path in source.iterdir()} == before
    (tmp_path / "sft_validation.parquet").write_text("mine")  # of the last stage
    message = refusal(capsys, arguments(source, tmp_path, *NO_MODEL))
    assert "sft_validation.parquet: there is no demonstrations.json" in message
    assert [path.name for path in tmp_path.iterdir()] == ["sft_validation.parquet"]


def test_the_training_file_must_still_be_the_one_that_was_read(source, tmp_path, capsys):
    rows = read(source / "train.parquet")
    pq.write_table(pa.Table.from_pylist(rows, RL_SCHEMA), tmp_path / "train.parquet")
    given = arguments(source, tmp_path / "out", f"--train={tmp_path / 'train.parquet'}", stage="rows")
    main(given)
    pq.write_table(pa.Table.from_pylist(rows[:50], RL_SCHEMA), tmp_path / "train.parquet")
    message = refusal(capsys, ["teacher", "--out", str(tmp_path / "out"), "--teacher=retrieval"])
    assert "not the file that the stage `rows` read" in message
    assert "train was" in refusal(capsys, given)


@pytest.fixture(scope="module")
def titles_only(source, tmp_path_factory):
    """The same data; the catalog has an id besides titles and years, but no words."""
    folder = shutil.copytree(source, tmp_path_factory.mktemp("titles_only") / "source")
    table = pq.read_table(folder / "catalog.parquet").drop(["genres"])
    ids = pa.array([f"tt{n:07}" for n in range(len(table))])
    pq.write_table(table.append_column("imdb_id", ids), folder / "catalog.parquet")
    return folder


def test_a_catalog_of_titles_is_not_remapped_unless_told_to(titles_only, source, tmp_path, capsys):
    main(arguments(titles_only, tmp_path / "out", *NO_MODEL))
    assert (
        "warning: the catalog has nothing but titles: only the teacher's items, without remap"
        in capsys.readouterr().err
    )
    assert json.loads((tmp_path / "out/remap.json").read_text())["settings"]["remap"] == "none"
    for row, teacher in zip(read(tmp_path / "out/remap.parquet"), read(tmp_path / "out/teacher.parquet"), strict=True):
        assert set(row["candidates"]) <= set(teacher["items"])
    assert len(read(tmp_path / "out/sft_train.parquet")) == 60
    main(arguments(titles_only, tmp_path / "full", *NO_MODEL, "--remap=full"))
    assert "namesakes of what the teacher names rise; --remap none leaves them out" in capsys.readouterr().err
    main(arguments(titles_only, tmp_path / "full", *NO_MODEL))  # what was chosen once stays
    assert capsys.readouterr().out.count("as it was") == 7
    main(arguments(source, tmp_path / "words", *NO_MODEL))
    assert json.loads((tmp_path / "words/remap.json").read_text())["settings"]["remap"] == "full"
    assert "nothing but titles" not in capsys.readouterr().err


def test_lists_that_the_teacher_does_not_fill_are_no_silent_loss(titles_only, tmp_path, model, capsys):
    model(lambda body, count: "Ghost House (1980)\nLaughing Dog (1990)\nUp (2009)\nM (1931)")
    given = arguments(titles_only, tmp_path / "out", "--teacher=llm", "--judge=none", "--max-epochs=0", "--share=0.1")
    message = refusal(capsys, given)
    assert "so --remap is none, and 28 of 28 lists of the teacher name fewer than 4 of its items" in message
    assert "choose: --remap full or none" in message
    main([*given, "--remap=none"])
    assert summary_of(tmp_path / "out", "remap")["too_few_candidates"] == 28
    main([*given, "--remap=full", "--redo"])
    assert len(read(tmp_path / "out/sft_validation.parquet")) == 16


@pytest.mark.parametrize(
    ("texts", "only_titles"),
    [
        (["", ""], True),
        (["pages: 100", "pages: 90"], True),
        (["imdb: tt01", "imdb: tt02", ""], True),
        (["genres: horror", ""], True),  # of one item alone: nothing to compare it with
        (["genres: horror", "genres: comedy"], False),
        (["Keywords: dark\nPlot: two ghosts", "Keywords: light\nPlot: a dog"], False),
        (["導演: 王家衛", "導演: 侯孝賢"], False),
    ],
)
def test_what_tells_items_apart_besides_their_titles(tmp_path, texts, only_titles):
    items = [(f"Film {name}", 1990, text) for name, text in zip("ABC", texts, strict=False)]
    rows = [{"title": t, "year": y, "text": "\n".join(filter(None, (f"{t} ({y})", text)))} for t, y, text in items]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "metadata.parquet")
    assert has_only_titles(tmp_path) == only_titles
