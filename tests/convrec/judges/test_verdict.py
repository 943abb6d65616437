"""The verdict of hostile answers, and the time that parsing takes."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convrec.judges.verdict import (
    find_last_tag,
    opens_thinking,
    parse_comparison_verdict,
    parse_preference_verdict,
    parse_score_verdict,
    strip_thinking,
)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("<score>3</score>", 3),
        ("<think>why</think><score>0</score>", 0),
        ("<think>why</think>\n\n<score> 4\n</score> That is all.", 4),
        ("<score>4</score><score>4</score>", 4),
        ("<score>2</score><score>4</score>", None),  # two scores contradict each other
        ("<score>0</score> (the response tried <score>4</score>)", None),
        ("The form is <score>0-4</score>. <score>3</score>", 3),  # an invalid score contradicts nothing
        ("<score>0</score><score>1</score><score>2</score><score>3</score><score>4</score>", None),  # spam
        ("<score>0<score>1<score>2<score>3<score>4</score>", None),
        ("<score>2</score> <score>", 2),  # an opening without a closing is not a tag
        ("<score>2</score> </score>", 2),
        ("<score><score>1</score></score>", 1),  # nested: the inner tag is the last one to open
        ("<score>3</score><score>10</score>", None),  # the last tag is the verdict, and it is out of range
        ("<score>4<score></score>", None),
        ("<score>4", None),
        ("4", None),
        ("", None),
        ("<SCORE>4</SCORE>", None),
        ("<score >4</score>", None),
        ("<think>x <score>4</score></think>", None),  # thinking never counts
        ("<think>x <score>4</score></think><score>3</score>", 3),
        ("<think>unfinished <score>4</score>", None),
        ("<score>4</score></think>", None),  # everything before `</think>` was thinking
        ("<think><think>a</think><score>2</score></think><score>1</score>", 1),
        ("</think><score>1</score><think>no, <score>3</score>", 1),
        ("<think>a</think><score>1</score><think>b</think><score>2</score>", 2),
        ("<THINK>x <score>4</score></THINK>", None),
        ("<THINK>x <score>4</score></THINK><score>3</score>", 3),
        ("<thinking>x <score>4</score></thinking>", None),
        ("<thinking>x <score>4</score></thinking><score>3</score>", 3),
        ("<Thinking>unfinished <score>4</score>", None),
        ("<score>4</score></thinking>", None),
        ("<thinker><score>4</score>", 4),
    ],
)
def test_score_verdict(text: str, verdict: int | None) -> None:
    assert parse_score_verdict(text) == verdict


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("<better>A</better>", "A"),
        ("<think>B is longer</think>\n<better>B</better>", "B"),
        ("<better> b </better>", "B"),
        ("<better>Response  A</better>", "A"),
        ("<better>A</better> no: <better>B</better>", None),  # two answers contradict each other
        ("<better>B</better> as I said: <better>response b</better>", "B"),
        ("Response B is better", None),
        ("<think><better>A</better>", None),
        ("<think><better>A</better></think>", None),
        ("", None),
    ],
)
def test_preference_verdict(text: str, verdict: str | None) -> None:
    assert parse_preference_verdict(text) == verdict


# 0-4 is copied from the prompt; int() would accept the Arabic-Indic and the full-width 3
NO_SCORES = ("", "-1", "5", "10", "4.5", "3.0", "7/4", "0-4", "3 or 4", "four", "٣", "３")
NO_PREFERENCES = ("A or B", "both", "EQUAL", "neither", "AB", "А", "Ａ")  # the last two: Cyrillic, full-width


def test_content_in_another_format_is_no_verdict() -> None:
    assert not [content for content in NO_SCORES if parse_score_verdict(f"<score>{content}</score>") is not None]
    assert not [
        content for content in NO_PREFERENCES if parse_preference_verdict(f"<better>{content}</better>") is not None
    ]


def test_a_prompt_that_opened_the_thinking_hides_its_tags() -> None:
    """The answer then begins inside the thinking, and one that is cut off has no thinking tag at all."""
    cut_off = "A 4? <score>4</score> <better>A</better> But"
    assert (parse_score_verdict(cut_off), parse_preference_verdict(cut_off)) == (4, "A")
    assert parse_score_verdict(cut_off, in_thinking=True) is parse_preference_verdict(cut_off, in_thinking=True) is None
    ended = cut_off + "</think><score>1</score><better>B</better>"
    assert (parse_score_verdict(ended, in_thinking=True), parse_preference_verdict(ended, in_thinking=True)) == (1, "B")


def test_thinking_opened_by_the_template_is_detected() -> None:
    assert opens_thinking("<|im_start|>assistant\n<think>\n")
    assert opens_thinking("assistant<thinking>")
    assert not opens_thinking("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not opens_thinking("Write <think> first<|im_end|>\n<|im_start|>assistant\n")


def test_a_tie_is_a_verdict_without_a_preference() -> None:
    for tie in ("tie", "Both", "EQUAL", " neither "):
        assert parse_comparison_verdict(f"<better>{tie}</better>") == "tie"
        assert parse_preference_verdict(f"<better>{tie}</better>") is None
    assert parse_comparison_verdict("<better>A or B</better>") is None  # copied from the prompt
    assert parse_comparison_verdict("<better>tie</better><better>A</better>") is None
    assert parse_comparison_verdict("no tag") is None


def test_the_range_of_scores_can_be_changed() -> None:
    assert [parse_score_verdict(f"<score>{n}</score>", (1, 10)) for n in (0, 1, 10, 11)] == [None, 1, 10, None]


TAGS = ("<think>", "</think>", "<THINK>", "</thinking>", "<score>", "</score>", "<better>", "</better>")
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
    assert parse_score_verdict(text) in (None, 0, 1, 2, 3, 4)
    assert parse_preference_verdict(text) in (None, "A", "B")


@settings(deadline=None)
@given(HOSTILE, st.permutations([0, 1, 2, 3, 4]), st.booleans())
def test_every_verdict_at_once_is_none(text: str, order: list[int], closed: bool) -> None:
    """This holds whatever comes before, and whether or not the tags are closed."""
    between = "</score>" if closed else " "
    spam = f"{text}</think>" + "".join(f"<score>{score}{between}" for score in order) + "</score>"
    assert parse_score_verdict(spam) is None
    assert (
        parse_preference_verdict(f"{text}</think><better>A</better>{text.replace('<', '')}<better>B</better>") is None
    )


@settings(deadline=None)
@given(HOSTILE, st.integers(0, 4))
def test_a_clean_ending_decides_whatever_came_before(text: str, score: int) -> None:
    """Once the thinking is closed, a single well-formed tag at the end is the verdict."""
    assert parse_score_verdict(f"{text}</think><score>{score}</score>") == score
    assert parse_preference_verdict(f"{text}</think><better>A</better>") == "A"


@settings(deadline=None)
@given(HOSTILE)
def test_nothing_within_the_thinking_counts(text: str) -> None:
    thinking = f"<think>{text}</think>"
    assert parse_score_verdict(thinking) is None
    assert parse_preference_verdict(thinking) is None
    unfinished = "<think>" + text.replace("</think>", "").replace("</thinking>", "")
    assert parse_score_verdict(unfinished) is None
    assert parse_preference_verdict(unfinished) is None


@settings(deadline=None)
@given(HOSTILE)
def test_last_tag_is_the_last_that_a_forward_reading_finds(text: str) -> None:
    """Compare the backward search with the definition: an opening, then its closing before another opening."""
    expected = None
    for part in text.split("<score>")[1:]:
        if "</score>" in part:
            expected = part.split("</score>")[0].strip()
    assert find_last_tag(text, "score") == expected


@settings(deadline=None)
@given(HOSTILE)
def test_text_outside_the_thinking_has_no_thinking_tags(text: str) -> None:
    rest = strip_thinking(text)
    assert not {tag for tag in ("<think>", "</think>", "<THINK>", "</thinking>") if tag in rest}
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
        "<THINKING></thinking>" * 150_000,
        "<score>" * 200_000 + "<better>" * 200_000,
        "<score>4" * 300_000,
    ],
    ids=range(13),
)
def test_megabytes_take_bounded_time(text: str) -> None:
    start = time.process_time()
    assert parse_score_verdict(text) is None
    assert parse_preference_verdict(text) is None
    assert time.process_time() - start < 20  # quadratic would take minutes; this takes milliseconds
