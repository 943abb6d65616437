"""An index of a catalog's titles: by normalised title, by folded title, by the forms that people write, by similarity.

**Similarity** is rapidfuzz's `fuzz.ratio` of the folded titles, 0 to 100, with the years as evidence; `fuzzy_cutoff` is
the least similarity, not the least ratio. A bare ratio of 90 allows one wrong letter only from ten letters on and finds
half of the misspelt titles. So a year that agrees exactly counts as nine more letters that agree (SAME_YEAR): at 90,
one wrong letter is then allowed from four letters on, two from eleven; of letters too many or too few one more.
Titles one year apart need the bare ratio; further apart none is similar (The Outsider (1981) is not The Outsiders
(1983)).

Four guards refuse what is similar and another title:
- The sequel guard: only titles with the same numbers are ever compared (`Toy Story 2` is never `Toy Story 3`).
- The word guard: a real other word is no typo (`Before Sunset (1995)` is not Before Sunrise). A word is real when it is
  English (`is_english`), when a title of the catalog has it, or when only an ending tells it from one that no word list
  knows. One wrong letter in LETTERS_A_TYPO is a typo all the same (`The Silence of the Lamb`), where the years agree.
  A word left out makes another title, too (`Live Free or Die`). Articles and `and` come and go, and so does a space
  (`Chain Saw`, `Chainsaw`).
- The size guard: titles with different sizes or single letters are two (`T-Shirt, black, S`, `T-Shirt, black, M`).
- A leading article differs in the same year only: Room (2005) is not The Room (2003).

On a tie the nearest year, then the catalog's order, wins. notes/data.md has what was measured of the guards
and of other rules.

Where the catalog has no years (Catalog.dated is false), all years are equal and say nothing: similarity is the bare
ratio, and a line is a title from end to end; a year written behind a title that is not found is taken off.

Search is blocked, which keeps it sub-linear in the catalog: only titles with the same year and the same first or last
letter, or a year nearby and the same first or last two letters, are compared; where that leaves more than LARGE_BLOCK
titles (catalogs of some 100,000), letters are added. What this loses are titles with typos at both ends.
`benchmarks/bench_matching.py` measures what is found, what is found wrongly, and the time.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from string import ascii_lowercase, digits

from rapidfuzz import fuzz, process
from rapidfuzz.distance import OSA

from convrec.lists.catalog import Catalog
from convrec.lists.english import is_english
from convrec.lists.titles import LISTED, NUMBER_WORDS, fold, forms, normalise, numbers, parts_of, short_forms

FUZZY = frozenset({"fuzzy", "lenient"})
ID = "\1"  # marks a key that is no title
SAME_YEAR = "#" * 9
SHORTEST_MISSPELT = 4
NEAR_YEARS = 1  # apart, of titles that are not spelt alike
SIDES = ("<", ">")  # the first and the last letters
FIRST_LETTERS = (1, 2)  # of the same year, of a year nearby
LARGE_BLOCK, LONGEST_END = 256, 6  # titles; letters
LETTERS_A_TYPO = 20
SEVERAL = -2  # items: nobody says which
UNSTABLE_WORDS, SHORT_WORDS, NOT_THE, ENDINGS = map(frozenset, LISTED["guard"].values())
SIZES = frozenset(LISTED["sizes"])
LETTER_WORDS = frozenset({"a", "i"})
ORDINALS = frozenset(LISTED["ordinals"].values())


class TitleIndex:
    """Where the titles of one catalog stand; read only once it is built.

    by_title, by_spelling, by_folded: normalised (in mode `reference` the very), folded with its article, and folded
    title -> rows of the catalog, those of its other titles (Catalog.aliases) last.
    items: of each row, the first row of the same item (Catalog.first_rows); in mode `fuzzy` by folded titles, but for
    catalogs without years, where no year agrees. rows: of items with several rows, these rows. keys: of the first row
    of each item, its key in by_title, or one that is the item's alone where the catalog has an id for it.
    """

    def __init__(self, catalog: Catalog, mode: str, year_tolerance: int, fuzzy_cutoff: float):
        self.catalog, self.year_tolerance, self.fuzzy_cutoff = catalog, year_tolerance, fuzzy_cutoff
        self.by_title: dict[str, list[int]] = {}
        self.by_folded: dict[str, list[int]] = {}
        self.by_spelling: dict[str, list[int]] = {}
        # (form, year) -> the item that alone has it, or SEVERAL
        self._by_letters: dict[tuple[str, int], int] = {}
        self._by_short_form: dict[tuple[str, int], int] = {}
        # (year searched for, whether theirs is another, numbers, first or last letters) -> rows, folded titles; None
        # for a block that was too large: there is one for each of its next letters
        self._blocks: dict[tuple, tuple[list[int], list[str]] | None] = {}
        fuzzy = mode in FUZZY
        titles = [title if mode == "reference" else normalise(title) for title in catalog.titles]
        self.items = catalog.first_rows(catalog.spelling_forms() if fuzzy and catalog.dated else titles)
        self.rows: dict[int, list[int]] = {}
        for row, first in enumerate(self.items):
            if row != first:
                self.rows.setdefault(first, [first]).append(row)
        ids = catalog.item_ids
        self.keys = [f"{ID}{row}" if ids and ids[row] is not None else title for row, title in enumerate(titles)]
        names = list(zip(range(len(catalog)), catalog.titles, titles, strict=True))
        if mode != "reference":
            others = enumerate(catalog.aliases or ())
            names += [(row, alias, normalise(alias)) for row, aliases in others for alias in aliases]
        self._words = {word for _, name, _ in names for word in fold(name).split()} if fuzzy else set()
        for row, name, key in names:
            if (year := catalog.years[row]) is not None:
                self.by_title.setdefault(key, []).append(row)
                if fuzzy:
                    self._index_folded(row, year, name)
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

    def only(self, rows: Iterable[int]) -> int:
        """The item that all of these rows are; -1 for none, SEVERAL."""
        items = {self.items[row] for row in rows}
        return items.pop() if len(items) == 1 else SEVERAL if items else -1

    def spelt(self, title: str, year: int) -> int:
        """The row of a folded title, in the nearest year; with another article the only one of the same year."""
        row = self.nearest(self.by_spelling.get(forms(title).spelling, ()), year)
        return row if row >= 0 else self.of_year(fold(title), year)

    def of_year(self, folded: str, year: int) -> int:
        """The item that alone has this folded title in this very year; -1 for none, SEVERAL."""
        rows = self.by_folded.get(folded)
        return self.only(row for row in rows if self.catalog.years[row] == year) if rows else -1

    def by_letters(self, title: str, year: int) -> int:
        """The item of the same letters in this year, spaces aside (Blow-Up, Th eMatrix); -1 for none, SEVERAL.

        One typo in an article or in a word for a number, which no similarity reads, is undone (Teh Matrix, Sevne).
        """
        found = self._by_letters.get((forms(title).letters, year), -1)
        if found == -1:
            words = forms(title).spelling.split()
            undone = [self._undo_typo(word, index) for index, word in enumerate(words)] if len(words) > 1 else words
            if undone != words and (rows := self.by_spelling.get(" ".join(undone))):
                found = self.only(row for row in rows if self.catalog.years[row] == year)
        return found

    def _undo_typo(self, word: str, index: int) -> str:
        if index == 0 and word in _THE and word not in NOT_THE:
            return "the"
        return NUMBER_WORDS[_NUMBERS[word]] if word in _NUMBERS and not self._is_word(word) else word

    def by_short_form(self, title: str, year: int) -> int:
        """The item of this year with whose title this one differs by parts left out or added; -1 for none, SEVERAL."""
        parts = parts_of(title)
        found = {self._by_short_form.get((form, year), -1) for form in {fold(title), " ".join(parts)}}
        found.update(self.of_year(form, year) for form in short_forms(parts))
        found.discard(-1)
        return found.pop() if len(found) == 1 else SEVERAL if found else -1

    def _index_folded(self, row: int, year: int, name: str) -> None:
        written = forms(name)
        folded = written.folded
        if not folded:
            return
        self.by_folded.setdefault(folded, []).append(row)
        self.by_spelling.setdefault(written.spelling, []).append(row)
        self._claim(self._by_letters, written.letters, year, row)
        if self.catalog.dated:
            for form in short_forms(parts_of(name)):
                self._claim(self._by_short_form, form, year, row)
        if len(folded) < SHORTEST_MISSPELT:
            return
        guard = numbers(folded)
        tolerance = min(self.year_tolerance, NEAR_YEARS) if self.catalog.dated else 0
        for shift in range(-tolerance, tolerance + 1):
            near = shift != 0 or not self.catalog.dated  # equal years are evidence, absent ones are not
            block_guard = (*guard, written.article) if shift else guard
            for side in SIDES:
                end = _end(side, folded, FIRST_LETTERS[near])
                self._add((year + shift, near, block_guard, end), row, folded if near else folded + SAME_YEAR)

    def _claim(self, items: dict[tuple[str, int], int], form: str, year: int, row: int) -> None:
        if items.setdefault((form, year), self.items[row]) != self.items[row]:
            items[form, year] = SEVERAL

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

    def most_similar(self, title: str, year: int) -> int:
        """The catalog row with the highest similarity of at least the cutoff; -1 for none."""
        (article, folded, _), years = forms(title), self.catalog.years
        if len(folded) < SHORTEST_MISSPELT - 1:  # a letter may be missing
            return -1
        its_numbers = numbers(folded)
        best = (-self.fuzzy_cutoff, NEAR_YEARS + 1, -1)  # (-similarity, years apart, row): the least wins
        for near in (False, True):
            query = folded if near else folded + SAME_YEAR
            guard = (*its_numbers, article) if near and self.catalog.dated else its_numbers
            for side in SIDES:
                block = self._block(year, near, guard, side, folded)
                if block is None:
                    continue
                rows, titles = block
                for other, similarity, index in process.extract(
                    query, titles, scorer=fuzz.ratio, score_cutoff=-best[0], limit=None
                ):
                    apart = abs(years[rows[index]] - year)  # type: ignore[operator]
                    found = (-similarity, apart, rows[index])
                    if found < best and not self._has_other_word(folded, other.removesuffix(SAME_YEAR), apart > 0):
                        best = found
        return best[2]

    def _has_other_word(self, written: str, title: str, years_differ: bool) -> bool:
        """The word guard: whether two similar folded titles differ by a word and not by its spelling."""
        joined = written.replace(" ", ""), title.replace(" ", "")
        if joined[0] == joined[1]:
            return False
        if _differ_by_size(written, title):
            return True
        if self._has_more_typos(written, title, years_differ):
            return True
        ours, theirs = set(written.split()), set(title.split())
        extra, missing = ours - theirs - UNSTABLE_WORDS, theirs - ours - UNSTABLE_WORDS
        if not extra:
            return bool(missing)
        endings = [joined, *((word, other) for word in extra for other in missing)]
        if years_differ:  # a typo in the title and one in the year: what may be a word is one
            return any(map(self._is_word, extra)) or any(_differ_by_ending(*words) for words in endings)
        # a title of one word is nearer to others
        is_word = partial(self._is_word, rare=" " not in written)
        if any(map(is_word, extra)) or any(
            _differ_by_ending(*words) and self._is_name(min(words, key=len)) for words in endings
        ):
            return LETTERS_A_TYPO * OSA.distance(written, title) > max(len(written), len(title))
        return False

    def _has_more_typos(self, written: str, title: str, years_differ: bool) -> bool:
        """The ratio counts a letter too many half of a wrong one: one more is a typo, not three (Animatrix). Two need
        ten letters, in the same year seven (Sandow is not Shadow)."""
        typos = OSA.distance(written, title)
        if typos > 1:  # articles and `and` are none, nor is a space behind `The` that became a letter
            cores = (" ".join(word for word in text.split() if word not in UNSTABLE_WORDS) for text in (written, title))
            typos = min(typos, OSA.distance(*cores), OSA.distance(written, f"the {title}"))
        letters = max(len(written), len(title)) + (0 if years_differ else len(SAME_YEAR) // 3)
        return 100 * (typos - 1) > (100 - self.fuzzy_cutoff) * letters

    def _is_word(self, word: str, rare: bool = False) -> bool:
        if len(word) < 3:
            return word in SHORT_WORDS
        return word in self._words or word in ORDINALS or is_english(word, rare)

    def _is_name(self, word: str) -> bool:
        """A word whose endings no word list knows."""
        return word in self._words and not is_english(word)

    def _block(self, year: int, near: bool, guard: tuple, side: str, folded: str) -> tuple[list[int], list[str]] | None:
        for count in range(FIRST_LETTERS[near], LONGEST_END + 1):
            key = (year, near, guard, _end(side, folded, count))
            if (block := self._blocks.get(key)) is not None:
                return block
            if key not in self._blocks:
                return None
        return None


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


_THE, _NUMBERS = _with_a_typo(["the"]).keys() - {"the"}, _with_a_typo(NUMBER_WORDS)


def _end(side: str, folded: str, letters: int) -> str:
    """A block's key: so many of the first or of the last letters."""
    return "<" + folded[:letters] if side == "<" else ">" + folded[-letters:]


def _differ_by_size(written: str, title: str) -> bool:
    """The size guard: `T-Shirt, black, S` is not M, nor one of no size; a Mass in B Minor is none in C Minor."""
    ours = written.split()
    theirs = title.split()
    extra = set(ours).difference(theirs)
    missing = set(theirs).difference(ours)
    if len(extra) == len(missing) == 1:
        (one,), (other,) = extra, missing
        is_lettered = len(one) == len(other) == 1 and (ours[-1] != theirs[-1] or {one, other}.isdisjoint(LETTER_WORDS))
        return is_lettered or {one, other} <= SIZES
    return ours[:-1] == theirs and (ours[-1] in SIZES or len(ours[-1]) == 1)


def _differ_by_ending(word: str, other: str) -> bool:
    short, long = sorted((word, other), key=len)
    return len(short) > 2 and long.startswith(short) and long[len(short) :] in ENDINGS
