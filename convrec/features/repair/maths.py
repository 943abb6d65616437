"""Repair of a list without a hit: one line becomes a relevant title (docs/explanation/method.md 3, Repair)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any, NamedTuple

import torch

from convrec.lists.ranks import WHITESPACE, replace_line, split_lines
from convrec.lists.settings import ListSettings
from convrec.lists.token_bytes import token_bytes
from convrec.lists.token_ranks import VocabTable, build_vocab_table, token_rank_ids
from convrec.titles.item import format_item
from convrec.titles.matching import Matcher

# A response follows nothing, or the line break that ends a chat template. A sentencepiece tokenizer writes the first
# word as `▁Heat` in the first case and as `Heat` in the second.
_CONTEXTS = ("", "\n")
_BLANKS = WHITESPACE.encode("ascii")


class RepairedList(NamedTuple):
    """A list in which one line was replaced.

    Attributes:
        token_ids: of the whole response.
        rank: of the new line, from 0.
        num_kept: how many tokens at the beginning are unchanged.
    """

    token_ids: list[int]
    rank: int
    num_kept: int


@dataclass(frozen=True)
class ListRepair:
    """Puts a relevant title into a list.

    Attributes:
        tokenizer: the policy's tokenizer.
        matcher: matches lines with the catalog.
        lists: the grammar of lists.
        ranks: the title goes to one of the first `ranks` ranks.
        most_tokens: maximum length of a response.
        find_row: returns the catalog row whose line writes an item, given as its first row; None for an item that no
            list may contain.
    """

    tokenizer: Any
    matcher: Matcher
    lists: ListSettings
    ranks: int
    most_tokens: int
    find_row: Callable[[int], int | None]

    @cached_property
    def table(self) -> VocabTable:
        return build_vocab_table(self.tokenizer, self.lists.delimiter)

    @cached_property
    def token_texts(self) -> list[bytes]:
        """The bytes that each token adds to the text; empty for special tokens."""
        return token_bytes(self.tokenizer)

    def repair_list(
        self, ids: Sequence[int], truth: Sequence[tuple[str, object]], seen: Sequence[str], random: Random
    ) -> RepairedList | None:
        """Replace a random line by a random relevant title that the list lacks.

        The new line gets the tokens that the tokenizer writes at its place in the list. All other lines keep theirs,
        except for blanks before the new line, which may become part of its first token.

        Args:
            ids: tokens of the response.
            truth: the relevant titles with their years.
            seen: titles that the conversation names.
            random: draws the rank, then the title.

        Returns:
            None if no title can be put in: the list was cut off or is empty, every relevant title is missing from the
            catalog or named in the conversation, or the new line does not fit in the token limit or would change the
            tokens of other lines.
        """
        lines = self._lines(ids)
        if not lines or len(ids) >= self.most_tokens:
            return None
        rank = random.randrange(min(self.ranks, len(lines)))
        listed = self.matcher.match_lines(lines, (), None).catalog_index
        rows = [item.index for item in self.matcher.truths(truth)]
        relevant = [row for row in rows if row >= 0 and row not in listed]
        for item in random.sample(relevant, len(relevant)):
            if (row := self.find_row(item)) is None:
                continue
            line = format_item(self.matcher.catalog.titles[row], self.matcher.catalog.years[row])  # type: ignore[arg-type]
            changed = [*lines[:rank], line, *lines[rank + 1 :]]
            is_hit = self.matcher.match_lines(changed[: self.lists.num_items], truth, seen).relevance[rank]
            repaired = self._put_line([*ids], rank, line)
            if is_hit and repaired and self._lines(repaired.token_ids) == changed:
                return repaired
        return None

    def _put_line(self, ids: list[int], rank: int, line: str) -> RepairedList | None:
        """Replace the tokens of a rank by those of a line; None if other lines would need different tokens."""
        ranks = self._ranks(ids)
        if rank not in ranks:  # a single token spans the whole line and part of another
            return None
        start = ranks.index(rank)
        text = self._text(ids)
        new_text = replace_line(text, rank, line, self.lists.delimiter)
        context = self._find_context(ids, text)
        encoded = self._encode(new_text, context)
        num_tokens = len(ids)
        while not self._text_of_token(ids[num_tokens - 1]):
            num_tokens -= 1
        ending = ids[num_tokens:]  # the end of the sequence
        if self._encode(text, context) == ids[:num_tokens]:
            repaired = self._exchange(ids[:num_tokens], encoded, rank)
        else:
            repaired = self._splice(ids[:num_tokens], encoded, rank, new_text)
        if repaired is None or len(repaired) + len(ending) > self.most_tokens:
            return None
        return RepairedList([*repaired, *ending], rank, _count_common(ids[:start], repaired))

    def _exchange(self, ids: list[int], encoded: list[int], rank: int) -> list[int] | None:
        """Return the encoder's tokens of the repaired list; None if the tokens of other lines would change."""
        is_unchanged = self._find_other_tokens(encoded, rank) == self._find_other_tokens(ids, rank)
        return encoded if is_unchanged else None

    def _find_other_tokens(self, ids: Sequence[int], rank: int) -> list[int]:
        """Return the non-blank tokens of other ranks: a blank before `8 Mile` is part of the token ` Heat`."""
        ranked = zip(ids, self._ranks(ids), strict=True)
        return [token for token, other in ranked if other != rank and self._text_of_token(token).strip(_BLANKS)]

    def _splice(self, ids: list[int], encoded: list[int], rank: int, text: str) -> list[int] | None:
        """Put the encoder's tokens of one rank into a list that the encoder would write differently.

        Returns:
            None if the tokens do not decode to the text.
        """
        ranks = self._ranks(ids)
        start = ranks.index(rank)
        end = start + ranks.count(rank)
        new = [token for token, its_rank in zip(encoded, self._ranks(encoded), strict=True) if its_rank == rank]
        repaired = [*ids[:start], *self._keep_blanks(ids[start:end], new), *ids[end:]]
        return repaired if self._text(repaired) == text else None

    def _find_context(self, ids: Sequence[int], text: str) -> str:
        """Infer the text before the response from whether its first token begins with a blank."""
        begins_with_blank = self._begins_with_blank(ids)
        for context in _CONTEXTS:
            if self._begins_with_blank(self._encode(text, context)) == begins_with_blank:
                return context
        return _CONTEXTS[0]

    def _begins_with_blank(self, ids: Sequence[int]) -> bool:
        return bool(ids) and self._text_of_token(ids[0]).startswith(b" ")

    def _encode(self, text: str, context: str) -> list[int]:
        """Encode a text that follows a context."""
        before = self.tokenizer.encode(context, add_special_tokens=False)
        tokens = self.tokenizer.encode(context + text, add_special_tokens=False)
        if tokens[: len(before)] != before:  # a token spans the end of the context and the start of the text
            return list(self.tokenizer.encode(text, add_special_tokens=False))
        return list(tokens[len(before) :])

    def _keep_blanks(self, old: Sequence[int], new: Sequence[int]) -> list[int]:
        """Return a line's new tokens, with the old tokens of its trailing blanks if these decode to the same text."""
        old_blanks = old[self._find_blanks(old) :]
        start = self._find_blanks(new)
        is_same_text = self._join(old_blanks) == self._join(new[start:])
        return [*new[:start], *old_blanks] if is_same_text else [*new]

    def _find_blanks(self, ids: Sequence[int]) -> int:
        """Return where a line's trailing blank tokens begin."""
        start = len(ids)
        while start and not self._text_of_token(ids[start - 1]).strip(_BLANKS):
            start -= 1
        return start

    def _join(self, ids: Sequence[int]) -> bytes:
        return b"".join(map(self._text_of_token, ids))

    def _text_of_token(self, token: int) -> bytes:
        return self.token_texts[token] if token < len(self.token_texts) else b""

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def _lines(self, ids: Sequence[int]) -> list[str]:
        return split_lines(self._text(ids), self.lists.delimiter)

    def _ranks(self, ids: Sequence[int]) -> list[int]:
        """Return each token's rank; the end-of-sequence token has the rank of the line before it."""
        ids_1T = torch.tensor([ids])
        return token_rank_ids(ids_1T, torch.ones_like(ids_1T), self.table, ())[0].tolist()


def _count_common(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the common prefix of two lists."""
    pairs = zip(first, second, strict=False)
    return next((place for place, (left, right) in enumerate(pairs) if left != right), min(len(first), len(second)))
