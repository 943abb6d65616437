"""Chat completions that vLLM's own request refuses; no engine is asked."""

import asyncio
from typing import Any

import pytest

from recipes.serving.errors import Refused


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
