"""An index of a catalog's titles: by normalised title, by folded title, by the forms that people write, by similarity.

**Similarity** is rapidfuzz's `fuzz.ratio` of the folded titles, 0 to 100, with the years as evidence; `fuzzy_cutoff` is
the least similarity, not the least ratio. A bare ratio of 90 allows one wrong letter only from ten letters on and finds
half of the misspelt titles. So a year that agrees exactly counts as nine more letters that agree (SAME_YEAR): at 90,
one wrong letter is then allowed from four letters on, two from eleven; of letters too many or too few one more.
Titles one year apart need the bare ratio; further apart none is similar (The Outsider (1981) is not The Outsiders
(1983)).

Four guards refuse what is similar and another title (those of words and sizes: `word_guard`):
- The sequel guard: only titles with the same numbers are ever compared (`Toy Story 2` is never `Toy Story 3`).
- The word guard: a real other word is no typo (`Before Sunset (1995)` is not Before Sunrise). A word is real when it is
  English (`is_english`), when a title of the catalog has it, or when only an ending tells it from one that no word list
  knows. One wrong letter in LETTERS_PER_TYPO is a typo all the same (`The Silence of the Lamb`), where the years agree.
  A word left out makes another title, too (`Live Free or Die`). Articles and `and` come and go, and so does a space
  (`Chain Saw`, `Chainsaw`).
- The size guard: titles with different sizes or single letters are two (`T-Shirt, black, S`, `T-Shirt, black, M`).
- A leading article differs in the same year only: Room (2005) is not The Room (2003).

On a tie the nearest year, then the catalog's order, wins. notes/data.md has what was measured of the guards
and of other rules.

Where the catalog has no years (Catalog.dated is false), all years are equal and say nothing: similarity is the bare
ratio, and a line is a title from end to end; a year written behind a title that is not found is taken off.

Search is blocked (`title_blocks`), which keeps it sub-linear in the catalog: only titles with the same year and the
same first or last letter, or a year nearby and the same first or last two letters, are compared; where that leaves too
many titles (catalogs of some 100,000), letters are added. What this loses are titles with typos at both ends.
`benchmarks/bench_matching.py` measures what is found, what is found wrongly, and the time.
"""

from collections.abc import Iterable, Sequence
from string import ascii_lowercase, digits

from rapidfuzz import fuzz, process

from convrec.titles.blocks import SAME_YEAR, Block, TitleBlocks, compared_text
from convrec.titles.catalog import Catalog
from convrec.titles.forms import NUMBER_WORDS, fold, fold_parts, forms, normalise, numbers, short_forms
from convrec.titles.word_guard import WordGuard

FUZZY = frozenset({"fuzzy", "lenient"})
ID = "\1"  # marks a key that is no title
SHORTEST_MISSPELT = 4  # letters
NEAR_YEARS = 1  # apart, of titles that are not spelt alike
AMBIGUOUS = -2  # in place of a row: several items are meant as likely
# Words that are one typo from `the` and are none.
NOT_THE = frozenset({"she", "thy", "them", "then", "they"})

Candidate = tuple[float, int, int]  # (-similarity, years apart, row): the least is the best


class TitleIndex:
    """Where the titles of one catalog stand; read only once it is built.

    Attributes:
        by_title: normalised title (in mode `reference` the very title) -> rows of the catalog, those of its other
            titles (Catalog.aliases) last.
        by_folded: folded title, without its article -> rows.
        by_spelling: folded title with its article -> rows.
        items: of each row, the first row of the same item (Catalog.first_rows); in mode `fuzzy` by folded titles, but
            for catalogs without years, where no year agrees.
        rows: of items with several rows, these rows.
        keys: of the first row of each item, its key in by_title, or one that is the item's alone where the catalog has
            an id for it.
        word_guard: tells typos from other words.
    """

    def __init__(self, catalog: Catalog, mode: str, year_tolerance: int, fuzzy_cutoff: float):
        self.catalog = catalog
        self.year_tolerance = year_tolerance
        self.fuzzy_cutoff = fuzzy_cutoff
        is_fuzzy = mode in FUZZY
        titles = list(catalog.titles) if mode == "reference" else [normalise(title) for title in catalog.titles]
        self.items = catalog.first_rows(catalog.spelling_forms() if is_fuzzy and catalog.dated else titles)
        self.rows = _rows_by_item(self.items)
        self.keys = _item_keys(catalog, titles)
        self.by_title: dict[str, list[int]] = {}
        self.by_folded: dict[str, list[int]] = {}
        self.by_spelling: dict[str, list[int]] = {}
        # (form, year) -> the item that alone has it, or AMBIGUOUS
        self._by_letters: dict[tuple[str, int], int] = {}
        self._by_short_form: dict[tuple[str, int], int] = {}
        self._blocks = TitleBlocks()
        names = [*zip(range(len(catalog)), catalog.titles, titles, strict=True)]
        if mode != "reference":
            names += _aliases(catalog)
        words = {word for _, name, _ in names for word in fold(name).split()} if is_fuzzy else set()
        self.word_guard = WordGuard(words, fuzzy_cutoff)
        for row, name, key in names:
            year = catalog.years[row]
            if year is not None:
                self.by_title.setdefault(key, []).append(row)
                if is_fuzzy:
                    self._index_folded(row, year, name)
        self._blocks.split_large()

    def find_nearest_year(self, rows: Sequence[int], year: int) -> int:
        """The row with the nearest year within the tolerance, the earlier one on a tie; -1 for none."""
        years = self.catalog.years
        best = -1
        best_distance = self.year_tolerance + 1
        for row in rows:
            distance = abs(years[row] - year)  # type: ignore[operator]
            if distance < best_distance:
                best = row
                best_distance = distance
        return best

    def unique_item(self, rows: Iterable[int]) -> int:
        """The item that all of these rows are; -1 for none, AMBIGUOUS for several."""
        return _only_one({self.items[row] for row in rows})

    def find_by_spelling(self, title: str, year: int) -> int:
        """The row of a folded title, in the nearest year; with another article the only one of the same year."""
        row = self.find_nearest_year(self.by_spelling.get(forms(title).spelling, ()), year)
        return row if row >= 0 else self.unique_in_year(fold(title), year)

    def unique_in_year(self, folded: str, year: int) -> int:
        """The item that alone has this folded title in this very year; -1 for none, AMBIGUOUS for several."""
        rows = self.by_folded.get(folded)
        return self.unique_item(row for row in rows if self.catalog.years[row] == year) if rows else -1

    def find_by_letters(self, title: str, year: int) -> int:
        """The item of the same letters in this year, spaces aside (Blow-Up, Th eMatrix); -1 for none, AMBIGUOUS.

        One typo in an article or in a word for a number, which no similarity reads, is undone (Teh Matrix, Sevne).
        """
        item = self._by_letters.get((forms(title).letters, year), -1)
        if item != -1:
            return item
        words = forms(title).spelling.split()
        if len(words) < 2:
            return -1
        corrected = [self._undo_typo(word, index) for index, word in enumerate(words)]
        rows = self.by_spelling.get(" ".join(corrected)) if corrected != words else None
        return self.unique_item(row for row in rows if self.catalog.years[row] == year) if rows else -1

    def _undo_typo(self, word: str, index: int) -> str:
        if index == 0 and word in _THE and word not in NOT_THE:
            return "the"
        return NUMBER_WORDS[_NUMBERS[word]] if word in _NUMBERS and not self.word_guard.is_word(word) else word

    def find_by_short_form(self, title: str, year: int) -> int:
        """The item of this year whose title has the same parts, some left out or added; -1 for none, AMBIGUOUS."""
        parts = fold_parts(title)
        found = {self._by_short_form.get((form, year), -1) for form in {fold(title), " ".join(parts)}}
        found.update(self.unique_in_year(form, year) for form in short_forms(parts))
        found.discard(-1)
        return _only_one(found)

    def _index_folded(self, row: int, year: int, name: str) -> None:
        written = forms(name)
        folded = written.folded
        if not folded:
            return
        self.by_folded.setdefault(folded, []).append(row)
        self.by_spelling.setdefault(written.spelling, []).append(row)
        self._claim(self._by_letters, written.letters, year, row)
        if self.catalog.dated:
            for form in short_forms(fold_parts(name)):
                self._claim(self._by_short_form, form, year, row)
        if len(folded) < SHORTEST_MISSPELT:
            return
        tolerance = min(self.year_tolerance, NEAR_YEARS) if self.catalog.dated else 0
        for shift in range(-tolerance, tolerance + 1):
            is_near = shift != 0 or not self.catalog.dated  # equal years are evidence, absent ones are not
            guard = self._guard(numbers(folded), written.article, is_near)
            self._blocks.add(year + shift, is_near, guard, folded, row)

    def _guard(self, title_numbers: tuple[int, ...], article: str, is_near: bool) -> tuple:
        """What titles that are compared have in common: their numbers, and in years nearby the article."""
        return (*title_numbers, article) if is_near and self.catalog.dated else title_numbers

    def _claim(self, items: dict[tuple[str, int], int], form: str, year: int, row: int) -> None:
        if items.setdefault((form, year), self.items[row]) != self.items[row]:
            items[form, year] = AMBIGUOUS

    def find_most_similar(self, title: str, year: int) -> int:
        """The catalog row with the highest similarity of at least the cutoff; -1 for none."""
        article, folded, _ = forms(title)
        if len(folded) < SHORTEST_MISSPELT - 1:  # a letter may be missing
            return -1
        title_numbers = numbers(folded)
        best: Candidate = (-self.fuzzy_cutoff, NEAR_YEARS + 1, -1)
        for is_near in (False, True):
            query = compared_text(folded, is_near)
            guard = self._guard(title_numbers, article, is_near)
            for block in self._blocks.find(year, is_near, guard, folded):
                best = self._best_of_block(best, block, query, folded, year)
        return best[2]

    def _best_of_block(self, best: Candidate, block: Block, query: str, folded: str, year: int) -> Candidate:
        """The best of the titles of a block, where it is better than the best so far."""
        matches = process.extract(query, block.texts, scorer=fuzz.ratio, score_cutoff=-best[0], limit=None)
        for text, similarity, index in matches:
            row = block.rows[index]
            years_apart = abs(self.catalog.years[row] - year)  # type: ignore[operator]  # rows of blocks have years
            candidate = (-similarity, years_apart, row)
            if candidate < best and not self.word_guard.has_other_word(
                folded, text.removesuffix(SAME_YEAR), years_apart > 0
            ):
                best = candidate
        return best


def _only_one(items: set[int]) -> int:
    """The only one of the items; -1 for none, AMBIGUOUS for several."""
    if len(items) > 1:
        return AMBIGUOUS
    return items.pop() if items else -1


def _rows_by_item(items: Sequence[int]) -> dict[int, list[int]]:
    """The rows of each item that has several."""
    rows: dict[int, list[int]] = {}
    for row, first in enumerate(items):
        if row != first:
            rows.setdefault(first, [first]).append(row)
    return rows


def _item_keys(catalog: Catalog, titles: Sequence[str]) -> list[str]:
    """Of each row the key by which its item is equal to others: its id where it has one, else its title."""
    ids = catalog.item_ids
    if ids is None:
        return list(titles)
    return [title if ids[row] is None else f"{ID}{row}" for row, title in enumerate(titles)]


def _aliases(catalog: Catalog) -> list[tuple[int, str, str]]:
    """(row, other title, the same normalised)"""
    return [(row, alias, normalise(alias)) for row, aliases in enumerate(catalog.aliases or ()) for alias in aliases]


def _with_a_typo(words: Iterable[str]) -> dict[str, str]:
    """What is written with one wrong letter, or two swapped -> the first of the words that is meant."""
    meant: dict[str, str] = {}
    for word in words:
        for before, after in ((word[:cut], word[cut:]) for cut in range(len(word) + 1)):
            typos = [before + after[1:], before + after[1:2] + after[:1] + after[2:]]
            typos += [before + letter + rest for letter in ascii_lowercase + digits for rest in (after, after[1:])]
            for typo in typos:
                meant.setdefault(typo, word)
    return meant


_THE = _with_a_typo(["the"]).keys() - {"the"}
_NUMBERS = _with_a_typo(NUMBER_WORDS)
