"""The catalog's titles that a conversation names, found by their letters: the baseline `copy` recommends them."""

import re
from collections.abc import Sequence

from convrec.data.schema import TURN, conversation_text
from convrec.lists.ranks import Item
from recipes.evaluation.split import Split, as_items

_WORD = re.compile(r"\w+")
_LONGEST = 12  # words of a title that is looked for
_SURE = 3  # a title of so many words is no phrase of a conversation by chance


def copied_lists(split: Split, num_items: int) -> list[list[Item | None]]:
    """For every row the catalog items that its conversation names, in order of their first mention.

    The longest title that begins at a word counts. With its year behind it is that item, without a year the first of
    that title. With its year or of _SURE words it counts in any case, else with the catalog's capitals alone. A title
    of one word that the conversations of the split also have as a common word (`Up`, `It`) counts with its year alone.
    """
    texts = {name: TURN.sub("", conversation_text(row)) for name, row in zip(split.prompt_ids, split.rows, strict=True)}
    common = {word for text in texts.values() for word in _WORD.findall(text) if word.islower()}
    titles = _Titles(split, common)
    lists = {name: as_items(split.catalog, titles.named_in(text)[:num_items]) for name, text in texts.items()}
    return [lists[name] for name in split.prompt_ids]


class _Titles:
    def __init__(self, split: Split, common: set[str]):
        self._common = common
        self._rows: dict[tuple[str, ...], list[int]] = {}  # words in any case -> catalog rows
        self._words = [_WORD.findall(title) for title in split.catalog.titles]
        self._years = split.catalog.years
        for row, words in enumerate(self._words):
            if self._years[row] is not None and 0 < len(words) <= _LONGEST:
                self._rows.setdefault(_folded(words), []).append(row)

    def named_in(self, text: str) -> list[int]:
        """Catalog rows, each once."""
        words = _WORD.findall(text)
        named: dict[int, None] = {}
        index = 0
        while index < len(words):
            row, length = self._at(words, index)
            if row >= 0:
                named.setdefault(row)
            index += length
        return list(named)

    def _at(self, words: Sequence[str], index: int) -> tuple[int, int]:
        """The catalog row of the longest title that begins here, -1 for none, and how many words it takes."""
        for length in range(min(_LONGEST, len(words) - index), 0, -1):
            written = words[index : index + length]
            rows = self._rows.get(_folded(written))
            if not rows:
                continue
            behind = words[index + length] if index + length < len(words) else ""
            of_year = [row for row in rows if str(self._years[row]) == behind]
            if of_year:
                return of_year[0], length + 1
            alike = [row for row in rows if self._words[row] == written]
            if length >= _SURE or (alike and (length > 1 or words[index].lower() not in self._common)):
                return (alike or rows)[0], length
        return -1, 1


def _folded(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(word.casefold() for word in words)
