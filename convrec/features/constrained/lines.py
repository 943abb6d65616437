"""The tokens of catalog lines: the tokenizer's own of each, and the check that a list is its lines in a row."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from convrec.base.errors import UserError
from convrec.lists.token_bytes import _name

LISTED_AT_ONCE = 64  # lines that the check encodes as one text
Tokens = list[list[int]]
Encode = Callable[[Sequence[str]], Tokens]


@dataclass(frozen=True)
class LineTokens:
    """The tokens of lines, by where in a list a line stands. Without the end of the sequence.

    A sentencepiece tokenizer with a dummy prefix (Llama 2, Mistral 7B v0.1 to v0.3, Phi-3) puts a space before a text,
    so that an item has other tokens at the top of a list than below it. Of all other tokenizers `first` and `only` are
    None: there they are `inner` and `last`.

    Attributes:
        inner: of each line with the delimiter after it, below the first line.
        last: of each line at the end of a list.
        first: of each line with the delimiter after it, at the top of a list.
        only: of each line that is a whole list.
    """

    inner: Tokens
    last: Tokens
    first: Tokens | None = None
    only: Tokens | None = None

    @property
    def forms(self) -> list[Tokens]:
        """Inner and last, then first and only where they differ."""
        return [form for form in (self.inner, self.last, self.first, self.only) if form is not None]

    @property
    def whole_texts(self) -> Tokens:
        """The tokens of each line as a text of its own."""
        return self.last if self.only is None else self.only

    def select(self, indices: Sequence[int]) -> "LineTokens":
        """Return the lines with these indices."""
        return LineTokens(*([form[index] for index in indices] for form in self.forms))


def encode_lines(tokenizer: Any, lines: Sequence[str], delimiter: str) -> LineTokens:
    """Encode each line in every place that it can have in a list.

    Raises:
        UserError: the tokenizer is a slow one, or a list of such lines has other tokens than its lines have one after
            the other: then the model would never have seen lists as the trie writes them.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UserError(f"{_name(tokenizer)} is not a fast tokenizer: constrained lists need its tokenizer.json")
    backend.no_truncation()
    backend.no_padding()

    def encode(texts: Sequence[str]) -> Tokens:
        return [encoding.ids for encoding in backend.encode_batch_fast(list(texts), add_special_tokens=False)]

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
    """Whether a line has other tokens at the beginning of a text than after a delimiter."""
    alone, below = encode([line, delimiter + line])
    return below[-len(alone) :] != alone


def _encode_below(tokenizer: Any, encode: Encode, texts: Sequence[str], delimiter: str) -> Tokens:
    """Encode texts as they stand after a delimiter."""
    (before,) = encode([delimiter])
    encoded = encode([delimiter + text for text in texts])
    for text, tokens in zip(texts, encoded, strict=True):
        if tokens[: len(before)] != before:
            _refuse_joined(tokenizer, text.removesuffix(delimiter), delimiter)
    return [tokens[len(before) :] for tokens in encoded]


def _check_lists(tokenizer: Any, encode: Encode, lines: Sequence[str], tokens: LineTokens, delimiter: str) -> None:
    """Compare lists of these lines, encoded as texts, with the lines' tokens in a row."""
    top = tokens.inner if tokens.first is None else tokens.first
    for start in range(0, len(lines), LISTED_AT_ONCE * 256):  # memory: not all lists of a large catalog at once
        firsts = range(start, min(start + LISTED_AT_ONCE * 256, len(lines)), LISTED_AT_ONCE)
        # one line more, so that the first of the next slice is checked behind another, too
        slices = [slice(index, index + LISTED_AT_ONCE + 1) for index in firsts]
        for part, written in zip(slices, encode([delimiter.join(lines[part]) for part in slices]), strict=True):
            if len(lines[part]) == 1:
                expected = tokens.whole_texts[part.start]
            else:
                rows = [top[part.start], *tokens.inner[part][1:-1], tokens.last[part][-1]]
                expected = [token for row in rows for token in row]
            if written != expected:
                _refuse(tokenizer, encode, lines[part], tokens.select(range(len(lines))[part]), delimiter)


def _refuse(tokenizer: Any, encode: Encode, lines: Sequence[str], tokens: LineTokens, delimiter: str) -> None:
    """Raise UserError that names the line which a list encodes in another way."""
    top = tokens.inner if tokens.first is None else tokens.first
    pairs = encode([f"{lines[index]}{delimiter}{line}" for index, line in enumerate(lines[1:])])
    for index, pair in enumerate(pairs):
        if pair != top[index] + tokens.last[index + 1]:
            _refuse_joined(tokenizer, lines[index + 1], lines[index])
    raise UserError(f"{_name(tokenizer)} encodes a list in another way than its lines: it cannot be constrained")


def _refuse_joined(tokenizer: Any, line: str, before: str) -> None:
    raise UserError(
        f"{_name(tokenizer)} encodes {line!r} differently after {before!r} than alone: a list is not its lines one "
        "after the other, so lists cannot be constrained with it. Leave that title out, or use a tokenizer that splits "
        "at line breaks (Qwen, Llama-3)"
    )
