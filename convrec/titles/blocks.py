"""Group titles into blocks, so that the number of comparisons per title does not grow with the catalog.

A block has the titles that a title with a year can mean: those with the same numbers and the same first or last
letters, in that year or a nearby one. Blocks with more than LARGE_BLOCK titles are split by further letters.
"""

from collections.abc import Iterator
from typing import NamedTuple

FIRST = "<"
LAST = ">"
SIDES = (FIRST, LAST)
LETTERS_IN_YEAR = 1  # minimum length of an end if the years are equal
LETTERS_NEAR_YEAR = 2  # and if they differ
LONGEST_END = 6  # letters
LARGE_BLOCK = 256  # titles
# Appended to titles that are compared within one year: an equal year counts as this many equal letters.
SAME_YEAR = "#" * 9

# (year searched for, whether the titles have another year, their numbers and further guards, an end)
BlockKey = tuple[int, bool, tuple, str]


class Block(NamedTuple):
    """Rows of the catalog, and the text to compare for each: the folded title, plus SAME_YEAR in its own year."""

    rows: list[int]
    texts: list[str]


class TitleBlocks:
    """The blocks of one catalog. Call `split_large` once, after adding all titles."""

    def __init__(self) -> None:
        # None: the block was too large and was split by the next letter.
        self._blocks: dict[BlockKey, Block | None] = {}

    def add(self, year: int, is_near: bool, guard: tuple, folded: str, row: int) -> None:
        """Add a title to the blocks of both its ends.

        Args:
            year: the year in which the title is searched for.
            is_near: whether that differs from the title's own year.
            guard: must be equal in titles that are compared.
            folded: the folded title.
            row: its row in the catalog.
        """
        text = make_compared_text(folded, is_near)
        letters = _min_letters(is_near)
        for side in SIDES:
            self._append((year, is_near, guard, _cut_end(side, folded, letters)), row, text)

    def split_large(self) -> None:
        """Split large blocks by one more letter until none is large."""
        large = [key for key, block in self._blocks.items() if block and len(block.rows) > LARGE_BLOCK]
        while large:
            key = large.pop()
            letters = len(key[-1]) - 1
            if letters < LONGEST_END:
                large += [part for part in self._split(key, letters + 1) if self._is_large(part)]

    def find(self, year: int, is_near: bool, guard: tuple, folded: str) -> Iterator[Block]:
        """Yield the blocks, at most one per end, with which a title has to be compared. For arguments see `add`."""
        for side in SIDES:
            for letters in range(_min_letters(is_near), LONGEST_END + 1):
                key = (year, is_near, guard, _cut_end(side, folded, letters))
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
        """Split one block by that many letters, and return the keys of its parts."""
        year, is_near, guard, end = key
        block = self._blocks[key]
        assert block is not None
        self._blocks[key] = None
        parts = set()
        for row, text in zip(block.rows, block.texts, strict=True):
            part = (year, is_near, guard, _cut_end(end[0], text.removesuffix(SAME_YEAR), letters))
            self._append(part, row, text)
            parts.add(part)
        return parts

    def _is_large(self, key: BlockKey) -> bool:
        block = self._blocks[key]
        return block is not None and len(block.rows) > LARGE_BLOCK


def make_compared_text(folded: str, is_near: bool) -> str:
    """Return the text to compare for a folded title.

    Args:
        folded: the folded title.
        is_near: whether it is compared with titles of another year, so that equal years are no evidence.
    """
    return folded if is_near else folded + SAME_YEAR


def _min_letters(is_near: bool) -> int:
    return LETTERS_NEAR_YEAR if is_near else LETTERS_IN_YEAR


def _cut_end(side: str, folded: str, letters: int) -> str:
    """Return the first or last letters, marked with their side."""
    return FIRST + folded[:letters] if side == FIRST else LAST + folded[-letters:]
