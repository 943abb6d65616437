"""The whole of Remap-Reflect-Adjust: without a model, with a scripted one, killed. With vLLM: e2e/test_judges.py."""

import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.data.schema import RL_SCHEMA, conversation_text
from convrec.data.validation import validate_sft_table
from convrec.files import has_ended
from convrec.lists.catalog import load_catalog
from convrec.lists.ranks import format_item, parse_items
from data_prep.build import main, parse
from data_prep.stages.metadata import catalog_text, has_only_titles
from data_prep.stages.models import asker_of

from .conftest import make_rows

ROOT = Path(__file__).resolve().parents[2]
HORROR = [(f"Ghost {word}", 1980 + n) for n, word in enumerate(("House", "Ship", "Story", "Town", "Hotel", "Train"))]
COMEDY = [(f"Laughing {word}", 1990 + n) for n, word in enumerate(("Dog", "Boy", "Aunt", "Cook", "King", "Cow"))]
# Without years; one title has something like a year of its own.
BOOKS = [(f"Ghost {word}", "") for word in ("House", "Ship", "Story", "Town", "Hotel", "Summer (1999)")]
JOKES = [(title, "") for title, _ in COMEDY]
NUM_ITEMS = 4


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_source(tmp_path_factory.mktemp("source"), HORROR, COMEDY)


@pytest.fixture(scope="module")
def undated(tmp_path_factory):
    return write_source(tmp_path_factory.mktemp("undated"), BOOKS, JOKES)


def write_source(folder, *kinds):
    for split, count, seed in (("train", 60, 1), ("validation", 8, 2)):
        rows = make_rows(split, count, seed, kinds=kinds, num_items=NUM_ITEMS, outside=())
        pq.write_table(pa.Table.from_pylist(rows, RL_SCHEMA), folder / f"{split}.parquet")
    films = [film for kind in kinds for film in kind]
    catalog = {
        "title": [title for title, _ in films],
        "year": pa.array([year or None for _, year in films], pa.int32()),
        "genres": ["horror"] * len(HORROR) + ["comedy"] * len(COMEDY),
        "pages": pa.array(range(100, 100 + len(films)), pa.int32()),
        "mentions": pa.array(range(len(films)), pa.int32()),
    }
    pq.write_table(pa.table(catalog), folder / "catalog.parquet")
    return folder


def arguments(source, out, *more, stage="all"):
    files = [f"--{name}={source / name}.parquet" for name in ("train", "validation", "catalog")]
    return [stage, "--out", str(out), *files, f"--num-items={NUM_ITEMS}", "--candidates=10", "--share=0.5", *more]


def read(path):
    return pq.read_table(path).to_pylist()


def refusal(capsys, given):
    """What the command says when it ends with status 2."""
    with pytest.raises(SystemExit) as caught:
        main(given)
    assert caught.value.code == 2
    return capsys.readouterr().err


NO_MODEL = ("--teacher=retrieval", "--judge=cooccurrence", "--max-epochs=20")


@pytest.fixture(scope="module")
def built(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("built") / "out"
    main(arguments(source, out, *NO_MODEL))
    return out


def summary_of(out, stage):
    return json.loads((out / f"{stage}.json").read_text())["summary"]


def test_every_stage_leaves_rows_in_one_order_and_valid_demonstrations(built):
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


def test_a_second_run_leaves_everything_and_a_changed_setting_is_refused(built, source, tmp_path, capsys):
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
        (arguments(source, out, "--share=0"), "--share 0.0: give above 0"),
        (arguments(source, out), "LLM_BASE_URL or TEACHER_BASE_URL is not set"),  # before the first stage
        (arguments(source, out, "--teacher=retrieval"), "LLM_BASE_URL or JUDGE_BASE_URL is not set"),
        (arguments(source, out, "--teacher-model=none"), "--teacher-model none: no such folder"),
        (arguments(source, out, "--teacher-model=none", "--replicas=0"), "--replicas 0: give auto, or a number from 1"),
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


def test_ground_truth_whose_year_is_no_number_is_left_out_in_the_first_stage(source, tmp_path, capsys):
    rows = read(source / "validation.parquet")
    rows[3]["groundtruth_with_release_year"] = [["Ghost House", "unknown"], ["Ghost Ship", " 1981 "]]
    pq.write_table(pa.Table.from_pylist(rows, RL_SCHEMA), tmp_path / "v.parquet")
    main(arguments(source, tmp_path / "out", f"--validation={tmp_path / 'v.parquet'}", stage="rows"))
    warned = r"v.parquet: a ground-truth year that is no year: row 3: 'Ghost House', 'unknown'; write four digits"
    assert re.search(warned, capsys.readouterr().err)
    kept = [row for row in read(tmp_path / "out" / "rows.parquet") if row["split"] == "validation"]
    assert kept[3]["groundtruth_with_release_year"] == [["Ghost Ship", " 1981 "]]
    assert [row["groundtruth_with_release_year"] for row in kept[4:]] == [
        row["groundtruth_with_release_year"] for row in rows[4:]
    ]


def test_what_leaves_nothing_to_learn_from_is_said(built, source, tmp_path, capsys):
    one = read(source / "train.parquet")[:1]
    pq.write_table(pa.Table.from_pylist(one, RL_SCHEMA), tmp_path / "one.parquet")
    given = arguments(source, tmp_path / "out", *NO_MODEL, f"--train={tmp_path / 'one.parquet'}")
    assert "these 1 have no word or title in two of them" in refusal(capsys, given)


def test_a_folder_with_files_of_another_program_is_refused_before_the_first_stage(source, tmp_path, capsys):
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


def test_lists_that_the_teacher_does_not_fill_are_no_silent_loss(
    titles_only, tmp_path, chat_server, monkeypatch, capsys
):
    set_model(
        monkeypatch, chat_server(lambda body, count: "Ghost House (1980)\nLaughing Dog (1990)\nUp (2009)\nM (1931)")
    )
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


# ---- a scripted model


def script(body, count):
    """A teacher that sometimes chats, a describer, and a judge that likes ghosts and sometimes forgets the form."""
    text = body["messages"][0]["content"]
    again = len(body["messages"]) > 1
    if text.startswith("Describe"):
        return "A film." if "King" in text else "Keywords: one, two\nPlot: something happens"
    if text.startswith("Below are"):
        names = text.split("Candidates:\n")[1].split("\n")
        if "Seen that" in text and not again:
            return "They are all fine."
        return "\n".join(f"{name}####{2 if name.startswith('Ghost') else -1}" for name in names)
    if "I liked Laughing Dog" in text:
        return "Sure! What do you like?"  # again and again
    films = HORROR if "scary" in text else COMEDY
    return "\n".join(format_item(*film) for film in [*films[:3], ("Unknown Film", 1999)])


WITH_MODEL = ("--teacher=llm", "--metadata=llm", "--judge=list", "--max-epochs=2", "--concurrency=4")


def set_model(monkeypatch, server):
    monkeypatch.setenv("LLM_BASE_URL", server.url)
    monkeypatch.setenv("LLM_MODEL", "scripted")


def test_a_model_as_teacher_describer_and_judge(source, tmp_path, chat_server, monkeypatch):
    server = chat_server(script)
    set_model(monkeypatch, server)
    out = tmp_path / "out"
    main(arguments(source, out, *WITH_MODEL, "--price", "1", "2"))
    lost = sum("I liked Laughing Dog" in row["prompt"][0]["content"] for row in read(out / "rows.parquet"))
    teacher = summary_of(out, "teacher")
    assert (teacher["malformed"], teacher["malformed_again"]) == (lost, lost)
    assert lost > 0
    items = read(out / "items.parquet")
    assert [item["title"] for item in items if not item["in_catalog"]] == ["Unknown Film"]
    described = summary_of(out, "metadata")
    assert (described["items"], described["malformed"], described["kept_catalog_text"]) == (13, 1, 1)
    texts = [row["text"] for row in read(out / "metadata.parquet")]
    assert texts[0] == "Ghost House (1980)\ngenres: horror\npages: 100\nKeywords: one, two\nPlot: something happens"
    assert texts[-1] == "Unknown Film (1999)\nKeywords: one, two\nPlot: something happens"
    asked = [text for body in server.bodies if (text := body["messages"][0]["content"]).startswith("Describe")]
    assert sum(text.endswith("\nWhat the catalog says about it:\ngenres: horror\npages: 100") for text in asked) == 1
    assert texts[len(HORROR) + 4] == "Laughing King (1994)\ngenres: comedy\npages: 110"
    judged = summary_of(out, "reflect")
    later = sum("Seen that" in row["prompt"][0]["content"] for row in read(out / "rows.parquet"))
    assert (judged["malformed"], judged["malformed_again"]) == (later, 0)
    assert set(judged["ratings"]) == {"-1", "2"}  # all candidates of all rows
    assert "paid" in judged["usage"]
    for row, rated in zip(read(out / "remap.parquet"), read(out / "reflect.parquet"), strict=True):
        assert rated["ratings"] == [2.0 if m < len(HORROR) else -1.0 for m in row["candidates"]]


def test_no_model_is_asked_for_years_where_items_have_none(undated, tmp_path, chat_server, monkeypatch):
    server = chat_server(script)
    set_model(monkeypatch, server)
    out = tmp_path / "out"
    main(arguments(undated, out, *WITH_MODEL))
    assert not [body for body in server.bodies if "year" in json.dumps(body) or "(0)" in json.dumps(body)]
    assert summary_of(out, "teacher")["malformed_again"] > 0  # the corrections were asked too
    assert summary_of(out, "reflect")["malformed"] > 0
    assert summary_of(out, "teacher")["in_catalog"] > 0.7  # three of four; a year written all the same is taken off
    for row, rated in zip(read(out / "remap.parquet"), read(out / "reflect.parquet"), strict=True):
        assert rated["ratings"] == [2.0 if m < len(BOOKS) else -1.0 for m in row["candidates"]]
    moved = summary_of(out, "adjust")["moved"]["up"]
    assert moved
    assert not [line for line in moved if "(0)" in line or "(None)" in line]
    validate_sft_table(out / "sft_train.parquet")


def test_each_model_has_its_price_and_all_have_the_timeout(tmp_path, monkeypatch):
    monkeypatch.setenv("LLM_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("LLM_MODEL", "scripted")

    def clients(*more):
        given = parse(["all", "--out", str(tmp_path), *more])
        return [asker_of(given, role, kind)[0].llm for role, kind in (("teacher", "metadata"), ("judge", "list"))]

    assert [llm.price for llm in clients("--price", "1", "2", "--judge-price", "3", "4")] == [[1, 2], [3, 4]]
    assert [llm.price for llm in clients("--price", "1", "2")] == [[1, 2], [1, 2]]
    assert [llm.timeout for llm in (*clients("--timeout", "30"), *clients())] == [30, 30, 600, 600]


def test_sampling_adds_replaces_and_takes_away(source, tmp_path, chat_server, monkeypatch, capsys):
    server = chat_server(script)
    set_model(monkeypatch, server)
    main(arguments(source, tmp_path, "--share=0.02", stage="rows"))
    sampling = '{"max_tokens": null, "max_completion_tokens": 2048, "temperature": 1, "top_k": 20}'
    main(arguments(source, tmp_path, "--teacher=llm", "--sampling", sampling, stage="teacher"))
    expected = {"max_completion_tokens": 2048, "temperature": 1, "top_k": 20}
    assert {key: value for key, value in server.bodies[0].items() if key not in ("model", "messages")} == expected
    assert json.loads((tmp_path / "teacher.json").read_text())["settings"]["sampling"] == expected
    for wrong in ('{"model": "another"}', "[1]", "{"):
        assert "argument --sampling" in refusal(capsys, ["teacher", "--out", str(tmp_path), "--sampling", wrong])


def test_a_pointwise_judge_rates_the_best_candidates(built, source, tmp_path, chat_server, monkeypatch):
    def judge(body, count):
        text = body["messages"][0]["content"]
        assert "<score>0-4</score>" in text  # the words of its training
        score = 4 if "Response:\n```\nGhost" in text else 1
        assert body["max_tokens"] == 2048  # as many as in its training
        return f"<think>hm</think>\n<score>{score}</score>"

    set_model(monkeypatch, chat_server(judge))
    out = tmp_path / "out"
    main(arguments(source, out, "--share=0.1", stage="rows"))
    for stage in ("teacher", "metadata", "remap"):
        main(arguments(source, out, "--teacher=retrieval", stage=stage))
    main(arguments(source, out, "--judge=pointwise", "--judged=3", stage="reflect"))
    for row, rated in zip(read(out / "remap.parquet"), read(out / "reflect.parquet"), strict=True):
        expected = [2.0 if m < len(HORROR) else -1.0 for m in row["candidates"][:3]]
        assert rated["ratings"] == expected + [0.0] * (len(row["candidates"]) - 3)


@pytest.fixture
def remapped(source, tmp_path):
    """A folder in which the stages before reflect are done."""
    main(arguments(source, tmp_path / "out", "--share=0.1", stage="rows"))
    for stage in ("teacher", "metadata", "remap"):
        main(arguments(source, tmp_path / "out", "--teacher=retrieval", stage=stage))
    return tmp_path / "out"


def pairwise_verdict(body, count):
    """Ghosts are better; of two of a kind always A."""
    text = body["messages"][0]["content"]
    first, second = (f"Response {letter}:\n```\nGhost" in text for letter in "AB")
    return f"<think>hm</think>\n<better>{'B' if second and not first else 'A'}</better>"


def test_a_pairwise_judge_rates_candidates_by_the_comparisons_they_win(remapped, source, chat_server, monkeypatch):
    server = chat_server(pairwise_verdict)
    set_model(monkeypatch, server)
    main(arguments(source, remapped, "--judge=pairwise", "--judged=6", stage="reflect"))
    assert {body["max_tokens"] for body in server.bodies} == {2048}
    assert "<better>A or B</better>" in server.bodies[0]["messages"][0]["content"]
    some_of_both = 0
    for row, rated in zip(read(remapped / "remap.parquet"), read(remapped / "reflect.parquet"), strict=True):
        is_ghost = [m < len(HORROR) for m in row["candidates"][:6]]
        ghosts, others = ([r for r, g in zip(rated["ratings"], is_ghost, strict=False) if g == kind] for kind in (1, 0))
        assert rated["ratings"][6:] == [0.0] * (len(row["candidates"]) - 6)
        if ghosts and others:
            some_of_both += 1
            assert min(ghosts) >= 0 >= max(others)
            assert max(ghosts) > min(others)
        else:  # A each time: everybody is shown first as often as second
            assert rated["ratings"][:6] == [0.0] * 6
    assert some_of_both


def test_a_judge_of_other_criteria_is_asked_by_them(remapped, source, tmp_path, chat_server, monkeypatch):
    own = tmp_path / "own.yaml"
    own.write_text("task: Rate how scary it is.\nprinciples: [Ghosts are scary.]\nscores: [1, 5]\n")
    server = chat_server(lambda body, count: "<think>hm</think><score>2</score>")
    set_model(monkeypatch, server)
    main(arguments(source, remapped, "--judge=pointwise", "--judged=1", f"--criteria={own}", stage="reflect"))
    assert all(body["messages"][0]["content"].startswith("Rate how scary it is.") for body in server.bodies)
    rated = read(remapped / "reflect.parquet")
    assert {row["ratings"][0] for row in rated} == {-1.0}  # the second lowest of five


def test_a_killed_build_goes_on_where_it_was_without_paying_twice(source, tmp_path, chat_server, monkeypatch):
    enough, finished = threading.Event(), threading.Event()

    def behave(body, count):
        if count >= 100 and not finished.is_set():  # the teacher's 76 are there, metadata or the judge is under way
            enough.set()
            time.sleep(20)
        if count % 10 == 9:
            return 429, {"Retry-After": "0.01"}, "{}"
        return script(body, count)

    server = chat_server(behave)
    set_model(monkeypatch, server)
    given = arguments(source, tmp_path / "out", *WITH_MODEL)
    command = [sys.executable, "-m", "data_prep.build", *given]
    with (tmp_path / "log").open("wb") as log:
        child = subprocess.Popen(command, cwd=ROOT, env=dict(os.environ), stdout=log, stderr=log)
        try:
            assert enough.wait(120), (tmp_path / "log").read_text()
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
    finished.set()
    assert not (tmp_path / "out" / "demonstrations.json").exists()
    left = list((tmp_path / "out").glob(".*.partial-*"))
    assert left
    ended_by = time.monotonic() + 60  # the kernel ends the fork that did the work, a moment after its parent
    while not all(has_ended(file.name.rpartition("-")[2]) for file in left):
        assert time.monotonic() < ended_by
        time.sleep(0.05)
    before = len(server.bodies)
    main(given)
    asked = [json.dumps(body, sort_keys=True) for body in server.bodies]
    refused = sum(count % 10 == 9 for count in range(len(asked)))
    # every question once, and again only what was told to wait or was under way (four at most) when it was killed
    assert len(asked) - len(set(asked)) <= refused + 4
    assert before < len(asked)
    validate_sft_table(tmp_path / "out" / "sft_train.parquet")
    assert not list((tmp_path / "out").glob(".*partial*"))


def test_questions_that_keep_failing_are_named_and_the_rest_is_built(
    source, tmp_path, chat_server, monkeypatch, capsys
):
    """A conversation, an item and a judgement that the server cannot answer, each again and again."""
    out, poisoned = tmp_path / "out", []

    def behave(body, count):
        if any(part in body["messages"][0]["content"] for part in poisoned):
            return 500, {}, json.dumps({"error": {"message": "out of memory"}})
        return script(body, count)

    monkeypatch.setattr("convrec.llm.client.back_off", lambda retry: 0.001)
    set_model(monkeypatch, chat_server(behave))
    given = arguments(source, out, *WITH_MODEL, "--retries=1", "--skip-failed=0.1")
    main(["rows", *given[1:]])
    rows = read(out / "rows.parquet")
    lost, unrated = rows[5], rows[-1]
    poisoned += [lost["prompt"][0]["content"], "Describe Ghost House (1980)"]
    poisoned.append(f"Conversation:\n{conversation_text(unrated)}")
    main(given)
    failed = [json.loads(line) for line in (out / "failed.jsonl").read_text().splitlines()]
    same = [row["sample_id"] for row in rows if row["prompt"] == lost["prompt"]]
    assert [entry["row"] for entry in failed if entry["stage"] == "teacher"] == same
    assert [entry["row"] for entry in failed if entry["stage"] == "metadata"] == ["Ghost House (1980)"]
    assert unrated["sample_id"] in [entry["row"] for entry in failed if entry["stage"] == "reflect"]
    assert failed[0]["prompt"] == lost["prompt"]
    assert failed[0]["status"] == 500
    assert "out of memory" in failed[0]["error"]
    told = capsys.readouterr().err
    assert f"failed.jsonl names the questions that got no answer ({len(same)} of teacher, 1 of metadata, " in told
    demonstrated = [row["sample_id"] for part in ("train", "validation") for row in read(out / f"sft_{part}.parquet")]
    assert demonstrated == [row["sample_id"] for row in rows if row["sample_id"] not in same]
    ratings = {row["sample_id"]: row["ratings"] for row in read(out / "reflect.parquet")}
    assert set(ratings[unrated["sample_id"]]) == {0.0}

    main(given)  # nothing is asked without being told
    assert capsys.readouterr().out.count("as it was") == 7
    poisoned.clear()
    main([*given, "--redo"])
    assert not (out / "failed.jsonl").exists()
    assert len(read(out / "sft_train.parquet")) + len(read(out / "sft_validation.parquet")) == len(rows)
    assert "got no answer" not in capsys.readouterr().err


def test_too_many_failed_questions_stop_a_build_and_are_named(source, tmp_path, chat_server, monkeypatch, capsys):
    def behave(body, count):
        text = body["messages"][0]["content"]
        return (503, {}, "{}") if "funny" in text else script(body, count)

    monkeypatch.setattr("convrec.llm.client.back_off", lambda retry: 0.001)
    set_model(monkeypatch, chat_server(behave))
    given = arguments(source, tmp_path, "--teacher=llm", "--concurrency=1", "--retries=0")
    message = refusal(capsys, given)
    assert "4 of 76 questions have no answer, more than the share of 0.05 that may fail: http://127.0.0.1" in message
    assert "what was answered is kept, run again to go on" in message
    failed = (tmp_path / "failed.jsonl").read_text().splitlines()
    assert f"failed.jsonl names the questions that got no answer ({len(failed)} of teacher)" in message
    assert len({str(json.loads(entry)["prompt"]) for entry in failed}) == 4  # rows can have a prompt in common
    assert "--skip-failed 1.0: give at least 0, below 1" in refusal(capsys, [*given, "--skip-failed=1"])


# ---- the real thing
