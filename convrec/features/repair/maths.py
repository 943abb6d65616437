"""A list without a hit gets one: a line of it becomes a wanted title (docs/explanation/method.md 3, Repair)."""

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

# What may stand before a response: nothing, or the line break that chat templates end with. A sentencepiece tokenizer
# writes the first word as `▁Heat` in the first case and as `Heat` in the second.
_CONTEXTS = ("", "\n")
_BLANKS = WHITESPACE.encode("ascii")


class RepairedList(NamedTuple):
    """A list with another line at a rank (from 0); num_kept: the tokens at its beginning that are as before."""

    token_ids: list[int]
    rank: int
    num_kept: int


@dataclass(frozen=True)
class ListRepair:
    """Puts a relevant title into a list.

    Attributes:
        tokenizer: of the policy.
        matcher: has the catalog.
        lists: what a list is.
        ranks: a title goes to one of the first so many.
        most_tokens: of a response.
        find_row: returns the catalog row that writes an item, given as its first row; None for an item that no list
            may hold.
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
        """What each token adds to the text; nothing for special tokens."""
        return token_bytes(self.tokenizer)

    def repair_list(
        self, ids: Sequence[int], truth: Sequence[tuple[str, object]], seen: Sequence[str], random: Random
    ) -> RepairedList | None:
        """Replace one line by a wanted title that the list lacks, both drawn at random.

        The new line has the tokens that the tokenizer writes at its place in the list; all other lines keep theirs,
        except for blanks before it, which may become part of its first token.

        Args:
            ids: tokens of the response.
            truth: the wanted titles with their years.
            seen: titles that the conversation names.
            random: draws the rank, then the title.

        Returns:
            None where that cannot be: the list was cut off or has no line, the catalog lacks what is wanted or the
            conversation has it, or the new line needs more tokens than are left or other tokens around it.
        """
        lines = self._lines(ids)
        if not lines or len(ids) >= self.most_tokens:
            return None
        rank = random.randrange(min(self.ranks, len(lines)))
        held = self.matcher.match_lines(lines, (), None).catalog_index
        wanted = [one.index for one in self.matcher.truths(truth) if one.index >= 0 and one.index not in held]
        for item in random.sample(wanted, len(wanted)):
            if (row := self.find_row(item)) is None:
                continue
            line = format_item(self.matcher.catalog.titles[row], self.matcher.catalog.years[row])  # type: ignore[arg-type]
            changed = [*lines[:rank], line, *lines[rank + 1 :]]
            is_hit = self.matcher.match_lines(changed[: self.lists.num_items], truth, seen).relevance[rank]
            found = self._put_line([*ids], rank, line)
            if is_hit and found and self._lines(found.token_ids) == changed:
                return found
        return None

    def _put_line(self, ids: list[int], rank: int, line: str) -> RepairedList | None:
        """Replace the tokens of a rank by those of a line; None where other lines would need other tokens."""
        ranks = self._ranks(ids)
        if rank not in ranks:  # one token has all of the line, and of another one
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
        """The encoder's tokens of the repaired list, where those of other lines are as they were."""
        is_alike = self._find_other_tokens(encoded, rank) == self._find_other_tokens(ids, rank)
        return encoded if is_alike else None

    def _find_other_tokens(self, ids: Sequence[int], rank: int) -> list[int]:
        """The tokens of other ranks, without blank ones: a blank before `8 Mile` is part of the token ` Heat`."""
        ranked = zip(ids, self._ranks(ids), strict=True)
        return [token for token, other in ranked if other != rank and self._text_of_token(token).strip(_BLANKS)]

    def _splice(self, ids: list[int], encoded: list[int], rank: int, text: str) -> list[int] | None:
        """A list that the encoder would write otherwise, with the encoder's tokens of this rank.

        Returns:
            None where they do not make the text.
        """
        ranks = self._ranks(ids)
        start = ranks.index(rank)
        end = start + ranks.count(rank)
        new = [token for token, its_rank in zip(encoded, self._ranks(encoded), strict=True) if its_rank == rank]
        repaired = [*ids[:start], *self._keep_blanks(ids[start:end], new), *ids[end:]]
        return repaired if self._text(repaired) == text else None

    def _find_context(self, ids: Sequence[int], text: str) -> str:
        """The text before the response, to judge by whether its first token begins with a blank."""
        begins_with_blank = self._begins_with_blank(ids)
        for context in _CONTEXTS:
            if self._begins_with_blank(self._encode(text, context)) == begins_with_blank:
                return context
        return _CONTEXTS[0]

    def _begins_with_blank(self, ids: Sequence[int]) -> bool:
        return bool(ids) and self._text_of_token(ids[0]).startswith(b" ")

    def _encode(self, text: str, context: str) -> list[int]:
        """The tokens of a text that follows a context."""
        before = self.tokenizer.encode(context, add_special_tokens=False)
        tokens = self.tokenizer.encode(context + text, add_special_tokens=False)
        if tokens[: len(before)] != before:  # a token has the end of the context and the start of the text
            return list(self.tokenizer.encode(text, add_special_tokens=False))
        return list(tokens[len(before) :])

    def _keep_blanks(self, old: Sequence[int], new: Sequence[int]) -> list[int]:
        """Return a line's new tokens, with the old tokens of its trailing blanks if these decode to the same text."""
        old_blanks = old[self._find_blanks(old) :]
        start = self._find_blanks(new)
        is_same_text = self._join(old_blanks) == self._join(new[start:])
        return [*new[:start], *old_blanks] if is_same_text else [*new]

    def _find_blanks(self, ids: Sequence[int]) -> int:
        """Where the blank tokens begin that end a line."""
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
        """Of each token; the end of the sequence, which is no text, has that of the line before it."""
        ids_1T = torch.tensor([ids])
        return token_rank_ids(ids_1T, torch.ones_like(ids_1T), self.table, ())[0].tolist()


def _count_common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two lists have in common at their beginning."""
    pairs = zip(first, second, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))
