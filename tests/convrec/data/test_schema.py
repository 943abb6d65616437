"""The prompt template, its truncation, and groups of rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.data.schema import format_prompt, get_group_id, split_prompt, truncate_prompt
from convrec.features.candidates.prompts import CANDIDATES_LINE, count_candidates, with_candidates
from tests.user_errors import refuses

INSTRUCTION = format_prompt("")
CONVERSATION = "USER: I like Heat (1995).\nSYSTEM: What else?\nUSER: Old crime films please.\n"


def test_prompt_is_the_released_one():
    assert format_prompt("USER: hi\n") == (
        "Pretend you are a movie recommender system.\nI will give you a conversation between a user and you (a "
        "recommender system). Based on the conversation, you need to reply with 20 recommendations. List the "
        'standardized English title of each movie in each line in the form of "movie name" (release_year) with NO '
        "extra words or sentences.\nHere is the conversation: USER: hi\n"
    )
    assert "reply with 5 recommendations" in format_prompt("", num_items=5)


def test_split_prompt():
    assert split_prompt(format_prompt(CONVERSATION)) == (INSTRUCTION, CONVERSATION)
    assert split_prompt("no marker") == ("", "no marker")


def test_truncation_drops_old_turns_then_words_but_keeps_speaker():
    def cut(conversation_characters):
        limit = len(INSTRUCTION) + conversation_characters
        return truncate_prompt(format_prompt(CONVERSATION), lambda text: len(text) <= limit).removeprefix(INSTRUCTION)

    assert cut(len(CONVERSATION)) == CONVERSATION
    assert cut(len(CONVERSATION) - 1) == CONVERSATION.replace("I like", "like")
    last_two = "SYSTEM: What else?\nUSER: Old crime films please.\n"
    assert cut(len(last_two)) == last_two
    assert cut(len(last_two) - 1) == last_two.replace("What else?", "else?")
    last = "USER: Old crime films please.\n"
    assert cut(len(last)) == last
    assert cut(20) == "USER: films please.\n"
    assert cut(10) == "USER: se.\n"  # no whole word fits


def test_truncation_never_touches_the_instruction():
    with refuses("prompt.instruction-too-long", "MAX_PROMPT_LENGTH"):
        truncate_prompt(format_prompt(CONVERSATION), lambda text: len(text) < len(INSTRUCTION))


@given(
    conversation=st.lists(st.sampled_from(["a", "b ", "\n", ":", "é ", "USER: ", "SYSTEM: "]), max_size=40).map(
        "".join
    ),
    budget=st.integers(0, 90),
)
def test_truncated_prompts_fit_and_end_as_the_conversation_does(conversation, budget):
    text = format_prompt(conversation)
    truncated = truncate_prompt(text, lambda candidate: len(candidate) <= len(INSTRUCTION) + budget)
    assert len(truncated) <= len(INSTRUCTION) + budget
    assert truncated.startswith(INSTRUCTION)
    tail = truncated.removeprefix(INSTRUCTION)
    unlabelled = tail.removeprefix("USER: ").removeprefix("SYSTEM: ")
    assert conversation.endswith(tail) or conversation.endswith(unlabelled)


def test_truncation_tries_few_prompts():
    calls = []

    def fits(text):
        calls.append(text)
        return len(text) < 3000

    truncate_prompt(format_prompt("USER: " + "word " * 5000 + "\n" + "SYSTEM: yes\nUSER: no\n" * 500), fits)
    assert len(calls) < 40


def test_the_prompt_for_other_items():
    text = format_prompt("USER: hi\n", 5, item="anime series", dated=False)
    assert text == (
        "Pretend you are an anime series recommender system.\n"
        "I will give you a conversation between a user and you (a recommender system). Based on the conversation, "
        "you need to reply with 5 recommendations. List the standardized English title of each anime series in each "
        'line in the form of "anime series name" with NO extra words or sentences.\n'
        "Here is the conversation: USER: hi\n"
    )
    assert format_prompt("USER: hi\n", item="book").startswith("Pretend you are a book recommender system.\n")
    assert '"book name" (release_year)' in format_prompt("USER: hi\n", item="book")


def test_candidates_end_instruction_and_keep_conversation():
    prompt = format_prompt("USER: hello\n")
    assert with_candidates(prompt, []) == prompt
    extended = with_candidates(prompt, ["Heat (1995)", "Up (2009)"])
    instruction, marker, _ = prompt.partition("Here is the conversation: ")
    assert extended == f"{instruction}{CANDIDATES_LINE}Heat (1995)\nUp (2009)\n{marker}USER: hello\n"
    assert split_prompt(extended)[1] == "USER: hello\n"
    assert (count_candidates(prompt), count_candidates(extended)) == (0, 2)
    assert with_candidates(extended, ["Ran (1985)"]) == with_candidates(prompt, ["Ran (1985)"])
    cut = truncate_prompt(
        with_candidates(format_prompt("USER: one two\n"), ["Up (2009)"]), lambda text: "one" not in text
    )
    assert cut == with_candidates(format_prompt("USER: two\n"), ["Up (2009)"])  # candidates stay


def test_equal_texts_group_without_ids_despite_candidates():
    def row(name, text, *candidates):
        prompt = with_candidates(format_prompt(text), candidates)
        return {"prompt": [{"role": "user", "content": prompt}], "sample_id": name}

    assert get_group_id(row("a_t1", "x")) == get_group_id(row("a_t2.1", "y")) == get_group_id(row("A_t3", "z")) == "a"
    assert (
        get_group_id(row("u1", "USER: x\n"))
        == get_group_id(row("u2", "USER: x\n", "Up (2009)"))
        != get_group_id(row("u3", "y"))
    )


def test_white_space_and_case_do_not_change_the_group():
    def row(text):
        return {"prompt": [{"role": "user", "content": format_prompt(text)}], "sample_id": "u1"}

    group = get_group_id(row("USER: Something like Heat\n"))
    for text in ("USER: something  like HEAT\n", "USER: Something like\u00a0Heat \n\n", "USER: Ｓomething like Heat"):
        assert get_group_id(row(text)) == group
    assert get_group_id(row("USER: Something like Heat 2\n")) != group


@pytest.mark.parametrize("conversation", ["USER: " + "word " * 100_000, "USER: " + "x" * 100_000])
def test_truncation_tries_no_text_much_longer_than_the_result(conversation):
    text = format_prompt(conversation)
    lengths = []

    def fits(candidate):
        lengths.append(len(candidate))
        return len(candidate) < 3000

    truncated = truncate_prompt(text, fits)
    assert 2900 < len(truncated) < 3000
    assert max(length for length in lengths if length != len(text)) < 2 * 3000
