"""A list without a hit gets one: a line of it becomes a wanted title (docs/explanation/method.md 3, Repair)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any

import torch

from convrec.lists.matching import Matcher
from convrec.lists.ranks import format_item, split_lines
from convrec.lists.settings import ListSettings
from convrec.lists.token_ranks import VocabTable, build_vocab_table, token_rank_ids

Repaired = tuple[list[int], int, int]  # tokens, the rank of the title (from 0), and how many tokens are as before


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

    def repaired(
        self, ids: Sequence[int], truth: Sequence[tuple[str, object]], seen: Sequence[str], random: Random
    ) -> Repaired | None:
        """The list with one line replaced: by a wanted title that it lacks, both drawn by `random`.

        truth, seen: titles of the row. All other lines keep their tokens. None where that cannot be: the list was cut
        off or has no line, the catalog lacks what is wanted or the conversation has it, or the new line needs more
        tokens than are left or other tokens around it.
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
            found = self._with_line([*ids], rank, lines[rank], line)
            if is_hit and found and self._lines(found[0]) == changed:
                return found
        return None

    def _with_line(self, ids: list[int], rank: int, old: str, line: str) -> Repaired | None:
        ranks = self._ranks(ids)
        if rank not in ranks:  # one token has all of the line, and of another one
            return None
        start, behind = ranks.index(rank), ranks.index(rank) + ranks.count(rank)
        end = behind
        while not self._text(ids[end - 1 : end]):  # the end of the sequence stays
            end -= 1
        # so do the delimiter and blanks behind the line; encoded as behind another line, without what is in front
        text = self.lists.delimiter + line + self._text(ids[start:end]).partition(old)[2]
        new = self.tokenizer.encode(text, add_special_tokens=False)
        new = [token for token, of_line in zip(new, self._ranks(new), strict=True) if of_line == 0]
        repaired = [*ids[:start], *new, *ids[end:]]
        is_alike = self._ranks(repaired) == [*ranks[:start], *[rank] * (len(new) + behind - end), *ranks[behind:]]
        return (repaired, rank, start) if is_alike and len(repaired) <= self.most_tokens else None

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def _lines(self, ids: Sequence[int]) -> list[str]:
        return split_lines(self._text(ids), self.lists.delimiter)

    def _ranks(self, ids: Sequence[int]) -> list[int]:
        """Of each token; the end of the sequence, which is no text, has that of the line before it."""
        ids_1T = torch.tensor([ids])
        return token_rank_ids(ids_1T, torch.ones_like(ids_1T), self.table, ())[0].tolist()
