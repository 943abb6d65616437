"""An index of a catalog's titles: by normalised title, by folded title, and by similarity.

**Similarity** is rapidfuzz's `fuzz.ratio` of the folded titles, 0 to 100, with the years as evidence; `fuzzy_cutoff` is
the least similarity, not the least ratio. A bare ratio of 90 allows one wrong letter only from ten letters on and finds
half of the misspelt titles. So a year that agrees exactly counts as nine more letters that agree (SAME_YEAR): at 90,
one wrong letter is then allowed from four letters on, two from eleven. Titles one year apart need the bare ratio; each
further year counts as one more wrong letter (The Outsider (1981) is not The Outsiders (1983)).

Two guards refuse what is similar and another title:
- The sequel guard: only titles with the same numbers are ever compared (`Toy Story 2` is never `Toy Story 3`).
- The word guard: a real other word is no typo (`Before Sunset (1995)` is not Before Sunrise). A word is real when a
  title of the catalog has it, or when only an ending tells it from the word it stands for (`Alien`, `Aliens`). From a
  bare ratio of REAL_WORD_RATIO on it is a typo all the same (`The Silence of the Lamb`). A word left out makes another
  title, too (`Live Free or Die`). Articles and `and` come and go, and so does a space (`Chain Saw`, `Chainsaw`).

On a tie the nearest year, then the catalog's order, wins. notes/data.md has what was measured of the guards
and of other rules.

Where the catalog has no years (Catalog.dated is false), all years are equal and say nothing: similarity is the bare
ratio, and a line is a title from end to end; a year written behind a title that is not found is taken off.

Search is blocked, which keeps it sub-linear in the catalog: only titles with the same year and the same first or last
letter, or a year nearby and the same first or last two letters, are compared; where that leaves more than LARGE_BLOCK
titles (catalogs of some 100,000), letters are added. What this loses are titles with typos at both ends.
`benchmarks/bench_matching.py` measures what is found, what is found wrongly, and the time.
"""

from collections.abc import Sequence

from rapidfuzz import fuzz, process

from convrec.lists.catalog import Catalog
from convrec.lists.titles import fold, normalise, numbers

ID = "\1"  # marks a key that is no title
SAME_YEAR = "#" * 9
SHORTEST_MISSPELT = 4
SIDES = ("<", ">")  # the first and the last letters
FIRST_LETTERS = (1, 2)  # of the same year, of a year nearby
LARGE_BLOCK, LONGEST_END = 256, 6  # titles; letters
REAL_WORD_RATIO = 95
UNSTABLE_WORDS = frozenset({"the", "a", "an", "and"})
ENDINGS = frozenset({"s", "es", "d", "ed", "r", "er", "rs", "ers", "st", "est", "ing", "ly", "y", "n", "en"})


class TitleIndex:
    """Where the titles of one catalog stand; read only once it is built.

    by_title and by_folded: normalised (in mode `reference` the very) and folded title -> rows of the catalog.
    items: of each row, the first row of the same item (Catalog.first_rows); in mode `fuzzy` by folded titles, but for
    catalogs without years, where no year agrees. rows: of items with several rows, these rows. keys: of the first row
    of each item, its key in by_title, or one that is the item's alone where the catalog has an id for it.
    """

    def __init__(self, catalog: Catalog, mode: str, year_tolerance: int, fuzzy_cutoff: float):
        self.catalog, self.year_tolerance, self.fuzzy_cutoff = catalog, year_tolerance, fuzzy_cutoff
        # title -> rows; by_title is keyed by the key of the mode (the title itself in reference mode).
        self.by_title: dict[str, list[int]] = {}
        self.by_folded: dict[str, list[int]] = {}
        # (year searched for, whether theirs is another, numbers, first or last letters) -> rows, folded titles; None
        # for a block that was too large: there is one for each of its next letters
        self._blocks: dict[tuple, tuple[list[int], list[str]] | None] = {}
        titles = [title if mode == "reference" else normalise(title) for title in catalog.titles]
        folded = [fold(title) for title in catalog.titles] if mode == "fuzzy" else []
        self._words = {word for title in folded for word in title.split()}
        forms = (
            [form or title for form, title in zip(folded, titles, strict=True)] if folded and catalog.dated else titles
        )
        self.items = catalog.first_rows(forms)
        self.rows: dict[int, list[int]] = {}
        for row, first in enumerate(self.items):
            if row != first:
                self.rows.setdefault(first, [first]).append(row)
        ids = catalog.item_ids
        self.keys = [f"{ID}{row}" if ids and ids[row] is not None else title for row, title in enumerate(titles)]
        for row, year in enumerate(catalog.years):
            if year is not None:
                self.by_title.setdefault(titles[row], []).append(row)
                if folded:
                    self._index_folded(row, year, folded[row])
        self._split_blocks()

    def nearest(self, rows: Sequence[int], year: int) -> int:
        """The row with the nearest year within the tolerance, the earlier one on a tie; -1 for none."""
        years = self.catalog.years
        best, best_distance = -1, self.year_tolerance + 1
        for row in rows:
            distance = abs(years[row] - year)  # type: ignore[operator]
            if distance < best_distance:
                best, best_distance = row, distance
        return best

    def _index_folded(self, row: int, year: int, folded: str) -> None:
        if not folded:
            return
        self.by_folded.setdefault(folded, []).append(row)
        if len(folded) < SHORTEST_MISSPELT:
            return
        guard = numbers(folded)
        tolerance = self.year_tolerance if self.catalog.dated else 0
        for shift in range(-tolerance, tolerance + 1):
            near = shift != 0 or not self.catalog.dated  # equal years are evidence, absent ones are not
            for side in SIDES:
                end = _end(side, folded, FIRST_LETTERS[near])
                self._add((year + shift, near, guard, end), row, folded if near else folded + SAME_YEAR)

    def _add(self, key: tuple, row: int, title: str) -> None:
        rows, titles = self._blocks.setdefault(key, ([], []))  # type: ignore[misc]  # none is split yet
        rows.append(row)
        titles.append(title)

    def _split_blocks(self) -> None:
        """Large blocks by one letter more, again and again: what is compared does not grow with the catalog."""
        large = [key for key, block in self._blocks.items() if block and len(block[0]) > LARGE_BLOCK]
        while large:
            key = large.pop()
            year, near, guard, end = key
            if len(end) - 1 >= LONGEST_END:
                continue
            rows, titles = self._blocks[key]  # type: ignore[misc]
            self._blocks[key] = None
            parts = set()
            for row, title in zip(rows, titles, strict=True):
                part = (year, near, guard, _end(end[0], title if near else title[: -len(SAME_YEAR)], len(end)))
                self._add(part, row, title)
                parts.add(part)
            large += [part for part in parts if len(self._blocks[part][0]) > LARGE_BLOCK]  # type: ignore[index]

    def most_similar(self, folded: str, year: int) -> int:
        """The catalog row with the highest similarity of at least the cutoff; -1 for none."""
        if len(folded) < SHORTEST_MISSPELT:
            return -1
        guard, years = numbers(folded), self.catalog.years
        best = (-self.fuzzy_cutoff, self.year_tolerance + 1, -1)  # (-similarity, years apart, row): the least wins
        for near in (False, True):
            query = folded if near else folded + SAME_YEAR
            for side in SIDES:
                block = self._block(year, near, guard, side, folded)
                if block is None:
                    continue
                rows, titles = block
                for title, similarity, index in process.extract(
                    query, titles, scorer=fuzz.ratio, score_cutoff=-best[0], limit=None
                ):
                    apart = abs(years[rows[index]] - year)  # type: ignore[operator]
                    if apart > 1:
                        similarity = fuzz.ratio(query + "#" * (apart - 1), title)
                    found = (-similarity, apart, rows[index])
                    if found < best and not self._has_other_word(folded, title.removesuffix(SAME_YEAR)):
                        best = found
        return best[2]

    def _has_other_word(self, written: str, title: str) -> bool:
        """The word guard: whether two similar folded titles differ by a word and not by its spelling."""
        if written.replace(" ", "") == title.replace(" ", ""):
            return False
        ours, theirs = set(written.split()), set(title.split())
        extra, missing = ours - theirs - UNSTABLE_WORDS, theirs - ours - UNSTABLE_WORDS
        if not extra:
            return bool(missing)
        if any(word in self._words or any(_differ_by_ending(word, other) for other in missing) for word in extra):
            return fuzz.ratio(written, title) < REAL_WORD_RATIO
        return False

    def _block(self, year: int, near: bool, guard: tuple, side: str, folded: str) -> tuple[list[int], list[str]] | None:
        for letters in range(FIRST_LETTERS[near], LONGEST_END + 1):
            key = (year, near, guard, _end(side, folded, letters))
            if (block := self._blocks.get(key)) is not None:
                return block
            if key not in self._blocks:
                return None
        return None


def _end(side: str, folded: str, letters: int) -> str:
    """A block's key: so many of the first or of the last letters."""
    return "<" + folded[:letters] if side == "<" else ">" + folded[-letters:]


def _differ_by_ending(word: str, other: str) -> bool:
    short, long = sorted((word, other), key=len)
    return len(short) > 2 and long.startswith(short) and long[len(short) :] in ENDINGS
