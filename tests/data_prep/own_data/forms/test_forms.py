"""Files of other programs become the expected rows, and their format is guessed."""

import gzip
import json
import random
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.base.errors import UserError
from convrec.data.damage import Damage
from data_prep.own import convert_own, format_summary
from data_prep.own_data.conversations import guess_form
from data_prep.own_data.forms import FORMS
from data_prep.own_data.source import ReadingOptions, open_source
from tests.data_prep.own_data.forms import samples
from tests.user_errors import refuses

CATALOG = "title,year\nHeat,1995\nAlien,1979\nBlade Runner,1982\nDune,2021\nIt,2017\n"
WANTED = [["Blade Runner", "1982"], ["Alien", "1979"]]
READING = {field.name for field in fields(ReadingOptions)}


@pytest.fixture
def convert(tmp_path: Path):
    """convert(file name, content, **options) -> (rows of train or sft_train, summary)."""
    (tmp_path / "catalog.csv").write_text(CATALOG)

    def converted(name: str, content: str | bytes, **options: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        reading = ReadingOptions(**{name: options.pop(name) for name in READING & options.keys()})
        catalog = tmp_path / "catalog.csv"
        summary = convert_own([path], catalog, tmp_path / "out", overwrite=True, reading=reading, **options)
        table = tmp_path / "out" / f"{'train' if 'train' in summary['files'] else 'sft_train'}.parquet"
        return pq.read_table(table).to_pylist(), summary

    return converted


def conversation(row: dict[str, Any]) -> str:
    return row["prompt"][0]["content"].partition("Here is the conversation: ")[2]


@pytest.mark.parametrize("name", samples.CONVERSATION_SAMPLES)
def test_items_named_in_answer_to_the_user_are_ground_truth(convert, name: str) -> None:
    file, content, form, options = samples.CONVERSATION_SAMPLES[name]
    (row, *_), summary = convert(file, content, **options)
    said = conversation(row)
    assert said.endswith(f"USER: {samples.LIKED}\n") or (name == "INSPIRED" and said.endswith("USER: I liked heat.\n"))
    assert said.count("USER:") == 1
    assert row["groundtruth_with_release_year"] == WANTED
    assert row["seen_titles"] == ["Heat"]
    assert f": read as {form} (guessed; --format names another)" in format_summary(summary, "out")


@pytest.mark.parametrize("name", samples.DEMONSTRATION_SAMPLES)
def test_an_answer_that_is_a_list_is_a_demonstration(convert, name: str) -> None:
    file, content, form = samples.DEMONSTRATION_SAMPLES[name]
    (row, *_), summary = convert(file, content, num_items=2)
    assert row["completion"][0]["content"] == "Blade Runner (1982)\nAlien (1979)"
    assert conversation(row).endswith(f"{samples.LIKED}\n")
    assert f": read as {form} (" in summary["read"][0]
    (row, *others), _ = convert(file, content, num_items=2, truth="from-next-turns")
    assert len(others) == content.count("custom_id") - ("custom_id" in content)
    assert row["groundtruth_with_release_year"] == WANTED


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".JSONL.GZ", ".ndjson", ".parquet", ".json", ".Json.gz"])
def test_every_kind_of_file_holds_every_form(convert, tmp_path: Path, suffix: str) -> None:
    records = [{"messages": samples.messages()}] * 2
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), tmp_path / "table")
        content = (tmp_path / "table").read_bytes()
    else:
        text = json.dumps(records) if "json" in suffix.lower() and "jsonl" not in suffix.lower() else ""
        content = (text if text and "nd" not in suffix else samples.lines(*records)).encode()
        content = gzip.compress(content) if suffix.lower().endswith(".gz") else content
    rows, _ = convert(f"chats{suffix}", content, truth="from-next-turns")
    assert [row["groundtruth_with_release_year"] for row in rows] == [WANTED, WANTED]


def test_every_form_has_a_sample() -> None:
    guessed = {
        form for _, _, form, *_ in [*samples.CONVERSATION_SAMPLES.values(), *samples.DEMONSTRATION_SAMPLES.values()]
    }
    assert guessed == set(FORMS) - {"own", "tg-redial"}  # which has a test of its own


@pytest.mark.parametrize(
    ("name", "content", "options", "problem"),
    [
        (
            "a.txt",
            samples.ANDROID,
            {"truth": "from-next-turns"},
            "line 1: cannot tell whether 'Ann' is a user or the recommender",
        ),
        (
            "a.json",
            json.dumps(samples.SLACK[:3]),
            {},
            "; 2 conversations in which nobody recommends (",
        ),
        (
            "a.jsonl",
            samples.lines({"messages": samples.messages()[:2]}),
            {},
            "is not a list of items; --truth from-next-t",
        ),
        ("a.jsonl", samples.lines({"messages": samples.messages()}), {}, "line 1: neither ground_truth nor demonstra"),
        ("a.jsonl", samples.lines(samples.REQUEST | {"response": {}}), {}, "line 1: a response without its request"),
        (
            "a.jsonl",
            samples.lines({"messages": []}),
            {"form": "sharegpt"},
            "is not in the format sharegpt (KeyError: 'conv",
        ),
        ("a.jsonl", samples.lines({"mapping": [], "current_node": []}), {}, "line 1: is not in the format chatgpt ("),
    ],
)
def test_a_record_that_lacks_what_a_row_needs_is_refused(
    convert, name: str, content: str, options: dict, problem: str
) -> None:
    with pytest.raises(UserError) as error:
        convert(name, content, **options)
    assert problem in str(error.value)


def test_records_that_become_no_row_are_counted(convert) -> None:
    chat = {"messages": [samples.SYSTEM, *samples.BLOCKS], "model": "m-1", "temperature": 0.5}
    talk = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}
    rows, summary = convert("a.jsonl", samples.lines(chat, talk), truth="from-next-turns")
    assert len(rows) == 1
    assert summary["read"][1:] == [
        "2 ground truths were inferred from the next turns; --preview shows some",
        "1 system prompts left out",
        "1 images and other content without text left out",
        "2 tool calls, tool results and turns without text left out",
        "1 conversations in which no answer to the user names an item left out",
        "columns not read: model, temperature",
    ]
    printed = format_summary(summary, "out")
    assert all(line in printed for line in summary["read"])
    with refuses("conversations.none-left", "a.jsonl", "1 conversations in which no answer", "read as chat"):
        convert("a.jsonl", samples.lines(talk), truth="from-next-turns")


@pytest.mark.parametrize(
    ("name", "content", "options", "columns"),
    [
        ("a.json", json.dumps([samples.REDIAL]), {}, "initiatorQuestions, initiatorWorkerId, respondentQuestions"),
        ("a.csv", f'User,Assistant\n{samples.LIKED},"{samples.ANSWER}"\n', {"truth": "from-next-turns"}, None),
        ("_chat.txt", samples.IPHONE, samples.BOB, None),
    ],
)
def test_only_columns_that_are_not_read_are_reported(
    convert, name: str, content: str, options: dict, columns: str | None
) -> None:
    _, summary = convert(name, content, **options)
    notes = [line for line in summary["read"] if line.startswith("columns not read")]
    assert notes == ([f"columns not read: {columns}"] if columns else [])


def test_notices_of_programs_are_no_turns(convert) -> None:
    first, rest = samples.IPHONE.split("\n", 1)
    notice = "[31/12/2020, 21:41:30] Film Club: \u200eMessages and calls are end-to-end encrypted.\n"
    renamed = '[31/12/2020, 21:41:40] Ann changed the subject from "Heat: 1" to "Films: best"\n'
    plain, _ = convert("_chat.txt", samples.IPHONE, **samples.BOB)
    assert convert("_chat.txt", f"{first}\n{notice}{renamed}{rest}", **samples.BOB)[0] == plain

    pictures = json.loads(json.dumps(samples.CHATGPT))
    picture = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://1"}
    pictures["mapping"]["u1"]["message"]["content"]["parts"].insert(0, picture)
    plain, _ = convert("conversations.json", json.dumps([samples.CHATGPT]), truth="from-next-turns")
    rows, summary = convert("conversations.json", json.dumps([pictures]), truth="from-next-turns")
    assert rows == plain
    assert "1 images and other content without text left out" in summary["read"]


def test_chatter_outside_of_conversations_is_counted(convert) -> None:
    chatter = [{"type": "message", "user": "U7", "text": "lunch?", "ts": "1700000009.0", "thread_ts": "1700000009.0"}]
    rows, summary = convert("a.json", json.dumps(samples.SLACK + chatter), truth="from-next-turns")
    assert len(rows) == 1
    assert any(line.startswith("1 conversations in which nobody recommends") for line in summary["read"])


def test_sharegpt_with_the_keys_of_messages_is_read(convert) -> None:
    turns = [{"from": turn["role"], "value": turn["content"]} for turn in samples.messages()]
    expected, _ = convert("a.jsonl", samples.lines({"conversations": turns}), truth="from-next-turns")
    rows, _ = convert("a.jsonl", samples.lines({"conversations": samples.messages()}), truth="from-next-turns")
    assert rows == expected


def test_a_turn_that_cannot_be_read_is_one_problem(convert) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}, {"role": "captain", "content": "?"}]}
    with pytest.raises(UserError) as error:
        convert("a.jsonl", samples.lines(chat), truth="from-next-turns")
    assert "has the role 'captain'" in str(error.value)
    assert "--truth from-next-turns" not in str(error.value)


def test_tg_redial_names_what_each_answer_recommends(convert) -> None:
    rows, summary = convert("train.json", json.dumps([samples.TG_REDIAL]))
    assert "read as tg-redial (" in summary["read"][0]
    assert [row["groundtruth_with_release_year"] for row in rows] == [[["Blade Runner", "1982"]], [["Alien", "1979"]]]
    assert [row["seen_titles"] for row in rows] == [["Heat"], ["Heat", "Blade Runner"]]


def test_an_answer_that_recommends_nothing_is_counted(convert) -> None:
    rows, summary = convert("a.jsonl", samples.lines(samples.UNICRS, samples.UNICRS | {"rec": []}))
    assert len(rows) == 1
    assert "1 answers that recommend nothing left out" in summary["read"]


def test_the_bot_begins_if_durecdial_says_so(convert) -> None:
    begins = {
        "goal": "[1] 寒暄 ( Bot 主动 ) --> [2] ...",
        "conversation": ["Hello!", *samples.DURECDIAL["conversation"]],
    }
    (row,), _ = convert("a.jsonl", samples.lines(samples.DURECDIAL | begins), truth="from-next-turns")
    assert conversation(row) == f"SYSTEM: Hello!\nUSER: {samples.LIKED}\n"


@pytest.mark.parametrize(
    ("name", "record"),
    [
        (
            "a.json",
            {
                **samples.ZENDESK,
                "comments": [
                    c | {"created_at": f"2024-03-01T10:0{n}:00Z"} for n, c in enumerate(samples.ZENDESK["comments"])
                ][::-1],
            },
        ),
        ("a.json", {**samples.CLAUDE, "chat_messages": samples.CLAUDE["chat_messages"][::-1]}),
        (
            "a.jsonl",
            {"messages": [m | {"created_at": 1_700_000_000 + n} for n, m in enumerate(samples.messages())][::-1]},
        ),
    ],
)
def test_newest_first_api_messages_are_reversed(convert, name: str, record: dict) -> None:
    (row,), _ = convert(name, json.dumps(record) + "\n", truth="from-next-turns")
    assert conversation(row) == f"USER: {samples.LIKED}\n"
    assert row["groundtruth_with_release_year"] == WANTED


def test_messages_of_chatgpt_to_its_tools_are_no_turns(convert) -> None:
    tree = json.loads(json.dumps(samples.CHATGPT))
    plain, _ = convert("conversations.json", json.dumps([tree]), truth="from-next-turns")
    bio = samples.node("b1", "u1", ["a2"], "assistant", "User likes Dune (2021)")
    bio["b1"]["message"]["recipient"] = "bio"
    thoughts = samples.node("t1", "b1", ["a2"], "assistant")
    thoughts["t1"]["message"]["content"] = {"content_type": "thoughts", "thoughts": [{"content": "It (2017)"}]}
    tree["mapping"] |= bio | thoughts
    tree["mapping"]["a2"]["parent"] = "t1"
    rows, summary = convert("conversations.json", json.dumps([tree]), truth="from-next-turns")
    assert rows == plain
    assert "3 tool calls, tool results and turns without text left out" in summary["read"]


def test_an_answer_in_several_turns_ends_in_its_list(convert) -> None:
    turns = [*samples.WITH_LIST[:2], {"role": "assistant", "content": "Let me look."}, samples.WITH_LIST[2]]
    (row,), summary = convert("a.jsonl", samples.lines({"messages": turns}), num_items=2)
    assert conversation(row) == f"USER: {samples.LIKED}\n"
    assert "1 turns of the recommender before its list left out" in summary["read"]


def test_the_file_name_does_not_decide_the_format(tmp_path: Path) -> None:
    """The records decide, not the name of the file."""
    for name, (file, content, form, *_) in {**samples.CONVERSATION_SAMPLES, **samples.DEMONSTRATION_SAMPLES}.items():
        path = tmp_path / f"x{''.join(Path(file).suffixes)}"
        path.write_text(content)
        assert guess_form(path, {}) == form, name


JUNK = (None, 7, "x", [], {}, [None], [[1]], {"a": None}, True, "", [{"type": 1}], [{"type": "text", "text": 5}])


def damaged(value: Any, draw: random.Random) -> Any:
    """The value with parts of it replaced or taken out."""
    if draw.random() < 0.15:
        return draw.choice(JUNK)
    if isinstance(value, dict):
        kept = {key: inner for key, inner in value.items() if draw.random() > 0.03}
        return {key: damaged(inner, draw) if draw.random() < 0.5 else inner for key, inner in kept.items()}
    return [damaged(inner, draw) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("seed", range(10))
def test_a_damaged_export_is_reported_without_a_crash(tmp_path: Path, seed: int) -> None:
    (tmp_path / "catalog.csv").write_text(CATALOG)
    draw, path = random.Random(seed), tmp_path / "a.jsonl"
    for file, content, form, *_ in [*samples.CONVERSATION_SAMPLES.values(), *samples.DEMONSTRATION_SAMPLES.values()]:
        if ".json" not in file.lower():
            continue
        value = [json.loads(text) for text in content.splitlines()]
        records = value[0] if isinstance(value[0], list) else value
        path.write_text(samples.lines(*(record for one in records if isinstance(record := damaged(one, draw), dict))))
        for truth in ("given", "from-next-turns"):
            damage = Damage()
            reading = ReadingOptions(form=form, truth=truth)
            _, source = open_source([path], tmp_path / "catalog.csv", 5, damage, reading)
            rows = list(source.iter_rows(damage))
            assert all(row.truth or row.demonstration for *_, row in rows)
            assert all(str(finding.problem) for finding in damage.findings)
