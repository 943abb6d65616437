"""Index a catalog's titles by normalised title, by folded title, by the short forms that people write, by similarity.

**Similarity** is rapidfuzz's `fuzz.ratio` of the folded titles, 0 to 100, with the years as evidence; `fuzzy_cutoff` is
the minimum similarity, not the minimum ratio. A bare ratio of 90 allows one wrong letter only in titles of at least ten
letters and finds half of the misspelled titles. An equal year therefore counts as nine more equal letters (SAME_YEAR):
at 90, one wrong letter is then allowed from four letters on, two from eleven, and one more if letters were inserted or
omitted. Titles one year apart need the bare ratio; beyond that, none is similar (The Outsider (1981) is not The
Outsiders (1983)).

Four guards refuse titles that are similar but different (for words and sizes, see `word_guard`):
- The sequel guard: only titles with the same numbers are compared (`Toy Story 2` is never `Toy Story 3`).
- The word guard: another real word is not a typo (`Before Sunset (1995)` is not Before Sunrise). A word is real if it
  is English (`is_english`), if it occurs in a title of the catalog, or if it differs only by an ending from a word that
  no word list has. If the years agree, one wrong letter in LETTERS_PER_TYPO is a typo anyway (`The Silence of the
  Lamb`). Omitting a word also makes another title (`Live Free or Die`), except for articles, `and` and spaces (`Chain
  Saw`, `Chainsaw`).
- The size guard: titles with different sizes or single letters are different (`T-Shirt, black, S`, `T-Shirt, black,
  M`).
- Leading articles may differ only in the same year: Room (2005) is not The Room (2003).

Ties go to the nearest year, then to the earlier row. notes/data.md has measurements of the guards and of other rules.

In a catalog without years (Catalog.dated is false), all years are equal and carry no evidence: similarity is the bare
ratio, and a whole line is a title; if it is not found, a year at its end is stripped.

Titles are searched in blocks (convrec.titles.blocks), which keeps the search sublinear: only titles with the same year
and the same first or last letter, or a nearby year and the same first or last two letters, are compared; in catalogs of
some 100,000 titles, more letters. Titles with typos at both ends are therefore missed. `benchmarks/bench_matching.py`
measures recall, false matches and time.
"""

from collections.abc import Iterable, Sequence
from string import ascii_lowercase, digits

from rapidfuzz import fuzz, process

from convrec.titles.blocks import SAME_YEAR, Block, TitleBlocks, make_compared_text
from convrec.titles.catalog import Catalog
from convrec.titles.forms import (
    NUMBER_WORDS,
    Forms,
    fold,
    fold_parts,
    forms,
    make_short_forms,
    normalise,
    numbers,
    split_parts,
)
from convrec.titles.word_guard import WordGuard

FUZZY = frozenset({"fuzzy", "lenient"})
ID = "\1"  # marks a key that is not a title
SHORTEST_MISSPELT = 4  # letters of a title that may have a typo
NEAR_YEARS = 1  # maximum difference in years of titles that are spelled differently
AMBIGUOUS = -2  # instead of a row: several items are equally likely
# Words that are one typo away from `the` but are not typos.
NOT_THE = frozenset({"she", "thy", "them", "then", "they"})

Candidate = tuple[float, int, int]  # (-similarity, years apart, row): the minimum is the best


class TitleIndex:
    """The titles of one catalog and their rows; read-only after construction.

    Args:
        catalog: the titles.
        mode: a name in MATCHERS, which decides how titles are compared.
        year_tolerance: maximum difference in years between spellings of one item.
        fuzzy_cutoff: minimum similarity of a misspelled title, above 0 and up to 100.

    Attributes:
        by_title: normalised title (in mode `reference` the exact title) -> rows of the catalog, those of aliases last.
        by_folded: folded title, without its article -> rows.
        by_spelling: folded title with its article -> rows.
        items: for each row, the first row of the same item (Catalog.first_rows): in mode `fuzzy` by folded title,
            except for catalogs without years.
        rows: for items with several rows, all of them.
        keys: for the first row of each item, its key in by_title, or a unique key if the catalog has an id for it.
        word_guard: tells typos from other words.
    """

    def __init__(self, catalog: Catalog, mode: str, year_tolerance: int, fuzzy_cutoff: float):
        self.catalog = catalog
        self.year_tolerance = year_tolerance
        self.fuzzy_cutoff = fuzzy_cutoff
        is_fuzzy = mode in FUZZY
        titles = list(catalog.titles) if mode == "reference" else [normalise(title) for title in catalog.titles]
        names = [*zip(range(len(catalog)), catalog.titles, titles, strict=True)]
        if mode != "reference":
            names += _list_aliases(catalog)
        # Computed once and held: the cache of `forms` is smaller than a large catalog.
        forms_N = [forms(name) for _, name, _ in names] if is_fuzzy else []
        item_titles = titles
        if is_fuzzy and catalog.dated:
            item_titles = [name_forms.spelling or title for name_forms, title in zip(forms_N, titles, strict=False)]
        self.items = catalog.first_rows(item_titles)
        self.rows = _group_rows(self.items)
        self.keys = _compute_item_keys(catalog, titles)
        self.by_title: dict[str, list[int]] = {}
        self.by_folded: dict[str, list[int]] = {}
        self.by_spelling: dict[str, list[int]] = {}
        # (form, year) -> the only item that has it, or AMBIGUOUS
        self._by_letters: dict[tuple[str, int], int] = {}
        self._by_short_form: dict[tuple[str, int], int] = {}
        self._blocks = TitleBlocks()
        self.word_guard = WordGuard(
            {word for name_forms in forms_N for word in name_forms.folded.split()}, fuzzy_cutoff
        )
        for number, (row, name, key) in enumerate(names):
            year = catalog.years[row]
            if year is not None:
                self.by_title.setdefault(key, []).append(row)
                if is_fuzzy:
                    self._index_folded(row, year, name, forms_N[number])
        self._blocks.split_large()

    def find_nearest_year(self, rows: Sequence[int], year: int) -> int:
        """Return the row with the nearest year within the tolerance, the earlier one on a tie; -1 for none."""
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
        """Return the item that all of these rows are; -1 for none, AMBIGUOUS for several."""
        return _find_unique({self.items[row] for row in rows})

    def find_by_spelling(self, title: str, year: int) -> int:
        """Return the row of a folded title in the nearest year; with another article, the only one in the same year.

        Args:
            title: a title as it is written.
            year: its year.

        Returns:
            The row; -1 for none, AMBIGUOUS for several items.
        """
        row = self.find_nearest_year(self.by_spelling.get(forms(title).spelling, ()), year)
        return row if row >= 0 else self.unique_in_year(fold(title), year)

    def unique_in_year(self, folded: str, year: int) -> int:
        """Return the only item with this folded title in exactly this year; -1 for none, AMBIGUOUS for several."""
        rows = self.by_folded.get(folded)
        return self.unique_item(row for row in rows if self.catalog.years[row] == year) if rows else -1

    def find_by_letters(self, title: str, year: int) -> int:
        """Return the item with the same letters in this year, ignoring spaces (Blow-Up, Th eMatrix).

        One typo in an article or in a number word, which similarity does not cover, is undone (Teh Matrix, Sevne).

        Returns:
            The item; -1 for none, AMBIGUOUS for several.
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
        """Return the item of this year whose title has the same parts, or more, or fewer; -1 for none, AMBIGUOUS."""
        parts = fold_parts(title)
        items = {self._by_short_form.get((form, year), -1) for form in {fold(title), " ".join(parts)}}
        items.update(self.unique_in_year(form, year) for form in make_short_forms(parts))
        items.discard(-1)
        return _find_unique(items)

    def _index_folded(self, row: int, year: int, name: str, name_forms: Forms) -> None:
        folded = name_forms.folded
        if not folded:
            return
        self.by_folded.setdefault(folded, []).append(row)
        self.by_spelling.setdefault(name_forms.spelling, []).append(row)
        self._claim(self._by_letters, name_forms.letters, year, row)
        if self.catalog.dated and len(split_parts(name)) > 1:
            for form in make_short_forms(fold_parts(name)):
                self._claim(self._by_short_form, form, year, row)
        if len(folded) < SHORTEST_MISSPELT:
            return
        tolerance = min(self.year_tolerance, NEAR_YEARS) if self.catalog.dated else 0
        for shift in range(-tolerance, tolerance + 1):
            is_near = shift != 0 or not self.catalog.dated  # equal years are evidence, absent ones are not
            guard = self._make_guard(numbers(folded), name_forms.article, is_near)
            self._blocks.add(year + shift, is_near, guard, folded, row)

    def _make_guard(self, title_numbers: tuple[int, ...], article: str, is_near: bool) -> tuple:
        """Return what must be equal in titles that are compared: numbers and, in nearby years, the article."""
        return (*title_numbers, article) if is_near and self.catalog.dated else title_numbers

    def _claim(self, items: dict[tuple[str, int], int], form: str, year: int, row: int) -> None:
        if items.setdefault((form, year), self.items[row]) != self.items[row]:
            items[form, year] = AMBIGUOUS

    def find_most_similar(self, title: str, year: int) -> int:
        """Return the catalog row with the highest similarity of at least the cutoff, -1 for none."""
        article, folded, _ = forms(title)
        if len(folded) < SHORTEST_MISSPELT - 1:  # a letter may be missing
            return -1
        title_numbers = numbers(folded)
        best: Candidate = (-self.fuzzy_cutoff, NEAR_YEARS + 1, -1)
        for is_near in (False, True):
            query = make_compared_text(folded, is_near)
            guard = self._make_guard(title_numbers, article, is_near)
            for block in self._blocks.find(year, is_near, guard, folded):
                best = self._find_best_in_block(best, block, query, folded, year)
        return best[2]

    def _find_best_in_block(self, best: Candidate, block: Block, query: str, folded: str, year: int) -> Candidate:
        """Return the best title in a block if it is better than the best so far."""
        matches = process.extract(query, block.texts, scorer=fuzz.ratio, score_cutoff=-best[0], limit=None)
        for text, similarity, index in matches:
            row = block.rows[index]
            years_apart = abs(self.catalog.years[row] - year)  # type: ignore[operator]  # rows in blocks have years
            candidate = (-similarity, years_apart, row)
            if candidate < best and not self.word_guard.has_other_word(
                folded, text.removesuffix(SAME_YEAR), years_apart > 0
            ):
                best = candidate
        return best


def _find_unique(items: set[int]) -> int:
    """Return the only item; -1 for none, AMBIGUOUS for several."""
    if len(items) > 1:
        return AMBIGUOUS
    return items.pop() if items else -1


def _group_rows(items: Sequence[int]) -> dict[int, list[int]]:
    """Return the rows of each item that has several."""
    rows: dict[int, list[int]] = {}
    for row, first in enumerate(items):
        if row != first:
            rows.setdefault(first, [first]).append(row)
    return rows


def _compute_item_keys(catalog: Catalog, titles: Sequence[str]) -> list[str]:
    """Return the key by which each row's item equals others: its id if it has one, else its title."""
    ids = catalog.item_ids
    if ids is None:
        return list(titles)
    return [title if ids[row] is None else f"{ID}{row}" for row, title in enumerate(titles)]


def _list_aliases(catalog: Catalog) -> list[tuple[int, str, str]]:
    """Return (row, alias, normalised alias) for every alias."""
    return [(row, alias, normalise(alias)) for row, aliases in enumerate(catalog.aliases or ()) for alias in aliases]


def _generate_typos(words: Iterable[str]) -> dict[str, str]:
    """Return every misspelling with one wrong letter, or two swapped, and the first word that it can mean."""
    words_by_typo: dict[str, str] = {}
    for word in words:
        for before, after in ((word[:cut], word[cut:]) for cut in range(len(word) + 1)):
            typos = [before + after[1:], before + after[1:2] + after[:1] + after[2:]]
            typos += [before + letter + rest for letter in ascii_lowercase + digits for rest in (after, after[1:])]
            for typo in typos:
                words_by_typo.setdefault(typo, word)
    return words_by_typo


_THE = _generate_typos(["the"]).keys() - {"the"}
_NUMBERS = _generate_typos(NUMBER_WORDS)
