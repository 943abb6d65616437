"""Channels of several people: each asker's conversation with the recommender, and what is left out as unclear."""

from collections import Counter
from pathlib import Path
from typing import Any

from data_prep.own_data.forms.base import Placed
from data_prep.own_data.forms.channels import (
    ANSWER_SECONDS,
    NOBODY_RECOMMENDS,
    PAUSE_SECONDS,
    UNCLEAR,
    Message,
    read_talk,
    split_channel,
)

HERE = Placed(Path("a.json"), 0, {})


def said(speaker: str, text: str, minute: float, **more: Any) -> Message:
    role = "assistant" if speaker == "bob" else "user"
    return Message(HERE, speaker, role, text, minute * 60, **more)


def split(*messages: Message) -> tuple[list[list[str]], Counter[str]]:
    left_out: Counter[str] = Counter()
    return [[message.text for message in talk] for talk in split_channel(messages, left_out)], left_out


def test_askers_by_turns_have_a_conversation_each() -> None:
    talks, left_out = split(
        said("ann", "a1", 0), said("bob", "b1", 1), said("cem", "c1", 2), said("bob", "b2", 3), said("ann", "a2", 4)
    )
    assert talks == [["a1", "b1", "a2"], ["c1", "b2"]]
    assert not left_out


def test_ambiguous_answer_is_dropped_with_both_questions() -> None:
    talks, left_out = split(
        said("ann", "a1", 0), said("bob", "b1", 1), said("ann", "a2", 2), said("cem", "c1", 3),
        said("bob", "b2", 4), said("bob", "b3", 5), said("cem", "c2", 6), said("bob", "b4", 7),
    )  # fmt: skip
    assert talks == [["a1", "b1"], ["c2", "b4"]]
    assert left_out == {UNCLEAR: 4}


def test_a_reply_or_a_mention_says_whom_an_answer_is_to() -> None:
    questions = said("ann", "a1", 0, name=1), said("cem", "c1", 1, name=2)
    for to_cem in ({"answers": 2}, {"mentions": frozenset({"cem"})}):
        talks, left_out = split(*questions, said("bob", "b1", 2, **to_cem), said("bob", "b2", 3))
        assert talks == [["a1", "b2"], ["c1", "b1"]]
        assert not left_out


def test_conversation_ends_at_a_pause_but_not_before_its_answer() -> None:
    pause = PAUSE_SECONDS / 60 + 1
    assert split(said("ann", "a1", 0), said("bob", "b1", 1), said("ann", "a2", 2 + pause))[0] == [["a1", "b1"], ["a2"]]
    assert split(said("ann", "a1", 0), said("bob", "b1", pause))[0] == [["a1", "b1"]]
    late = ANSWER_SECONDS / 60 + 1
    assert split(said("ann", "a1", 0), said("bob", "b1", late))[0] == [["a1"]]


def test_unanswered_question_does_not_make_later_answer_unclear() -> None:
    pause = PAUSE_SECONDS / 60 + 1
    assert split(said("ann", "a1", 0), said("cem", "c1", pause), said("bob", "b1", pause + 1))[0] == [
        ["a1"],
        ["c1", "b1"],
    ]


def test_greeting_and_second_answer_join_the_same_conversation() -> None:
    talks, _ = split(said("bob", "hello", 0), said("ann", "a1", 1), said("bob", "b1", 2), said("bob", "b2", 3))
    assert talks == [["hello", "a1", "b1", "b2"]]


def test_conversation_without_recommender_is_dropped_and_counted() -> None:
    left_out: Counter[str] = Counter()
    assert read_talk([said("ann", "a1", 0)], left_out)() is None
    assert left_out == {NOBODY_RECOMMENDS: 1}
    assert read_talk([said("ann", "a1", 0), said("bob", "b1", 1)], left_out)() is not None
