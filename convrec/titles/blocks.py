"""Titles in blocks: what is compared with a title does not grow with the catalog.

A block has the titles that can be meant by a title of a year: those with the same numbers and the same first or last
letters, in that year or one nearby. Where that leaves more than LARGE_BLOCK titles, letters are added.
"""

from collections.abc import Iterator
from typing import NamedTuple

FIRST = "<"
LAST = ">"
SIDES = (FIRST, LAST)
LETTERS_IN_YEAR = 1  # of an end, at least, where the years are the same
LETTERS_NEAR_YEAR = 2  # and where they are not
LONGEST_END = 6  # letters
LARGE_BLOCK = 256  # titles
# Behind titles that are compared in the same year: the year agrees, as so many letters would.
SAME_YEAR = "#" * 9

# (the year searched for, whether the titles' year is another, their numbers and further guards, an end)
BlockKey = tuple[int, bool, tuple, str]


class Block(NamedTuple):
    """Rows of the catalog, and the text of each that is compared: the folded title, and SAME_YEAR in its own year."""

    rows: list[int]
    texts: list[str]


class TitleBlocks:
    """The blocks of one catalog. `split_large` is called once, when all titles have been added."""

    def __init__(self) -> None:
        # None: the block was too large, and there is one for each of its next letters
        self._blocks: dict[BlockKey, Block | None] = {}

    def add(self, year: int, is_near: bool, guard: tuple, folded: str, row: int) -> None:
        """Add a title to the blocks of both its ends.

        Args:
            year: in which the title is searched for.
            is_near: whether that is not the title's own year.
            guard: what is equal in all titles that are compared.
            folded: the title.
            row: of the catalog.
        """
        text = compared_text(folded, is_near)
        letters = _least_letters(is_near)
        for side in SIDES:
            self._append((year, is_near, guard, _end(side, folded, letters)), row, text)

    def split_large(self) -> None:
        """Divide large blocks by one letter more, again and again."""
        large = [key for key, block in self._blocks.items() if block and len(block.rows) > LARGE_BLOCK]
        while large:
            key = large.pop()
            letters = len(key[-1]) - 1
            if letters < LONGEST_END:
                large += [part for part in self._split(key, letters + 1) if self._is_large(part)]

    def find(self, year: int, is_near: bool, guard: tuple, folded: str) -> Iterator[Block]:
        """The blocks, one for each end, with which a title of a year is compared."""
        for side in SIDES:
            for letters in range(_least_letters(is_near), LONGEST_END + 1):
                key = (year, is_near, guard, _end(side, folded, letters))
                block = self._blocks.get(key)
                if block is not None:
                    yield block
                if block is not None or key not in self._blocks:
                    break

    def _append(self, key: BlockKey, row: int, text: str) -> None:
        block = self._blocks.get(key)
        if block is None:
            block = Block([], [])
            self._blocks[key] = block
        block.rows.append(row)
        block.texts.append(text)

    def _split(self, key: BlockKey, letters: int) -> set[BlockKey]:
        """Divide one block by that many letters. Returns the keys of its parts."""
        year, is_near, guard, end = key
        block = self._blocks[key]
        assert block is not None
        self._blocks[key] = None
        parts = set()
        for row, text in zip(block.rows, block.texts, strict=True):
            part = (year, is_near, guard, _end(end[0], text.removesuffix(SAME_YEAR), letters))
            self._append(part, row, text)
            parts.add(part)
        return parts

    def _is_large(self, key: BlockKey) -> bool:
        block = self._blocks[key]
        return block is not None and len(block.rows) > LARGE_BLOCK


def compared_text(folded: str, is_near: bool) -> str:
    """The text by which a folded title is compared; is_near: with titles of another year."""
    return folded if is_near else folded + SAME_YEAR


def _least_letters(is_near: bool) -> int:
    return LETTERS_NEAR_YEAR if is_near else LETTERS_IN_YEAR


def _end(side: str, folded: str, letters: int) -> str:
    """So many of the first or of the last letters, and which."""
    return FIRST + folded[:letters] if side == FIRST else LAST + folded[-letters:]
