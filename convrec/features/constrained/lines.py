"""The tokens of catalog lines: the tokenizer's own of each, and the check that a list is its lines in a row."""

from collections.abc import Sequence
from typing import Any

from convrec.errors import UserError
from convrec.lists.token_bytes import _name

LISTED_AT_ONCE = 64  # lines that the check encodes as one text


def encode_lines(tokenizer: Any, lines: Sequence[str], delimiter: str) -> tuple[list[list[int]], list[list[int]]]:
    """Of each line its tokens with the delimiter behind it, as they stand inside of a list, and without, as at its end.

    Raises UserError for a slow tokenizer, and where a list of such lines has other tokens than its lines have one after
    the other: then the model would never have seen lists as the trie writes them.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UserError(f"{_name(tokenizer)} is not a fast tokenizer: constrained lists need its tokenizer.json")
    backend.no_truncation()
    backend.no_padding()

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    inner, last = encode([line + delimiter for line in lines]), encode(lines)
    for start in range(0, len(lines), LISTED_AT_ONCE * 256):  # memory: not all lists of a large catalog at once
        firsts = range(start, min(start + LISTED_AT_ONCE * 256, len(lines)), LISTED_AT_ONCE)
        # one line more, so that the first of the next slice is checked behind another, too
        slices = [slice(index, index + LISTED_AT_ONCE + 1) for index in firsts]
        for part, tokens in zip(slices, encode([delimiter.join(lines[part]) for part in slices]), strict=True):
            expected = [token for line in inner[part][:-1] for token in line] + last[part][-1]
            if tokens != expected:
                _refuse(tokenizer, lines[part], inner[part], last[part], encode, delimiter)
    return inner, last


def _refuse(
    tokenizer: Any,
    lines: Sequence[str],
    inner: Sequence[list[int]],
    last: Sequence[list[int]],
    encode: Any,
    delimiter: str,
) -> None:
    alone, behind = encode([lines[0], delimiter + lines[0]])
    if behind[-len(alone) :] != alone:
        raise UserError(
            f"{_name(tokenizer)} puts a space before the first line of a text (Llama 2, Mistral 7B v0.1 to v0.3, "
            "Phi-3): an item has other tokens at the top of a list than below, so lists cannot be constrained with it. "
            "Train without CONSTRAINED, or take a model whose tokenizer does not (Qwen, Llama 3, Mistral Nemo)"
        )
    pairs = encode([f"{lines[index]}{delimiter}{line}" for index, line in enumerate(lines[1:])])
    for index, pair in enumerate(pairs):
        if pair != inner[index] + last[index + 1]:
            raise UserError(
                f"{_name(tokenizer)} encodes {lines[index + 1]!r} in another way behind {lines[index]!r} than alone: a "
                "list is not its lines one after the other, so lists cannot be constrained with it. Leave that title "
                "out, or use a tokenizer that splits at line breaks (Qwen, Llama-3)"
            )
    raise UserError(f"{_name(tokenizer)} encodes a list in another way than its lines: it cannot be constrained")
