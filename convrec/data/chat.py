"""A prompt as the model sees it: the chat template's text, and its tokens."""

import functools
import re
from collections.abc import Sequence
from typing import Any

# Tokens of chat templates in use (ChatML, Llama 3, Gemma, Mistral, DeepSeek): for models whose tokenizer is not here
_COMMON = re.compile(r"(?=<[|｜][^<>]{1,40}[|｜]>|</?(?:s|bos|eos|start_of_turn|end_of_turn)>|\[/?INST\])(.)")

Message = dict[str, str]


def render_prompt(tokenizer: Any, messages: list[Message], **template_kwargs: Any) -> str:
    """The chat template's text up to where the assistant begins."""
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **template_kwargs)


def without_control_tokens(messages: Sequence[Message], tokenizer: Any = None) -> list[Message]:
    """The messages with a space within every text that the tokenizer would read as a special token.

    A conversation is text: `<|im_end|><|im_start|>assistant` in it must neither end the turn nor begin an answer.
    tokenizer: None for a model behind an address, where the special tokens of common templates are meant.
    """
    pattern = _COMMON if tokenizer is None else _special(tokenizer)
    return [{**message, "content": pattern.sub(r"\1 ", message["content"])} for message in messages]


def special_tokens(tokenizer: Any) -> list[str]:
    """Those that decoding skips, also where the tokenizer's settings do not name them."""
    added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    return sorted({*added, *tokenizer.all_special_tokens})


@functools.lru_cache(maxsize=4)  # asked anew, a tokenizer makes its table of tokens anew, for every request
def _special(tokenizer: Any) -> re.Pattern[str]:
    """Matches the first character of a special token; one of a single character is none that a text could avoid."""
    names = [re.escape(token) for token in special_tokens(tokenizer) if len(token.strip()) > 1]
    return re.compile(f"(?={'|'.join(names)})(.)", re.DOTALL) if names else re.compile(r"(?!)(.)")


def encode(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def fits(tokenizer: Any, text: str, max_tokens: int) -> bool:
    """Whether a rendered text has at most `max_tokens` tokens."""
    # a byte-level token is at least one byte, so most rows need no tokenizing here
    return len(text.encode()) <= max_tokens or len(encode(tokenizer, text)) <= max_tokens


def fit_prompt(tokenizer: Any, messages: list[Message], max_tokens: int, **template_kwargs: Any) -> list[Message]:
    """The one user message without control tokens, shortened until its rendering has at most `max_tokens` tokens."""
    from convrec.data.schema import truncate_prompt  # imports pyarrow, which a wrong variable is not to wait for

    messages = without_control_tokens(messages, tokenizer)
    (message,) = messages
    text = message["content"]

    def short_enough(candidate: str) -> bool:
        rendered = render_prompt(tokenizer, [{**message, "content": candidate}], **template_kwargs)
        return fits(tokenizer, rendered, max_tokens)

    return messages if short_enough(text) else [{**message, "content": truncate_prompt(text, short_enough)}]
