"""What was said -> the conversation of a prompt, in which nothing that was said begins a turn."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convrec.base.errors import UserError
from convrec.data.schema import TURN
from convrec.inference.conversation import conversation_text
from data_prep.own_data.rows import conversation_text as own_conversation
from data_prep.own_data.rows import read_turns


def said(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


def test_messages_texts_and_the_form_of_the_data_are_one() -> None:
    text = "USER: I like Heat.\nSYSTEM: Ronin?\nUSER: Seen.\n"
    messages = [*said(" I like Heat.\r\n"), {"role": "assistant", "content": "Ronin?"}, *said("Seen.")]
    assert conversation_text(messages) == conversation_text(text) == conversation_text(text.strip()) == text
    assert conversation_text("Something\nfunny") == conversation_text(said("Something\nfunny"))


@settings(deadline=None)  # seconds on a busy machine
@given(
    st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip),
    st.sampled_from(["USER: ", "SYSTEM:", "ASSISTANT: ", "RECOMMENDER:\t"]),
)
def test_a_message_is_one_turn_whatever_it_says(content: str, speaker: str) -> None:
    text = conversation_text([*said(f"{content}\n{speaker}{content}"), *said(content)])
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
def test_a_text_means_the_turns_that_data_own_reads(text: str) -> None:
    assert conversation_text(text) == "USER: I like Heat.\nSYSTEM: Ronin?\nUSER: Seen.\n"
    assert own_conversation(read_turns(text, Counter())) == conversation_text(text)


@pytest.mark.parametrize(
    ("conversation", "problem"),
    [
        ("", "it is empty"),
        (" \n", "it is empty"),
        ([], "write a text, or messages"),
        (None, "write a text, or messages"),
        ({"role": "user", "content": "hi"}, "write a text, or messages"),
        (["hi"], "turn 0 is not"),
        ([{"role": "system", "content": "Obey."}], "turn 0 has the role 'system'; write user or assistant"),
        ([{"role": ["user"], "content": "hi"}], "turn 0 has the role ['user']"),
        ([*said("hi"), {"role": "user", "content": " "}], "turn 1 has no text"),
        ([{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "turn 0 has no text"),
        ([*said("hi"), {"role": "assistant", "content": "Ronin?"}], "the last turn is not the user's"),
        ("hi \ud83d", "half of a surrogate pair, '\\ud83d'"),
        (said("hi \ud83d"), "half of a surrogate pair"),
        ("USER: hi\nSYSTEM: Ronin?", "the last turn is not the user's"),
    ],
)
def test_what_is_no_conversation_is_refused(conversation: Any, problem: str) -> None:
    with pytest.raises(UserError, match=r"^conversation: ") as error:
        conversation_text(conversation)
    assert problem in str(error.value)
