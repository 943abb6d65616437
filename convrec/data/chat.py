"""A prompt as the model sees it: the chat template's text, and its tokens."""

from typing import Any

Message = dict[str, str]


def render_prompt(tokenizer: Any, messages: list[Message], **template_kwargs: Any) -> str:
    """The chat template's text up to where the assistant begins."""
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **template_kwargs)


def encode(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def fits(tokenizer: Any, text: str, max_tokens: int) -> bool:
    """Whether a rendered text has at most `max_tokens` tokens."""
    # a byte-level token is at least one byte, so most rows need no tokenizing here
    return len(text.encode()) <= max_tokens or len(encode(tokenizer, text)) <= max_tokens
