"""The token half of the rank grammar (docs/explanation/method.md 1): the line to which each token belongs.

The text half is `ranks.split_lines`. Both work on the same bytes: a line ends at the delimiter, whitespace is ASCII,
and rank k is the k-th line with a byte that is neither. One table per vocabulary has the effect of each token's bytes
on that count; at run time there are only table look-ups and running sums, and no decoding.

A token belongs to the line of its first non-blank byte. A token without one (blank, or a special token that decoding
skips) belongs to the line before it, -1 before the first. A token that spans lines belongs to the first of them.

Tokenizers with byte fallback (Llama-2's) decode a run of `<0x..>` tokens that is not UTF-8 as one U+FFFD per byte,
including newline bytes. So the runs of a response are checked, and a byte of an invalid run is text, not a delimiter.

Shapes: B sequences, T response tokens, V token ids. Ranks are 0-based, -1 means none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from convrec.base.errors import UserError
from convrec.lists.ranks import DEFAULT_DELIMITER, WHITESPACE, split_lines
from convrec.lists.token_bytes import describe_tokenizer, find_fallback_tokens, token_bytes

_SPACE = WHITESPACE.encode("ascii")

# The effect of a token's bytes is packed in one int16, so that there is one look-up per response token.
_CONTENT = 1  # the token has a non-blank byte
_LEAD_BIT = 1
_TRAIL_BIT = 2
_LEAD = 1 << _LEAD_BIT  # a delimiter comes before its first non-blank byte
_TRAIL = 1 << _TRAIL_BIT  # a delimiter comes after its last non-blank byte; for a blank token: it has a delimiter
_INNER_SHIFT = 3  # the other bits: how many more non-blank lines begin inside the token


@dataclass(frozen=True)
class VocabTable:
    """The effect of each token id; the last entry, without text, is for ids that the tokenizer lacks (padding).

    Attributes:
        codes_V: int16, see the constants above.
        newlines_V: int16, the delimiters in the token, which the reference counts.
        fallback_V: int16, only with byte fallback: the byte of a token, -1 for other text, -2 if decoding skips it.
    """

    codes_V: torch.Tensor
    newlines_V: torch.Tensor
    fallback_V: torch.Tensor | None = None

    def to(self, device: torch.device | str) -> VocabTable:
        """Return a copy on a device."""
        fallback_V = None if self.fallback_V is None else self.fallback_V.to(device)
        return VocabTable(self.codes_V.to(device), self.newlines_V.to(device), fallback_V)


def table_from_bytes(
    token_bytes: Sequence[bytes], delimiter: str = DEFAULT_DELIMITER, fallback: Mapping[int, int] | None = None
) -> VocabTable:
    """Make the table of a vocabulary.

    Args:
        token_bytes: the bytes of each token id; b"" for special tokens and for ids without a token.
        delimiter: one ASCII character.
        fallback: ids of byte-fallback tokens -> their bytes.

    Raises:
        UserError: the delimiter is not one ASCII character.
    """
    mark = _encode_delimiter(delimiter)
    codes = []
    newlines = []
    for text in (*token_bytes, b""):
        core = text.strip(_SPACE + mark)
        before, _, after = text.partition(core) if core else (b"", b"", text)
        lines = sum(map(bool, (line.strip(_SPACE) for line in core.split(mark)))) if mark in core else 1
        code = (_CONTENT if core else 0) | (lines - 1) << _INNER_SHIFT
        codes.append(code | (_LEAD if mark in before else 0) | (_TRAIL if mark in after else 0))
        newlines.append(text.count(mark))
    codes_V = torch.tensor(codes, dtype=torch.int16)
    newlines_V = torch.tensor(newlines, dtype=torch.int16)
    if not fallback:
        return VocabTable(codes_V, newlines_V)
    fallback_bytes = [fallback.get(token_id, -1 if text else -2) for token_id, text in enumerate(token_bytes)]
    return VocabTable(codes_V, newlines_V, torch.tensor([*fallback_bytes, -2], dtype=torch.int16))


def build_vocab_table(tokenizer: Any, delimiter: str = DEFAULT_DELIMITER) -> VocabTable:
    """Build the table of a Hugging Face fast tokenizer, byte-level or sentencepiece-style.

    Build it once: it decodes a few test lists.

    Args:
        tokenizer: the tokenizer that reads and writes the responses.
        delimiter: the character that ends a line; one ASCII character.

    Raises:
        UserError: the tokenizer is a slow one, its decoder is not supported, it cannot write the delimiter, or the
            table and the tokenizer's decoding count different lines in the test lists.
    """
    table = table_from_bytes(token_bytes(tokenizer), delimiter, find_fallback_tokens(tokenizer))
    _check_against_text(tokenizer, table, delimiter)
    return table


def stop_token_mask(
    responses_BT: torch.Tensor, response_mask_BT: torch.Tensor, eos_token_ids: Sequence[int]
) -> torch.Tensor:
    """Mark the token that ends each response.

    Args:
        responses_BT: token ids.
        response_mask_BT: 1 for the model's own tokens; others are ignored.
        eos_token_ids: ids that end a response.

    Returns:
        (B, T) bool, True at the first own token with one of these ids. A row without one was truncated.
    """
    last_B1, ends_B1 = _find_last_own_token(responses_BT, response_mask_BT.bool(), eos_token_ids)
    return (_columns(responses_BT) == last_B1) & ends_B1


def token_rank_ids(
    responses_BT: torch.Tensor, response_mask_BT: torch.Tensor, table: VocabTable, eos_token_ids: Sequence[int]
) -> torch.Tensor:
    """Compute the rank of every response token.

    Args:
        responses_BT: token ids.
        response_mask_BT: 1 for the model's own tokens. Others (padding, tool output) get -1 and are not text.
        table: the tokenizer's table, on the same device.
        eos_token_ids: everything after the first of these gets -1.

    Returns:
        (B, T) int64, 0-based, including ranks >= N (overflow). The end-of-sequence token has the last rank that was
        started, -1 in an empty list; `advantages.assign_units` decides whether it is a premature stop.
    """
    if not responses_BT.numel():
        return responses_BT.long()
    # flags are small integers: on a CPU, operations on booleans take up to ten times as long
    own_BT = response_mask_BT.bool()
    is_own_BT = own_BT.short()
    own_T = is_own_BT.amax(dim=0).nonzero()
    width = int(own_T[-1]) + 1 if len(own_T) else 0
    if width < responses_BT.shape[1]:  # columns of padding cost what text costs
        ranks_BT = token_rank_ids(responses_BT[:, :width], response_mask_BT[:, :width], table, eos_token_ids)
        return torch.nn.functional.pad(ranks_BT, (0, responses_BT.shape[1] - width), value=-1)
    last_B1, ends_B1 = _find_last_own_token(responses_BT, own_BT, eos_token_ids)
    live_BT = (last_B1.int() + 1 - _columns(responses_BT)).clamp_(0, 1).short().mul_(is_own_BT)
    text_BT = live_BT.scatter(1, last_B1, live_BT.gather(1, last_B1) * ~ends_B1)  # the stop token is not text
    codes_BT = _look_up(table.codes_V, responses_BT)
    if table.fallback_V is not None:
        fallback_BT = _look_up(table.fallback_V, responses_BT).masked_fill_(text_BT == 0, -2)
        codes_BT.masked_fill_(_is_invalid_utf8(fallback_BT), _CONTENT)
    codes_BT.mul_(text_BT)

    # A content token starts a line if it has a delimiter before its first non-blank byte, if there is a delimiter after
    # the last non-blank byte of the previous content token, or if there is no previous content token.
    before_BT = _find_preceding_codes(codes_BT)
    shift = torch.bitwise_right_shift  # `>>` copies first
    starts_BT = shift(codes_BT, _LEAD_BIT).bitwise_or_(shift(before_BT, _TRAIL_BIT))
    starts_BT.bitwise_and_(codes_BT).bitwise_and_(_CONTENT)
    inner_BT = shift(codes_BT, _INNER_SHIFT)
    started_BT = starts_BT.add_(inner_BT).cumsum(dim=1, dtype=torch.int32)  # int64 takes four times as long
    return started_BT.sub_(inner_BT).mul_(live_BT).sub_(1).long()


def _find_preceding_codes(codes_BT: torch.Tensor) -> torch.Tensor:
    """Return, for each token, the last nonzero code before it; _TRAIL at the beginning.

    The code of a blank token with a delimiter is _TRAIL, of any other blank token 0.
    """
    before_BT = torch.nn.functional.pad(codes_BT[:, :-1], (1, 0), value=_TRAIL)
    if (before_BT - (codes_BT & _CONTENT)).amin() < 0:  # text follows a token without a code
        # This is the index of the last token with a code, shifted by one column: 0 is the beginning.
        places_BT = torch.where(codes_BT != 0, _columns(codes_BT) + 1, 0).cummax(dim=1).values
        places_BT = torch.nn.functional.pad(places_BT[:, :-1], (1, 0))
        before_BT = torch.nn.functional.pad(codes_BT, (1, 0), value=_TRAIL).gather(1, places_BT.long())
    return before_BT


def reference_rank_ids(
    responses_BT: torch.Tensor, response_mask_BT: torch.Tensor, table: VocabTable, eos_token_ids: Sequence[int]
) -> torch.Tensor:
    """Count ranks as the public reference does, for `preset: reference`: the number of delimiters before a token.

    Blank lines and preambles have ranks here, so that ranks and parsed items can differ; `token_rank_ids` fixes that.
    For arguments see `token_rank_ids`.

    Returns:
        (B, T) int64, 0-based; -1 after the end-of-sequence token and for tokens that the model did not write.
    """
    last_B1, _ = _find_last_own_token(responses_BT, response_mask_BT.bool(), eos_token_ids)
    dead_BT = (response_mask_BT == 0) | (_columns(responses_BT) > last_B1)
    newlines_BT = _look_up(table.newlines_V, responses_BT).masked_fill_(dead_BT, 0)
    newlines_before_BT = newlines_BT.cumsum(dim=1, dtype=torch.int32).sub_(newlines_BT)
    return newlines_before_BT.masked_fill_(dead_BT, -1).long()


def _find_last_own_token(
    responses_BT: torch.Tensor, own_BT: torch.Tensor, eos_token_ids: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the first end-of-sequence token among the model's own tokens.

    Returns:
        (B, 1) its column, or the last column if there is none; and (B, 1) bool, whether there is one.
    """
    eos_BT = torch.zeros_like(responses_BT, dtype=torch.bool)
    for token_id in eos_token_ids:
        eos_BT |= responses_BT == token_id
    eos_BT &= own_BT
    width = eos_BT.shape[1]
    if width == 0:
        return eos_BT.new_zeros(eos_BT.shape[0], 1, dtype=torch.long), eos_BT.new_zeros(eos_BT.shape[0], 1)
    left_B1 = (eos_BT.int() * (width - _columns(eos_BT))).amax(dim=1, keepdim=True)  # columns from the first one on
    ends_B1 = left_B1 > 0
    return torch.where(ends_B1, width - left_B1, width - 1).long(), ends_B1


def _columns(values_BT: torch.Tensor) -> torch.Tensor:
    return torch.arange(values_BT.shape[1], device=values_BT.device, dtype=torch.int32)


def _look_up(values_V: torch.Tensor, responses_BT: torch.Tensor) -> torch.Tensor:
    unknown = values_V.shape[0] - 1
    ids = responses_BT.flatten().long()
    low, high = ids.aminmax() if len(ids) else (0, 0)
    if low < 0 or high > unknown:
        ids = ids.masked_fill((ids < 0) | (ids > unknown), unknown)
    return values_V.index_select(0, ids).view(responses_BT.shape)


def _is_invalid_utf8(fallback_BT: torch.Tensor) -> torch.Tensor:
    """Return whether each token is a byte-fallback token in a run that is not UTF-8, (B, T) bool.

    -2 marks tokens that decoding skips: sorting them to the end of the row makes the tokens around them adjacent.
    """
    order_BT = (fallback_BT == -2).int().argsort(dim=1, stable=True)
    byte_BT = fallback_BT.gather(1, order_BT)

    def shifted(x_BT: torch.Tensor, by: int, fill: int) -> torch.Tensor:
        """Return the values `by` places later, or earlier if `by` is negative."""
        padding = x_BT.new_full((x_BT.shape[0], min(abs(by), x_BT.shape[1])), fill)
        return torch.cat([x_BT[:, by:], padding] if by > 0 else [padding, x_BT[:, :by]], dim=1)

    def is_between(x_BT: torch.Tensor, low: int, high: int) -> torch.Tensor:
        return (x_BT >= low) & (x_BT <= high)

    # Unicode's table 3-7 says which second bytes may follow a first one.
    second_BT, third_BT, fourth_BT = (shifted(byte_BT, by, -1) for by in (1, 2, 3))
    second_low_BT = torch.where(byte_BT == 0xE0, 0xA0, torch.where(byte_BT == 0xF0, 0x90, 0x80))
    second_high_BT = torch.where(byte_BT == 0xED, 0x9F, torch.where(byte_BT == 0xF4, 0x8F, 0xBF))
    two_BT = (second_BT >= second_low_BT) & (second_BT <= second_high_BT)
    three_BT = two_BT & is_between(third_BT, 0x80, 0xBF)
    four_BT = three_BT & is_between(fourth_BT, 0x80, 0xBF)
    first_of_2_BT = is_between(byte_BT, 0xC2, 0xDF) & two_BT
    first_of_3_BT = is_between(byte_BT, 0xE0, 0xEF) & three_BT
    first_of_4_BT = is_between(byte_BT, 0xF0, 0xF4) & four_BT
    first_of_many_BT = first_of_2_BT | first_of_3_BT | first_of_4_BT
    follows_BT = shifted(first_of_many_BT, -1, 0) | shifted(first_of_3_BT | first_of_4_BT, -2, 0)
    follows_BT |= shifted(first_of_4_BT, -3, 0)
    is_byte_BT = byte_BT >= 0
    bad_BT = is_byte_BT & ~(is_between(byte_BT, 0, 0x7F) | first_of_many_BT | follows_BT)

    run_BT = (is_byte_BT & ~shifted(is_byte_BT, -1, 0)).cumsum(dim=1)
    bad_bytes_BR = run_BT.new_zeros(run_BT.shape[0], run_BT.shape[1] + 1).scatter_add_(1, run_BT, bad_BT.long())
    bad_run_BT = is_byte_BT & (bad_bytes_BR.gather(1, run_BT) > 0)
    return torch.zeros_like(bad_run_BT).scatter_(1, order_BT, bad_run_BT)


def _encode_delimiter(delimiter: str) -> bytes:
    if len(delimiter) != 1 or not delimiter.isascii():
        raise UserError("lists.delimiter", f"the delimiter must be one ASCII character, not {delimiter!r}.")
    return delimiter.encode("ascii")


# --- the self-check ---

_CHECK_LISTS = (
    "Heat (1995)|Up (2009)|Amélie (2001)",
    "Sure! Here you go:||1. (500) Days of Summer (2009) | |2. 千と千尋の神隠し (2001)||| Æon Flux 🎬 (2005) |",
    "| \t| Se7en (1995)|  8 Mile (2002)|!|?|a|b",
)


def _check_against_text(tokenizer: Any, table: VocabTable, delimiter: str) -> None:
    """Check that after every token the decoded text has as many lines as the tokens have started."""

    def decode(ids: Sequence[int]) -> str:
        return tokenizer.decode(ids, skip_special_tokens=True)

    for marked in _CHECK_LISTS:
        text = marked.replace("|", delimiter)
        ids = tokenizer.encode(text, add_special_tokens=False)
        decoded = decode(ids)
        if delimiter not in decoded:
            raise UserError(
                "lists.unwritable-delimiter",
                f"{describe_tokenizer(tokenizer)} cannot write the delimiter {delimiter!r}: it turns {text!r} into "
                f"{decoded!r}. Set another delimiter, or use another tokenizer.",
            )
        ids_T = torch.tensor([ids])
        codes_T = _look_up(table.codes_V, ids_T)
        ends = token_rank_ids(ids_T, torch.ones_like(ids_T), table, ()) + (codes_T >> _INNER_SHIFT) + 1
        for t, lines_started in enumerate(ends[0].tolist()):
            prefix = decode(ids[: t + 1])
            if table.fallback_V is not None and "\ufffd" in prefix:
                continue  # the prefix ends inside a character, so its run of bytes is U+FFFD until it is complete
            lines = len(split_lines(prefix, delimiter))
            if lines != lines_started:
                raise UserError(
                    "lists.line-mismatch",
                    f"{describe_tokenizer(tokenizer)}: its tokens and its text disagree on the number of lines in "
                    f"{prefix!r} ({lines_started} and {lines}), so the rank grammar does not support it. Use another "
                    "tokenizer.",
                )
