"""Conversations -> the tokens of a model's prompts, cut where they are too long."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from convrec.data.chat import without_control_tokens
from convrec.data.schema import truncate_prompt

Messages = list[dict[str, str]]


def prompt_id(prompt: Sequence[Mapping[str, str]]) -> str:
    """Stable name of a conversation: equal prompts have equal ids."""
    return hashlib.sha256(json.dumps([[m["role"], m["content"]] for m in prompt]).encode()).hexdigest()[:16]


def encode_prompts(
    tokenizer: Any, prompts: Sequence[Messages], limit: int, template_kwargs: Mapping[str, Any]
) -> tuple[list[list[int]], list[bool]]:
    """Token ids of each prompt, and whether its conversation had to be cut to fit `limit`. Control tokens in the text
    of a message stay text."""

    def ids(conversations: list[Messages]) -> list[list[int]]:
        encoded = tokenizer.apply_chat_template(
            conversations, add_generation_prompt=True, tokenize=True, return_dict=True, **template_kwargs
        )
        return [list(tokens) for tokens in encoded["input_ids"]]

    def cut(messages: Messages) -> list[int]:
        last = max(i for i, message in enumerate(messages) if message["role"] == "user")

        def with_text(text: str) -> list[int]:
            (tokens,) = ids([[*messages[:last], {"role": "user", "content": text}, *messages[last + 1 :]]])
            return tokens

        whole = messages[last]["content"]

        def fits(text: str) -> bool:
            return text != whole and len(with_text(text)) <= limit  # the whole text was encoded already

        return with_text(truncate_prompt(whole, fits))

    conversations = [without_control_tokens(messages, tokenizer) for messages in prompts]
    encoded = ids(conversations)  # in one call, which is faster than one at a time
    too_long = [len(tokens) > limit for tokens in encoded]
    encoded = [
        cut(messages) if cut_it else tokens
        for messages, tokens, cut_it in zip(conversations, encoded, too_long, strict=True)
    ]
    return encoded, too_long
