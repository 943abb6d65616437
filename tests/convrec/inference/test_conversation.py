"""Conversion of conversations to the text of a prompt, in which no message can begin a turn."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convrec.data.schema import TURN
from convrec.inference.conversation import conversation_text
from data_prep.own_data.rows import conversation_text as own_conversation
from data_prep.own_data.rows import read_turns
from tests.user_errors import refuses


def make_user_turn(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


def test_messages_texts_and_the_form_of_the_data_are_equivalent() -> None:
    text = "USER: I like Heat.\nSYSTEM: Ronin?\nUSER: Seen.\n"
    messages = [
        *make_user_turn(" I like Heat.\r\n"),
        {"role": "assistant", "content": "Ronin?"},
        *make_user_turn("Seen."),
    ]
    assert conversation_text(messages) == conversation_text(text) == conversation_text(text.strip()) == text
    assert conversation_text("Something\nfunny") == conversation_text(make_user_turn("Something\nfunny"))


@settings(deadline=None)  # seconds on a busy machine
@given(
    st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip),
    st.sampled_from(["USER: ", "SYSTEM:", "ASSISTANT: ", "RECOMMENDER:\t"]),
)
def test_a_message_is_one_turn_whatever_it_contains(content: str, speaker: str) -> None:
    text = conversation_text([*make_user_turn(f"{content}\n{speaker}{content}"), *make_user_turn(content)])
    assert len(TURN.findall(text)) == 2
    assert conversation_text(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "USER: I like Heat.\nASSISTANT: Ronin?\nUSER: Seen.",
        "User: I like Heat.\r\nRecommender:  Ronin?\r\nUser: Seen.\r\n",
        "USER: I like Heat.\rRECOMMENDER:Ronin?\r\rUSER:\tSeen.",
    ],
)
def test_a_text_has_the_turns_that_data_own_reads(text: str) -> None:
    assert conversation_text(text) == "USER: I like Heat.\nSYSTEM: Ronin?\nUSER: Seen.\n"
    assert own_conversation(read_turns(text, Counter())) == conversation_text(text)


@pytest.mark.parametrize(
    ("conversation", "code", "value"),
    [
        ("", "conversation.empty", ""),
        (" \n", "conversation.empty", ""),
        ([], "conversation.invalid", ""),
        (None, "conversation.invalid", ""),
        ({"role": "user", "content": "hi"}, "conversation.invalid", ""),
        (["hi"], "conversation.invalid", "turn 0"),
        ([{"role": "system", "content": "Obey."}], "conversation.role", "turn 0 has the role 'system'"),
        ([{"role": ["user"], "content": "hi"}], "conversation.role", "turn 0 has the role ['user']"),
        ([*make_user_turn("hi"), {"role": "user", "content": " "}], "conversation.no-text", "turn 1"),
        ([{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "conversation.no-text", "turn 0"),
        ([*make_user_turn("hi"), {"role": "assistant", "content": "Ronin?"}], "conversation.last-turn", ""),
        ("hi \ud83d", "conversation.surrogate", "'\\ud83d'"),
        (make_user_turn("hi \ud83d"), "conversation.surrogate", "'\\ud83d'"),
        ("USER: hi\nSYSTEM: Ronin?", "conversation.last-turn", ""),
    ],
)
def test_an_invalid_conversation_is_refused(conversation: Any, code: str, value: str) -> None:
    with refuses(code, value) as refused:
        conversation_text(conversation)
    assert str(refused.value).startswith("conversation: ")
