"""Questions are repeated after malformed answers, and thinking is not part of an answer."""

import json

import pytest

from convrec.llm import LLM, Endpoint
from data_prep.stages.asking import Asker


def asker(server, folder):
    return Asker(LLM(Endpoint(server.url, "tiny"), folder), {}, folder, "test")


def prompts(names):
    return [[{"role": "user", "content": name}] for name in names]


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ("<think>Heat (1995)####2, or Up?</think>\nUp (2009)####1", "\nUp (2009)####1"),
        ("the template opened it</think>Up (2009)", "Up (2009)"),
        ("<think>a</think>b<think>c</think>d", "d"),
        ("<think>Heat (1995)\nUp (2009)", ""),
        ("Up (2009)", "Up (2009)"),
    ],
)
def test_thinking_is_cached_but_not_part_of_the_answer(chat_server, tmp_path, reply, text):
    server = chat_server(lambda body, count: reply)
    for _ in range(2):  # asked, then from the cache
        assert asker(server, tmp_path).ask(prompts("a"), lambda _, text: True, "", "test") == [[text]]
    (path,) = tmp_path.rglob("*.json")
    assert json.loads(path.read_text())["answer"]["text"] == reply


@pytest.mark.parametrize(("thinks", "text"), [(False, "A 4? <score>4</score> But"), (True, "")])
def test_an_answer_cut_off_in_a_judges_thinking_is_empty(chat_server, tmp_path, thinks, text):
    """If the server's template opened the thinking, the answer has no tag."""
    choice = {"message": {"content": "A 4? <score>4</score> But"}, "finish_reason": "length"}
    reply = {"choices": [choice], "usage": None}
    questioner = asker(chat_server(lambda body, count: (200, {}, json.dumps(reply))), tmp_path)
    assert questioner.ask(prompts("a"), lambda _, text: True, "", "test", thinks=thinks) == [[text]]


def test_thinking_is_neither_judged_nor_shown_again(chat_server, tmp_path):
    def behave(body, count):
        if len(body["messages"]) > 1:
            return "<think>now in form</think>good"
        return "<think>good, but there is no end" if body["messages"][0]["content"] == "a" else "<think>good</think>bad"

    server = chat_server(behave)
    questioner = asker(server, tmp_path)
    answers = questioner.ask(prompts("ab"), lambda _, text: text == "good", "Once more.", "test")
    assert answers == [["", "good"], ["bad", "good"]]
    assert (questioner.counts["malformed"], questioner.counts["malformed_again"]) == (2, 0)
    shown = {body["messages"][0]["content"]: body["messages"][1]["content"] for body in server.bodies[2:]}
    assert shown == {"a": "(no answer)", "b": "bad"}
