"""Encodes conversations as prompts of a model, and cuts those that are too long."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from convrec.data.chat import split_control_tokens
from convrec.data.schema import truncate_prompt

Messages = list[dict[str, str]]


def prompt_id(prompt: Sequence[Mapping[str, str]]) -> str:
    """Return a stable id of a prompt: equal prompts have equal ids."""
    turns = [[message["role"], message["content"]] for message in prompt]
    return hashlib.sha256(json.dumps(turns).encode()).hexdigest()[:16]


def encode_prompts(
    tokenizer: Any, prompts: Sequence[Messages], limit: int, template_kwargs: Mapping[str, Any]
) -> tuple[list[list[int]], list[bool]]:
    """Encode prompts with the model's chat template. Control tokens in the text of a message stay text.

    Args:
        tokenizer: the model's tokenizer.
        prompts: the messages of each prompt.
        limit: maximum number of tokens of a prompt.
        template_kwargs: arguments of the chat template.

    Returns:
        The token ids of each prompt, and whether its conversation was cut.
    """

    def encode(conversations: list[Messages]) -> list[list[int]]:
        encoded = tokenizer.apply_chat_template(
            conversations, add_generation_prompt=True, tokenize=True, return_dict=True, **template_kwargs
        )
        return [list(tokens) for tokens in encoded["input_ids"]]

    def cut(messages: Messages) -> list[int]:
        last = max(i for i, message in enumerate(messages) if message["role"] == "user")

        def encode_text(text: str) -> list[int]:
            (tokens,) = encode([[*messages[:last], {"role": "user", "content": text}, *messages[last + 1 :]]])
            return tokens

        whole = messages[last]["content"]

        def fits(text: str) -> bool:
            return text != whole and len(encode_text(text)) <= limit  # the whole text is known to be too long

        return encode_text(truncate_prompt(whole, fits))

    conversations = [split_control_tokens(messages, tokenizer) for messages in prompts]
    encoded = encode(conversations)  # one call is faster than one for each prompt
    too_long = [len(tokens) > limit for tokens in encoded]
    encoded = [
        cut(messages) if is_too_long else tokens
        for messages, tokens, is_too_long in zip(conversations, encoded, too_long, strict=True)
    ]
    return encoded, too_long
