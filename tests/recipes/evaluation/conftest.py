"""Answers in vLLM's place, and folders that pass for a model."""

from collections.abc import Callable
from typing import Any

import pytest

from convrec.inference import answers
from tests.recipes.evaluation.small import generated

Asked = list[list[str]]


@pytest.fixture
def answer_with(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Asked]:
    """Has the model answer as `text_of(conversation, **what generate is given)` says, each answer a batch of its own;
    returns the conversations of each call. "" is the conversation of an instruction alone."""

    def start(text_of: Callable[..., str]) -> Asked:
        asked: Asked = []

        def generate(model: str, prompts: list[Any], *, on_batch: Any, **settings: Any) -> None:
            asked.append([prompt[0]["content"].partition("USER: ")[2].strip() for prompt in prompts])
            for index, conversation in enumerate(asked[-1]):
                on_batch(generated(text_of(conversation, model=model, **settings), first=index))

        monkeypatch.setattr(answers, "generate", generate)
        return asked

    return start


@pytest.fixture(autouse=True)
def any_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """`sound_model` writes no tokenizer that could be read."""
    monkeypatch.setattr("recipes.evaluation.setup.load_tokenizer", lambda *given, **named: None)
