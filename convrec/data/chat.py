"""Render prompts as the model sees them: the chat template's text and its tokens."""

import functools
import re
from collections.abc import Sequence
from typing import Any

# Special tokens of common chat templates (ChatML, Llama 3, Gemma, Mistral, DeepSeek), for models without a local
# tokenizer.
_COMMON = re.compile(r"(?=<[|｜][^<>]{1,40}[|｜]>|</?(?:s|bos|eos|start_of_turn|end_of_turn)>|\[/?INST\])(.)")

Message = dict[str, str]


def render_prompt(tokenizer: Any, messages: list[Message], **template_kwargs: Any) -> str:
    """Render messages with the chat template, up to where the assistant's turn begins.

    Args:
        tokenizer: the model's, with its chat template.
        messages: roles and contents.
        template_kwargs: the template's arguments.
    """
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **template_kwargs)


def split_control_tokens(messages: Sequence[Message], tokenizer: Any = None) -> list[Message]:
    """Break up special tokens in messages by inserting a space into each.

    A conversation is plain text: `<|im_end|><|im_start|>assistant` in it must neither end the turn nor start an answer.

    Args:
        messages: roles and contents.
        tokenizer: the model's; None for a model at an endpoint: then the special tokens of common templates count.
    """
    pattern = _COMMON if tokenizer is None else _compile_special_pattern(tokenizer)
    return [{**message, "content": pattern.sub(r"\1 ", message["content"])} for message in messages]


def special_tokens(tokenizer: Any) -> list[str]:
    """Return the special tokens, including those that the tokenizer's settings do not name."""
    added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    return sorted({*added, *tokenizer.all_special_tokens})


@functools.lru_cache(maxsize=4)  # a tokenizer rebuilds its table of tokens at every call
def _compile_special_pattern(tokenizer: Any) -> re.Pattern[str]:
    """Return a pattern for the first character of each special token that has at least two characters."""
    names = [re.escape(token) for token in special_tokens(tokenizer) if len(token.strip()) > 1]
    return re.compile(f"(?={'|'.join(names)})(.)", re.DOTALL) if names else re.compile(r"(?!)(.)")


def encode(tokenizer: Any, text: str) -> list[int]:
    """Return a text's token ids, without adding special tokens."""
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def fits(tokenizer: Any, text: str, max_tokens: int) -> bool:
    """Return whether a rendered text has at most `max_tokens` tokens."""
    # A token has at least one byte, so most texts need not be tokenized here.
    return len(text.encode()) <= max_tokens or len(encode(tokenizer, text)) <= max_tokens


def fit_prompt(tokenizer: Any, messages: list[Message], max_tokens: int, **template_kwargs: Any) -> list[Message]:
    """Break up special tokens in a prompt and shorten it until its rendering has at most `max_tokens` tokens.

    Args:
        tokenizer: the model's, with its chat template.
        messages: one user message.
        max_tokens: the most tokens of the rendered prompt.
        template_kwargs: the template's arguments.

    Returns:
        A new message; `messages` stays unchanged.

    Raises:
        UserError: the instruction alone is too long.
    """
    from convrec.data.schema import truncate_prompt  # imports pyarrow, for which the settings check need not wait

    messages = split_control_tokens(messages, tokenizer)
    (message,) = messages
    text = message["content"]

    def is_short_enough(candidate: str) -> bool:
        rendered = render_prompt(tokenizer, [{**message, "content": candidate}], **template_kwargs)
        return fits(tokenizer, rendered, max_tokens)

    return messages if is_short_enough(text) else [{**message, "content": truncate_prompt(text, is_short_enough)}]
