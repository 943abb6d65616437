"""Channels of several people: each asker's conversation with the recommender, and ambiguous answers."""

from collections import Counter
from pathlib import Path
from typing import Any

from data_prep.own_data.forms.base import LocatedRecord
from data_prep.own_data.forms.channels import (
    AMBIGUOUS,
    ANSWER_SECONDS,
    NOBODY_RECOMMENDS,
    PAUSE_SECONDS,
    Message,
    make_talk_reader,
    split_channel,
)

HERE = LocatedRecord(Path("a.json"), 0, {})


def post(speaker: str, text: str, minute: float, **more: Any) -> Message:
    role = "assistant" if speaker == "bob" else "user"
    return Message(HERE, speaker, role, text, minute * 60, **more)


def split(*messages: Message) -> tuple[list[list[str]], Counter[str]]:
    left_out: Counter[str] = Counter()
    return [[message.text for message in talk] for talk in split_channel(messages, left_out)], left_out


def test_alternating_askers_have_a_conversation_each() -> None:
    talks, left_out = split(
        post("ann", "a1", 0),
        post("bob", "b1", 1),
        post("cem", "c1", 2),
        post("bob", "b2", 3),
        post("ann", "a2", 4),
    )
    assert talks == [["a1", "b1", "a2"], ["c1", "b2"]]
    assert not left_out


def test_ambiguous_answer_is_dropped_with_both_questions() -> None:
    talks, left_out = split(
        post("ann", "a1", 0), post("bob", "b1", 1), post("ann", "a2", 2), post("cem", "c1", 3),
        post("bob", "b2", 4), post("bob", "b3", 5), post("cem", "c2", 6), post("bob", "b4", 7),
    )  # fmt: skip
    assert talks == [["a1", "b1"], ["c2", "b4"]]
    assert left_out == {AMBIGUOUS: 4}


def test_a_reply_or_mention_decides_whom_an_answer_is_to() -> None:
    questions = post("ann", "a1", 0, name=1), post("cem", "c1", 1, name=2)
    for to_cem in ({"answers": 2}, {"mentions": frozenset({"cem"})}):
        talks, left_out = split(*questions, post("bob", "b1", 2, **to_cem), post("bob", "b2", 3))
        assert talks == [["a1", "b2"], ["c1", "b1"]]
        assert not left_out


def test_conversation_ends_at_a_pause_but_not_before_its_answer() -> None:
    pause = PAUSE_SECONDS / 60 + 1
    assert split(post("ann", "a1", 0), post("bob", "b1", 1), post("ann", "a2", 2 + pause))[0] == [["a1", "b1"], ["a2"]]
    assert split(post("ann", "a1", 0), post("bob", "b1", pause))[0] == [["a1", "b1"]]
    late = ANSWER_SECONDS / 60 + 1
    assert split(post("ann", "a1", 0), post("bob", "b1", late))[0] == [["a1"]]


def test_unanswered_question_does_not_make_later_answer_unclear() -> None:
    pause = PAUSE_SECONDS / 60 + 1
    assert split(post("ann", "a1", 0), post("cem", "c1", pause), post("bob", "b1", pause + 1))[0] == [
        ["a1"],
        ["c1", "b1"],
    ]


def test_greeting_and_second_answer_join_the_same_conversation() -> None:
    talks, _ = split(
        post("bob", "hello", 0),
        post("ann", "a1", 1),
        post("bob", "b1", 2),
        post("bob", "b2", 3),
    )
    assert talks == [["hello", "a1", "b1", "b2"]]


def test_conversation_without_recommender_is_dropped_and_counted() -> None:
    left_out: Counter[str] = Counter()
    assert make_talk_reader([post("ann", "a1", 0)], left_out)() is None
    assert left_out == {NOBODY_RECOMMENDS: 1}
    assert make_talk_reader([post("ann", "a1", 0), post("bob", "b1", 1)], left_out)() is not None
