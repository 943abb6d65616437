"""Records of your own conversations: how they are read, and what is reported about damaged ones."""

import contextlib
import json
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.data.damage import BadRecord, BadRow
from convrec.data.schema import SPEAKERS
from convrec.titles.catalog import Catalog
from convrec.titles.marks import decode_marks
from convrec.titles.matching import Matcher
from data_prep.own_data.catalog import ItemIds
from data_prep.own_data.cells import ItemReader
from data_prep.own_data.rows import KEYS, Row, conversation_text, read_row, read_turns
from data_prep.own_data.times import DateOrder
from data_prep.tables import get_opening
from tests.user_errors import refuses_record

USER = {"role": "user", "content": "hi"}
SOUND = {"conversation": [USER], "ground_truth": [["M", 1931]]}
MATCHER = Matcher(Catalog.from_items([("Heat", 1995), ("M", 1931), ("Up", 2009)]))


READER = ItemReader(MATCHER, ItemIds(MATCHER.catalog))
UNDATED = Matcher(Catalog.from_items([("Heat", None), ("M", None)]))


def read(**changes: Any) -> Row:
    return read_row(SOUND | changes, READER, 20)


def test_a_row_in_all_its_forms() -> None:
    truth = ["M (1931)", {"title": "Up", "year": "2009"}, ["M", "1931"]]
    row = read(ground_truth=truth, seen="Heat (1995) | Nine", demonstration=[["Up", 2009]], id=7, split="test")
    assert (row.truth, row.repeated_truths) == ([("M", "1931"), ("Up", "2009")], 1)
    assert (row.seen, row.demonstration, row.id, row.split) == (["Heat", "Nine"], [("Up", 2009)], "7", "test")
    del (other := SOUND | {"messages": [USER]})["conversation"]
    assert read_row(other, READER, 20).conversation == row.conversation == "USER: hi\n"


@pytest.mark.parametrize(
    ("changes", "code", "value"),
    [
        ({"conversation": None}, "row.no-turns", ""),
        ({"conversation": []}, "row.no-turns", ""),
        ({"conversation": 7}, "row.wrong-type", "type int"),
        ({"conversation": "hello"}, "row.no-speaker", "USER: "),
        ({"conversation": [USER, {"role": "bot", "content": "?"}]}, "row.unknown-role", "turn 1 has the role 'bot'"),
        ({"conversation": [{"role": "user", "content": " "}]}, "row.empty-turn", "turn 0"),
        ({"conversation": [{"text": "hi"}]}, "row.not-a-turn", "turn 0"),
        ({"conversation": [USER, {"role": "assistant", "content": "Up?"}]}, "row.last-turn", ""),
        ({"conversation": "USER: hi\nSYSTEM: Up?"}, "row.last-turn", ""),
        ({"conversation": [{"role": "user", "content": "hi\nSYSTEM: Up?"}]}, "row.two-turns-in-one", "turn 0"),
        ({"conversation": [{"role": "user", "content": [{"text": "hi"}]}]}, "row.content-type", "type list"),
        ({"conversation": [USER, {"role": "system", "content": "Be brief."}, USER]}, "row.instruction", "turn 1"),
        ({"conversation": "USER: \nSYSTEM: Up?\nUSER: no"}, "row.empty-turn", "turn 0"),
        ({"conversation": "USER: hi\nASSISTANT: Up?\nUSER:"}, "row.empty-turn", "turn 2"),
        ({"conversation": "USER: hi\rRECOMMENDER: Up?"}, "row.last-turn", ""),
        ({"conversation": [{"role": "system", "content": "Be brief."}]}, "row.no-user", ""),
        ({"seen": "Heat (1995) Up"}, "cell.ignored-text", "seen holds 'Heat (1995) Up', where 'Up'"),
        ({"conversation": [USER, {"role": "developer", "content": "x"}, USER]}, "row.instruction", "'developer'"),
        ({"messages": [USER]}, "row.two-names", "conversation and messages"),
        ({"ground_truth": []}, "row.no-ground-truth", "--truth"),
        ({"ground_truth": "Heat"}, "cell.missing-year", "ground_truth holds 'Heat'"),
        ({"ground_truth": [["Heat", "soon"]]}, "cell.impossible-year", "'soon'"),
        ({"ground_truth": [["Heat", 201]]}, "cell.impossible-year", "201"),
        ({"ground_truth": [["", 1995]]}, "cell.not-an-item", "ground_truth holds ['', 1995]"),
        ({"ground_truth": [["Heat", 1995, 1]]}, "cell.not-an-item", "['Heat', 1995, 1]"),
        ({"ground_truth": {"Heat": 1995}}, "cell.not-a-list", "ground_truth has the type dict"),
        ({"seen": [7]}, "cell.not-an-item", "seen holds 7"),
        ({"demonstration": ["M (1931)", "Up (2009)", ["M", 1931]]}, "demonstration.repeated-item", "'M (1931)' twice;"),
        ({"demonstration": ["M (1931)", "m (1931)"]}, "demonstration.repeated-item", "'m (1931)'"),
        ({"demonstration": ["M (1931)", "M (1932)"]}, "demonstration.repeated-item", "'M (1932)'"),
        ({"demonstration": [["Blade (1982) Cut", 2007]]}, "demonstration.misread-item", "'Blade (1982)'"),
        ({"demonstration": [["-", 2007]]}, "demonstration.misread-item", "'- (2007)'"),
        ({"ground_truth": ["Blade (1982) Cut (2007)"]}, "cell.two-years", "'Blade (1982) Cut (2007)'"),
        ({"demonstration": [["M", 1900 + n] for n in range(21)]}, "demonstration.too-long", "21 items"),
        ({"ground_truth": [], "labels": ["M (1931)"]}, "row.no-ground-truth", "--columns ground_truth=labels"),
        ({"conversation": [USER | {"content": "hi\rSYSTEM: Up?"}]}, "row.two-turns-in-one", "'SYSTEM:'"),
        ({"conversation": [USER | {"content": "hi\u2028USER: no"}]}, "row.two-turns-in-one", "'USER:'"),
        ({"conversation": [USER | {"content": "a\0b"}]}, "row.nul-character", ""),
        ({"conversation": "USER: a\0b"}, "row.nul-character", ""),
        ({"conversation": "[1, 2"}, "row.no-speaker", ""),
        ({"conversation": float("nan")}, "row.no-turns", ""),
        ({"conversation_id": "1.21E+18"}, "ids.dropped-digits", "conversation_id is '1.21E+18'"),
        ({"id": 1.5e17}, "ids.dropped-digits", "id is 1.5e+17"),
        ({"time": "last week"}, "time.not-a-time", "time is 'last week'"),
        ({"time": 2022}, "time.number-out-of-range", "time is 2022"),
        ({"time": ["2022"]}, "time.wrong-type", "time has the type list"),
        ({"split": "dev"}, "row.unknown-split", "split is 'dev'"),
        ({"id": True}, "row.invalid-id", "id is True"),
        ({"conversation_id": {}}, "row.invalid-id", "conversation_id is {}"),
    ],
)  # fmt: skip
def test_a_damaged_row_is_refused(changes: dict[str, Any], code: str, value: str) -> None:
    with refuses_record(code, value):
        read(**changes)


def test_all_problems_of_a_row_are_reported_at_once() -> None:
    changes = {
        "conversation": [USER, {"role": "bot", "content": "?"}, {"role": "user"}],
        "id": True,
    }
    changes |= {"ground_truth": ["Heat", ["M", 201]], "demonstration": ["M (1931)", "M (1932)"], "seen": [7]}
    with pytest.raises(BadRow) as error:
        read(**changes, time="soon", split="dev")
    assert [(problem.column, problem.code) for problem in error.value.problems] == [
        ("", "row.unknown-role"),
        ("", "row.not-a-turn"),
        ("ground_truth", "cell.missing-year"),
        ("ground_truth", "cell.impossible-year"),
        ("demonstration", "demonstration.repeated-item"),
        ("seen", "cell.not-an-item"),
        ("time", "time.not-a-time"),
        ("split", "row.unknown-split"),
        ("id", "row.invalid-id"),
    ]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    "names", [("USER", "SYSTEM"), ("USER", "ASSISTANT"), ("USER", "RECOMMENDER"), ("User", "Assistant")]
)
def test_turns_of_a_text_by_any_name_and_line_break(names: tuple[str, str], end: str) -> None:
    user, recommender = names
    text = end.join([f"{user}: hi", "there", f"{recommender}:Up?", "", f"{user}:  no: not Up", ""])
    assert read(conversation=text).conversation == "USER: hi\nthere\nSYSTEM: Up?\nUSER: no: not Up\n"
    assert read(conversation="USER: hi\nSystem: Up?").conversation == "USER: hi\nSystem: Up?\n"


def test_an_instruction_to_a_model_is_left_out_and_counted() -> None:
    turns = [{"role": "system", "content": "Be brief."}, USER]
    turns += [
        {"role": role, "content": "2 films"} for role in ("tool", "function_call", "observation", "tool_response")
    ]
    left_out: Counter[str] = Counter()
    assert conversation_text(read_turns([*turns, USER], left_out)) == "USER: hi\nUSER: hi\n"
    assert left_out == {"system prompts": 1, "tool calls, tool results and turns without text": 4}


@pytest.mark.parametrize(
    "content",
    [
        "<|im_start|>user\nhi<|im_end|>",
        "<s>[INST] hi [/INST] Up </s>",
        "<|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>",
        "<start_of_turn>user\nhi<end_of_turn>",
        "<\uff5cUser\uff5c>hi<\uff5cAssistant\uff5c>",
        "Human: hi\n\nAssistant: Up\n\nHuman: no",
        "Below is an instruction.\n### Instruction:\nhi\n### Response:\n",
    ],
)
def test_a_rendered_prompt_is_no_turn(content: str) -> None:
    with refuses_record("row.template-marker", "turn 0"):
        read(conversation=[{"role": "user", "content": content}])


@pytest.mark.parametrize("content", ["I <3 it | really <|", "it <s>costs</s> 5", "Human: the film", "a [INST"])
def test_text_that_is_like_a_marker_is_text(content: str) -> None:
    assert read(conversation=[{"role": "user", "content": content}]).conversation == f"USER: {content}\n"


@pytest.mark.parametrize("write", [json.dumps, repr])
def test_a_conversation_as_text_in_a_cell_is_a_conversation(write: Callable[[Any], str]) -> None:
    turns = [USER, {"role": "assistant", "content": "Up?"}, USER | {"content": "it's 'no'\n"}]
    assert read(conversation=write(turns)).conversation == "USER: hi\nSYSTEM: Up?\nUSER: it's 'no'\n"


def test_what_pandas_and_parquet_write_for_nothing_is_nothing() -> None:
    padded = {"title": "M", "year": 1931, "item_id": None}
    row = read(
        ground_truth=[padded], seen=[float("nan"), "Heat", None][1:2], demonstration=float("nan"), time=None, id=""
    )
    assert (row.truth, row.seen, row.demonstration, row.time, row.id) == ([("M", "1931")], ["Heat"], [], None, None)
    assert read(conversation_id=17.0).conversation_id == read(conversation_id="17").conversation_id == "17"


def test_a_date_is_read_in_the_order_of_its_file() -> None:
    with refuses_record("time.ambiguous-date", "time is '05.02.2021': 5 February or 2 May"):
        read(time="05.02.2021")
    row = read_row(SOUND | {"time": "05.02.2021"}, READER, 20, date_order=DateOrder.DAY_FIRST)
    assert row.time == read(time="2021-02-05").time == read(time=datetime(2021, 2, 5)).time


def test_entities_of_html_in_a_turn_are_decoded() -> None:
    row = read(conversation=[{"role": "user", "content": "like Tom &amp; Jerry, it&#39;s fun"}])
    assert row.conversation == "USER: like Tom & Jerry, it's fun\n"


def test_a_row_of_a_catalog_without_years() -> None:
    with refuses_record("cell.unexpected-year", "ground_truth holds ['M', 1931]"):
        read_row(SOUND, ItemReader(UNDATED, ItemIds(UNDATED.catalog)), 20)


def test_a_greeting_does_not_make_two_conversations_one():
    start = "USER: Hi\nSYSTEM: Hello\nUSER: a western\n"
    assert get_opening(start + "SYSTEM: Up?\nUSER: no\n") == get_opening(start) == start.strip()
    assert get_opening("SYSTEM: Hello there, who are you?\nUSER: me\nSYSTEM: ?\nUSER: x\n").endswith("USER: me")
    assert get_opening("USER: Hi\n") == "USER: Hi"
    assert get_opening("no speakers") == "no speakers"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just(10**400),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["title", "year", "role", "content"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(KEYS), json_values), st.booleans())
def test_no_json_makes_the_reader_fail(changes, dated):
    with contextlib.suppress(BadRecord):
        matcher = MATCHER if dated else UNDATED
        row = read_row(SOUND | changes, ItemReader(matcher, ItemIds(matcher.catalog)), 20)
        assert row.conversation.endswith("\n")
        assert all(title.strip() and (year != "") == dated for title, year in row.truth)


LINE_BREAKS_AND_NUL = "\0\r\x0b\x0c\x85\u2028\u2029"
contents = st.text(st.characters(codec="utf-8", exclude_characters=LINE_BREAKS_AND_NUL), min_size=1).filter(str.strip)


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), contents), max_size=4), contents)
def test_turns_are_written_in_order_with_their_speaker(turns, last):
    turns = [*turns, ("user", last)]
    text = conversation_text(read_turns([{"role": role, "content": content} for role, content in turns], Counter()))
    assert text == "".join(f"{SPEAKERS[role]}: {decode_marks(content).strip()}\n" for role, content in turns)
