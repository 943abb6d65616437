"""The verdict of hostile answers, and how long it takes."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convrec.judges.verdict import last_tag, outside_thinking, preference_verdict, score_verdict


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("<score>3</score>", 3),
        ("<think>why</think><score>0</score>", 0),
        ("<think>why</think>\n\n<score> 4\n</score> That is all.", 4),
        ("<score>2</score><score>4</score>", 4),  # the last one
        ("<score>2</score> <score>", 2),  # an opening alone is no tag
        ("<score>2</score> </score>", 2),
        ("<score><score>1</score></score>", 1),  # nested: the innermost is the last that opens
        ("<score>3</score><score>10</score>", None),  # the last tag is the verdict, and it is out of range
        ("<score>4<score></score>", None),
        ("<score>4", None),
        ("4", None),
        ("", None),
        ("<score></score>", None),
        ("<score>-1</score>", None),
        ("<score>5</score>", None),
        ("<score>10</score>", None),
        ("<score>4.5</score>", None),
        ("<score>3.0</score>", None),
        ("<score>7/4</score>", None),
        ("<score>0-4</score>", None),  # the format, copied
        ("<score>3 or 4</score>", None),
        ("<score>four</score>", None),
        ("<score>٣</score>", None),  # Arabic-Indic 3: int() would take it
        ("<score>３</score>", None),  # full-width 3
        ("<SCORE>4</SCORE>", None),
        ("<score >4</score>", None),
        ("<think>x <score>4</score></think>", None),  # thinking never counts
        ("<think>x <score>4</score></think><score>3</score>", 3),
        ("<think>unfinished <score>4</score>", None),
        ("<score>4</score></think>", None),  # what comes before `</think>` was thinking
        ("<think><think>a</think><score>2</score></think><score>1</score>", 1),
        ("</think><score>1</score><think>no, <score>3</score>", 1),
        ("<think>a</think><score>1</score><think>b</think><score>2</score>", 2),
    ],
)
def test_score_verdict(text: str, verdict: int | None) -> None:
    assert score_verdict(text) == verdict


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("<better>A</better>", "A"),
        ("<think>B is longer</think>\n<better>B</better>", "B"),
        ("<better> b </better>", "B"),
        ("<better>Response  A</better>", "A"),
        ("<better>A</better> no: <better>B</better>", "B"),
        ("<better>A or B</better>", None),
        ("<better>both</better>", None),  # holds a b
        ("<better>EQUAL</better>", None),  # holds an a
        ("<better>neither</better>", None),
        ("<better>AB</better>", None),
        ("<better>А</better>", None),  # Cyrillic
        ("<better>Ａ</better>", None),  # full-width
        ("Response B is better", None),
        ("<think><better>A</better>", None),
        ("<think><better>A</better></think>", None),
        ("", None),
    ],
)
def test_preference_verdict(text: str, verdict: str | None) -> None:
    assert preference_verdict(text) == verdict


TAGS = ("<think>", "</think>", "<score>", "</score>", "<better>", "</better>")
REST = (
    "0",
    "3",
    "4",
    "10",
    "-1",
    "4.5",
    "A",
    "B",
    " or ",
    "\n",
    "\x00",
    "\ud800",
    "评分",
    "٣",
    "<",
    "</",
    "<score",
    "🙂",
)
PIECES = st.sampled_from([*TAGS, *REST])
HOSTILE = st.lists(PIECES | st.text(max_size=8), max_size=40).map("".join)


@settings(deadline=None)
@given(HOSTILE)
def test_any_answer_has_a_verdict_in_range_or_none(text: str) -> None:
    assert score_verdict(text) in (None, 0, 1, 2, 3, 4)
    assert preference_verdict(text) in (None, "A", "B")


@settings(deadline=None)
@given(HOSTILE, st.integers(0, 4))
def test_a_clean_ending_decides_whatever_came_before(text: str, score: int) -> None:
    """Once the thinking is closed, one well-formed tag at the end is the verdict."""
    assert score_verdict(f"{text}</think><score>{score}</score>") == score
    assert preference_verdict(f"{text}</think><better>A</better>") == "A"


@settings(deadline=None)
@given(HOSTILE)
def test_nothing_said_while_thinking_counts(text: str) -> None:
    thinking = f"<think>{text}</think>"
    assert score_verdict(thinking) is None
    assert preference_verdict(thinking) is None
    unfinished = "<think>" + text.replace("</think>", "")
    assert score_verdict(unfinished) is None
    assert preference_verdict(unfinished) is None


@settings(deadline=None)
@given(HOSTILE)
def test_last_tag_is_the_last_that_a_forward_reading_finds(text: str) -> None:
    """The search from the end against the plain definition: an opening, then its closing before another opening."""
    found = None
    for part in text.split("<score>")[1:]:
        if "</score>" in part:
            found = part.split("</score>")[0].strip()
    assert last_tag(text, "score") == found


@settings(deadline=None)
@given(HOSTILE)
def test_what_is_outside_the_thinking_holds_no_thinking(text: str) -> None:
    rest = outside_thinking(text)
    assert "<think>" not in rest
    assert "</think>" not in rest
    assert rest in text


@pytest.mark.parametrize(
    "text",
    [
        "<score>" * 400_000,
        "</score>" * 400_000,
        "<score></score>" * 200_000 + "<score>" * 200_000,
        "<think>" * 400_000 + "<score>4",
        "<think></think>" * 200_000,
        "<score>" + "4" * 3_000_000 + "</score>",
        "<better>" + " " * 3_000_000 + "</better>",
        "<better>" + "A or B " * 400_000 + "</better>",
        "<" * 3_000_000,
        "\u0663" * 3_000_000,
    ],
    ids=range(10),
)
def test_megabytes_take_bounded_time(text: str) -> None:
    start = time.process_time()
    assert score_verdict(text) is None
    assert preference_verdict(text) is None
    assert time.process_time() - start < 1.0  # quadratic would take minutes; this takes milliseconds
