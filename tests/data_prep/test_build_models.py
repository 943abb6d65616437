"""Remap-Reflect-Adjust with a scripted model: malformed and missing answers, and a killed build."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from convrec.base.files import has_ended
from convrec.base.options import parse
from convrec.data.schema import conversation_text
from convrec.data.validation import validate_sft_table
from convrec.titles.item import format_item
from data_prep.build import main
from data_prep.options.demonstrations import DemonstrationsOptions
from data_prep.stages.asking import make_asker

from .conftest import BOOKS, GHOSTS, LAUGHS, arguments, read, read_summary, refusal

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]


def script(body, count):
    """A teacher that sometimes chats, a describer, and a judge that likes ghosts and sometimes forgets the format."""
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
    films = GHOSTS if "scary" in text else LAUGHS
    return "\n".join(format_item(*film) for film in [*films[:3], ("Unknown Film", 1999)])


WITH_MODEL = ("--teacher=llm", "--metadata=llm", "--judge=list", "--max-epochs=2", "--concurrency=4")


def test_a_model_as_teacher_describer_and_judge(source, tmp_path, model):
    server = model(script)
    out = tmp_path / "out"
    main(arguments(source, out, *WITH_MODEL))
    lost = sum("I liked Laughing Dog" in row["prompt"][0]["content"] for row in read(out / "rows.parquet"))
    teacher = read_summary(out, "teacher")
    assert (teacher["malformed"], teacher["malformed_again"]) == (lost, lost)
    assert lost > 0
    items = read(out / "items.parquet")
    assert [item["title"] for item in items if not item["in_catalog"]] == ["Unknown Film"]
    described = read_summary(out, "metadata")
    assert (described["items"], described["malformed"], described["kept_catalog_text"]) == (13, 1, 1)
    texts = [row["text"] for row in read(out / "metadata.parquet")]
    assert texts[0] == "Ghost House (1980)\ngenres: horror\npages: 100\nKeywords: one, two\nPlot: something happens"
    assert texts[-1] == "Unknown Film (1999)\nKeywords: one, two\nPlot: something happens"
    asked = [text for body in server.bodies if (text := body["messages"][0]["content"]).startswith("Describe")]
    assert sum(text.endswith("\nWhat the catalog says about it:\ngenres: horror\npages: 100") for text in asked) == 1
    assert texts[len(GHOSTS) + 4] == "Laughing King (1994)\ngenres: comedy\npages: 110"
    judged = read_summary(out, "reflect")
    later = sum("Seen that" in row["prompt"][0]["content"] for row in read(out / "rows.parquet"))
    assert (judged["malformed"], judged["malformed_again"]) == (later, 0)
    assert set(judged["ratings"]) == {"-1", "2"}  # all candidates of all rows
    assert " tokens" in judged["usage"]
    for row, rated in zip(read(out / "remap.parquet"), read(out / "reflect.parquet"), strict=True):
        assert rated["ratings"] == [2.0 if m < len(GHOSTS) else -1.0 for m in row["candidates"]]


def test_no_model_is_asked_for_years_where_items_have_none(undated, tmp_path, model):
    server = model(script)
    out = tmp_path / "out"
    main(arguments(undated, out, *WITH_MODEL))
    assert not [body for body in server.bodies if "year" in json.dumps(body) or "(0)" in json.dumps(body)]
    assert read_summary(out, "teacher")["malformed_again"] > 0  # the corrections were asked too
    assert read_summary(out, "reflect")["malformed"] > 0
    assert read_summary(out, "teacher")["in_catalog"] > 0.7  # three of four; years in the answers are stripped
    for row, rated in zip(read(out / "remap.parquet"), read(out / "reflect.parquet"), strict=True):
        assert rated["ratings"] == [2.0 if m < len(BOOKS) else -1.0 for m in row["candidates"]]
    validate_sft_table(out / "sft_train.parquet")


def test_all_models_have_the_timeout(tmp_path, monkeypatch):
    monkeypatch.setenv("LLM_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("LLM_MODEL", "scripted")

    def clients(*more):
        argv = parse(DemonstrationsOptions, ["all", "--out", str(tmp_path), *more])
        return [make_asker(argv, role, kind).llm for role, kind in (("teacher", "metadata"), ("judge", "list"))]

    assert [llm.timeout for llm in (*clients("--timeout", "30"), *clients())] == [30, 30, 600, 600]


def test_sampling_adds_replaces_and_removes_parameters(source, tmp_path, model, capsys):
    server = model(script)
    main(arguments(source, tmp_path, "--share=0.02", stage="rows"))
    sampling = '{"max_tokens": null, "max_completion_tokens": 2048, "temperature": 1, "top_k": 20}'
    main(arguments(source, tmp_path, "--teacher=llm", "--sampling", sampling, stage="teacher"))
    expected = {"max_completion_tokens": 2048, "temperature": 1, "top_k": 20}
    assert {key: value for key, value in server.bodies[0].items() if key not in ("model", "messages")} == expected
    assert json.loads((tmp_path / "teacher.json").read_text())["settings"]["sampling"] == expected
    for wrong in ('{"model": "another"}', "[1]", "{"):
        assert "error: --sampling " in refusal(capsys, ["teacher", "--out", str(tmp_path), "--sampling", wrong])


@pytest.fixture
def remapped(source, tmp_path):
    """A folder in which the stages before reflect are done."""
    main(arguments(source, tmp_path / "out", "--share=0.1", stage="rows"))
    for stage in ("teacher", "metadata", "remap"):
        main(arguments(source, tmp_path / "out", "--teacher=retrieval", stage=stage))
    return tmp_path / "out"


def test_a_pointwise_judge_rates_the_best_candidates(remapped, source, model):
    def judge(body, count):
        text = body["messages"][0]["content"]
        assert "<score>0-4</score>" in text  # the prompt of its training
        score = 4 if "Response:\n```\nGhost" in text else 1
        assert body["max_tokens"] == 2048  # as many as in its training
        return f"<think>hm</think>\n<score>{score}</score>"

    model(judge)
    main(arguments(source, remapped, "--judge=pointwise", "--judged=3", stage="reflect"))
    for row, rated in zip(read(remapped / "remap.parquet"), read(remapped / "reflect.parquet"), strict=True):
        expected = [2.0 if m < len(GHOSTS) else -1.0 for m in row["candidates"][:3]]
        assert rated["ratings"] == expected + [0.0] * (len(row["candidates"]) - 3)


def test_a_judge_of_other_criteria_is_asked_by_them(remapped, source, tmp_path, model):
    own = tmp_path / "own.yaml"
    own.write_text("task: Rate how scary it is.\nprinciples: [Ghosts are scary.]\nscores: [1, 5]\n")
    server = model(lambda body, count: "<think>hm</think><score>2</score>")
    main(arguments(source, remapped, "--judge=pointwise", "--judged=1", f"--criteria={own}", stage="reflect"))
    assert all(body["messages"][0]["content"].startswith("Rate how scary it is.") for body in server.bodies)
    rated = read(remapped / "reflect.parquet")
    assert {row["ratings"][0] for row in rated} == {-1.0}  # the second lowest of five


def test_killed_build_resumes_without_paying_twice(source, tmp_path, model):
    enough, finished = threading.Event(), threading.Event()

    def behave(body, count):
        if count >= 100 and not finished.is_set():  # the teacher's 76 are there, metadata or the judge is under way
            enough.set()
            time.sleep(20)
        if count % 10 == 9:
            return 429, {"Retry-After": "0.01"}, "{}"
        return script(body, count)

    server = model(behave)
    argv = arguments(source, tmp_path / "out", *WITH_MODEL)
    command = [sys.executable, "-m", "recipes", "demonstrations", *argv]
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
    main(argv)
    asked = [json.dumps(body, sort_keys=True) for body in server.bodies]
    refused = sum(count % 10 == 9 for count in range(len(asked)))
    # every question once, and again only what was told to wait or was under way (four at most) when it was killed
    assert len(asked) - len(set(asked)) <= refused + 4
    assert before < len(asked)
    validate_sft_table(tmp_path / "out" / "sft_train.parquet")
    assert not list((tmp_path / "out").glob(".*partial*"))


def test_failing_questions_are_listed_and_the_rest_is_built(source, tmp_path, model, no_back_off, capsys):
    """A conversation, an item and a judgement that the server cannot answer, each again and again."""
    out, poisoned = tmp_path / "out", []

    def behave(body, count):
        if any(part in body["messages"][0]["content"] for part in poisoned):
            return 500, {}, json.dumps({"error": {"message": "out of memory"}})
        return script(body, count)

    model(behave)
    argv = arguments(source, out, *WITH_MODEL, "--retries=1", "--skip-failed=0.1")
    main(["rows", *argv[1:]])
    rows = read(out / "rows.parquet")
    lost, unrated = rows[5], rows[-1]
    poisoned += [lost["prompt"][0]["content"], "Describe Ghost House (1980)"]
    poisoned.append(f"Conversation:\n{conversation_text(unrated)}")
    main(argv)
    failed = [json.loads(line) for line in (out / "failed.jsonl").read_text().splitlines()]
    same = [row["sample_id"] for row in rows if row["prompt"] == lost["prompt"]]
    assert [entry["row"] for entry in failed if entry["stage"] == "teacher"] == same
    assert [entry["row"] for entry in failed if entry["stage"] == "metadata"] == ["Ghost House (1980)"]
    assert unrated["sample_id"] in [entry["row"] for entry in failed if entry["stage"] == "reflect"]
    assert failed[0]["prompt"] == lost["prompt"]
    assert failed[0]["status"] == 500
    assert "out of memory" in failed[0]["error"]
    printed = capsys.readouterr().err
    assert f"failed.jsonl lists the questions without an answer ({len(same)} in teacher, 1 in metadata, " in printed
    demonstrated = [row["sample_id"] for part in ("train", "validation") for row in read(out / f"sft_{part}.parquet")]
    assert demonstrated == [row["sample_id"] for row in rows if row["sample_id"] not in same]
    ratings = {row["sample_id"]: row["ratings"] for row in read(out / "reflect.parquet")}
    assert set(ratings[unrated["sample_id"]]) == {0.0}

    main(argv)  # no question is repeated without --redo
    assert capsys.readouterr().out.count("(unchanged)") == 7
    poisoned.clear()
    main([*argv, "--redo"])
    assert not (out / "failed.jsonl").exists()
    assert len(read(out / "sft_train.parquet")) + len(read(out / "sft_validation.parquet")) == len(rows)
    assert "without an answer" not in capsys.readouterr().err


def test_too_many_failed_questions_stop_a_build_and_are_listed(source, tmp_path, model, capsys):
    def behave(body, count):
        text = body["messages"][0]["content"]
        return (503, {}, "{}") if "funny" in text else script(body, count)

    model(behave)
    argv = arguments(source, tmp_path, "--teacher=llm", "--concurrency=1", "--retries=0")
    message = refusal(capsys, argv)
    assert "4 of 76 questions" in message
    assert "http://127.0.0.1" in message
    failed = (tmp_path / "failed.jsonl").read_text().splitlines()
    assert f"failed.jsonl lists the questions without an answer ({len(failed)} in teacher)" in message
    assert len({str(json.loads(entry)["prompt"]) for entry in failed}) == 4  # rows can have a prompt in common
    assert "--skip-failed 1: give a number of at least 0, below 1" in refusal(capsys, [*argv, "--skip-failed=1"])
