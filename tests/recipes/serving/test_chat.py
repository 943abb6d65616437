"""Chat completions by vLLM's own classes, with whichever vLLM is there (`make test-next` has the newest): what its
request refuses, and answers of an engine. tests/e2e/test_serving.py asks by HTTP."""

import asyncio
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from recipes.serving.errors import Refused
from recipes.serving.model import ModelServer
from recipes.serving.schema import ModelSettings
from recipes.tiny_model import make_tiny_model


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"top_logprobs": 5}, "logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream"),
        ({"max_tokens": "many"}, "integer"),
    ],
)
def test_what_vllm_refuses_is_one_sentence_and_no_dump(line_tokenizer: Any, more: dict[str, Any], words: str) -> None:
    from recipes.serving.chat import ChatCompletions

    completions = ChatCompletions.__new__(ChatCompletions)
    completions.tokenizer = line_tokenizer
    with pytest.raises(Refused) as refused:
        asyncio.run(completions.answer({"messages": [{"role": "user", "content": "a film"}], **more}))
    assert refused.value.status == 400
    assert words in refused.value.message
    assert len(refused.value.message.splitlines()) == 1
    assert "pydantic" not in refused.value.message
    assert "ChatCompletionRequest" not in refused.value.message


def test_an_engine_answers_streams_and_refuses(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", ["a film about the sea\n"] * 40, vocab_size=400, max_positions=128)
    server = ModelServer(ModelSettings(name="films", path=str(model)), max_items=1)
    asked = {"model": "films", "messages": [{"role": "user", "content": "a film"}], "temperature": 0}
    asked |= {"max_tokens": 5, "ignore_eos": True}

    async def streamed() -> list[str]:
        return [event.removeprefix("data: ").strip() async for event in server.chat_stream(asked)]

    with closing(server.engine):
        whole = asyncio.run(server.chat(asked))
        *events, last = asyncio.run(streamed())
        with pytest.raises(Refused, match="cannot be greater than max_model_len=") as refused:
            asyncio.run(server.chat(asked | {"max_tokens": 500}))
    assert (whole["object"], whole["model"], whole["usage"]["completion_tokens"]) == ("chat.completion", "films", 5)
    parts = [json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events]
    assert ("".join(parts), last) == (whole["choices"][0]["message"]["content"], "[DONE]")
    assert (refused.value.status, len(refused.value.message.splitlines())) == (400, 1)
