"""Encodes catalog lines, and checks that a list's tokens are those of its lines, concatenated."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from convrec.base.errors import UserError
from convrec.lists.token_bytes import describe_tokenizer

LINES_PER_CHECK = 64  # lines that the check encodes as one text
LINES_PER_CALL = 1 << 16  # memory: the tokenizer's own record of a line is many times as large as its ids
Tokens = list[list[int]]
Encode = Callable[[Sequence[str]], Tokens]


@dataclass(frozen=True)
class LineTokens:
    """The tokens of lines by their position in a list, without the end of the sequence.

    A sentencepiece tokenizer with a dummy prefix (Llama 2, Mistral 7B v0.1 to v0.3, Phi-3) puts a space before a text,
    so that an item has different tokens at the top of a list than below it. For all other tokenizers, `first` and
    `only` are None, since they equal `inner` and `last`.

    Attributes:
        inner: each line with the delimiter after it, below the first line.
        last: each line at the end of a list.
        first: each line with the delimiter after it, at the top of a list.
        only: each line as a whole list.
    """

    inner: Tokens
    last: Tokens
    first: Tokens | None = None
    only: Tokens | None = None

    @property
    def forms(self) -> list[Tokens]:
        """Inner and last, then first and only if they differ."""
        return [form for form in (self.inner, self.last, self.first, self.only) if form is not None]

    @property
    def whole_texts(self) -> Tokens:
        """The tokens of each line as a separate text."""
        return self.last if self.only is None else self.only

    def select(self, indices: Sequence[int]) -> "LineTokens":
        """Return the lines with these indices."""
        return LineTokens(*([form[index] for index in indices] for form in self.forms))


def encode_lines(tokenizer: Any, lines: Sequence[str], delimiter: str) -> LineTokens:
    """Encode each line in every position that it can have in a list.

    Args:
        tokenizer: the policy's fast tokenizer; its truncation and padding are turned off.
        lines: the lines, without delimiters.
        delimiter: what is between two lines.

    Raises:
        UserError: the tokenizer is a slow one, or a list's tokens differ from those of its lines, concatenated: the
            model would then never have seen lists as the trie writes them.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UserError(
            "constraint.slow-tokenizer",
            f"{describe_tokenizer(tokenizer)} is not a fast tokenizer. Constrained lists need one with a "
            "tokenizer.json.",
        )
    backend.no_truncation()
    backend.no_padding()

    def encode(texts: Sequence[str]) -> Tokens:
        ids: Tokens = []
        for start in range(0, len(texts), LINES_PER_CALL):
            encodings = backend.encode_batch_fast(texts[start : start + LINES_PER_CALL], add_special_tokens=False)
            ids += [encoding.ids for encoding in encodings]
        return ids

    inner = encode([line + delimiter for line in lines])
    last = encode(lines)
    tokens = LineTokens(inner, last)
    if lines and _has_dummy_prefix(encode, lines[0], delimiter):
        tokens = LineTokens(
            inner=_encode_below(tokenizer, encode, [line + delimiter for line in lines], delimiter),
            last=_encode_below(tokenizer, encode, lines, delimiter),
            first=inner,
            only=last,
        )
    _check_lists(tokenizer, encode, lines, tokens, delimiter)
    return tokens


def _has_dummy_prefix(encode: Encode, line: str, delimiter: str) -> bool:
    """Return whether a line has different tokens at the beginning of a text than after a delimiter."""
    alone, below = encode([line, delimiter + line])
    return below[-len(alone) :] != alone


def _encode_below(tokenizer: Any, encode: Encode, texts: Sequence[str], delimiter: str) -> Tokens:
    """Encode texts as they are after a delimiter."""
    (before,) = encode([delimiter])
    encoded = encode([delimiter + text for text in texts])
    for text, tokens in zip(texts, encoded, strict=True):
        if tokens[: len(before)] != before:
            _refuse_merged(tokenizer, text.removesuffix(delimiter), delimiter)
    return [tokens[len(before) :] for tokens in encoded]


def _check_lists(tokenizer: Any, encode: Encode, lines: Sequence[str], tokens: LineTokens, delimiter: str) -> None:
    """Check that lists of these lines, encoded as texts, have the lines' tokens, concatenated."""
    top = tokens.inner if tokens.first is None else tokens.first
    for start in range(0, len(lines), LINES_PER_CHECK * 256):  # memory: not all lists of a large catalog at once
        firsts = range(start, min(start + LINES_PER_CHECK * 256, len(lines)), LINES_PER_CHECK)
        # A slice has one more line, so that the first line of the next slice is also checked after another.
        slices = [slice(index, index + LINES_PER_CHECK + 1) for index in firsts]
        for part, written in zip(slices, encode([delimiter.join(lines[part]) for part in slices]), strict=True):
            if len(lines[part]) == 1:
                expected = tokens.whole_texts[part.start]
            else:
                rows = [top[part.start], *tokens.inner[part][1:-1], tokens.last[part][-1]]
                expected = [token for row in rows for token in row]
            if written != expected:
                _refuse(tokenizer, encode, lines[part], tokens.select(range(len(lines))[part]), delimiter)


def _refuse(tokenizer: Any, encode: Encode, lines: Sequence[str], tokens: LineTokens, delimiter: str) -> None:
    """Raise a UserError that names the line with different tokens in a list."""
    top = tokens.inner if tokens.first is None else tokens.first
    pairs = encode([f"{lines[index]}{delimiter}{line}" for index, line in enumerate(lines[1:])])
    for index, pair in enumerate(pairs):
        if pair != top[index] + tokens.last[index + 1]:
            _refuse_merged(tokenizer, lines[index + 1], lines[index])
    raise UserError(
        "constraint.merged-lines",
        f"{describe_tokenizer(tokenizer)} encodes a list differently from its lines, so it cannot constrain lists. Use "
        "a tokenizer that splits at line breaks (Qwen, Llama-3).",
    )


def _refuse_merged(tokenizer: Any, line: str, before: str) -> None:
    raise UserError(
        "constraint.merged-lines",
        f"{describe_tokenizer(tokenizer)} encodes {line!r} differently after {before!r} than alone, so it cannot "
        "constrain lists with this title. Remove the title, or use a tokenizer that splits at line breaks (Qwen, "
        "Llama-3).",
    )
