"""Items against catalog, ground truth and seen titles -> relevance per rank.

Two titles are the same item when they resolve to the same catalog title (or, outside the catalog, are the same
normalised title) and their years differ by at most `year_tolerance`. How a title finds its catalog title:

exact      normalised: Unicode NFKC, case-folded, white space collapsed.
fuzzy      exact first. What is left: punctuation, `&`/`and`, leading articles and accents folded, numbers written alike
           (`II`, `two`, `2`), then the most similar catalog title with similarity >= `fuzzy_cutoff`.
reference  the public reference's rule: the very title and year must be in the catalog; see `_match_reference`.

The sequel guard: only titles with the same numbers are ever compared (`Toy Story 2` is never `Toy Story 3`).
On a tie the nearest year, then the catalog's order, wins.

Similarity is rapidfuzz's `fuzz.ratio` of the folded titles, with the years as evidence. A bare ratio of 90 allows one
wrong letter only from ten letters on and finds half of the misspelt titles; so a year that agrees exactly counts as
nine more letters that agree (SAME_YEAR): one wrong letter is then allowed from four letters on, two from eleven. Titles
one year apart need the bare ratio; each further year counts as one more wrong letter (The Outsider (1981) is not The
Outsiders (1983)). Measured with 1-2 random typos against the Reddit-v2 catalog this finds 88 % (bare ratio 56 %,
Jaro-Winkler 77 %, WRatio 59 %) and matches 0.7 % of ReDial's titles that are not in it, mostly other spellings of the
same film (bare ratio 0.9 %, Jaro-Winkler 5 %, WRatio 11 %).

Where the catalog has no years (Catalog.dated is false), all years are equal and say nothing: similarity is the bare
ratio, and a line is a title from end to end; a year written behind a title that is not found is taken off.

Search is blocked, which keeps it sub-linear in the catalog: only titles with the same year and the same first or last
letter, or a year nearby and the same first or last two letters, are compared; where that leaves more than LARGE_BLOCK
titles (catalogs of some 100,000), letters are added. What this loses are titles with typos at both ends.
`benchmarks/bench_matching.py` measures what is found, what is found wrongly, and the time.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from rapidfuzz import fuzz, process

from convrec.errors import UserError
from convrec.lists.catalog import Catalog
from convrec.lists.ranks import NO_YEAR, Item, format_item, parse_item
from convrec.lists.titles import CACHE_SIZE, fold, normalise, numbers

MODES = ("fuzzy", "exact", "reference")
SAME_YEAR = "#" * 9
SHORTEST_MISSPELT = 4
SIDES = ("<", ">")  # the first and the last letters
FIRST_LETTERS = (1, 2)  # of the same year, of a year nearby
LARGE_BLOCK, LONGEST_END = 256, 6  # titles; letters
FOLDED = "\0"  # marks a folded key among normalised ones

_YEAR_BEHIND = re.compile(r"\(\d{4}\)$")


class MatchResult(NamedTuple):
    """One entry a rank in every list.

    relevance: 1 where the rank is a hit. catalog_index: row of the catalog, -1 for none. in_catalog, duplicate (the
    item stands at an earlier rank), seen (the conversation named its title), parsed. All false where the line did not
    parse.
    """

    relevance: list[int]
    in_catalog: list[bool]
    duplicate: list[bool]
    seen: list[bool]
    catalog_index: list[int]
    parsed: list[bool]


class Identity(NamedTuple):
    """What a title with a year stands for: its catalog row (-1 for none) and the key by which titles are equal."""

    index: int  # type: ignore[assignment]  # tuple.index is not needed here
    key: str


_Found = tuple[int, str, int]  # what a line stands for: its identity's catalog row and key, and its year
_NOT_AN_ITEM: _Found = (-1, "\n", NO_YEAR)  # no title's key has a line break


class Matcher:
    """An index over one catalog, built once and then read only; safe to share between threads."""

    def __init__(self, catalog: Catalog, mode: str = "fuzzy", year_tolerance: int = 2, fuzzy_cutoff: float = 90):
        if mode not in MODES:
            raise ValueError(f"unknown matching {mode!r}: one of {', '.join(MODES)}")
        if year_tolerance < 0 or not 0 < fuzzy_cutoff <= 100:
            raise ValueError(
                f"year_tolerance {year_tolerance} must be >= 0 and fuzzy_cutoff {fuzzy_cutoff} in (0, 100]"
            )
        if mode == "reference" and not catalog.dated:
            raise UserError("the catalog has no years, which matching `reference` needs: use `fuzzy` or `exact`")
        self.catalog, self.mode = catalog, mode
        self.year_tolerance, self.fuzzy_cutoff = year_tolerance, fuzzy_cutoff
        # title -> rows; by_title is keyed by the key of the mode (the title itself in reference mode).
        self._by_title: dict[str, list[int]] = {}
        self._by_folded: dict[str, list[int]] = {}
        # (year searched for, whether theirs is another, numbers, first or last letters) -> rows, folded titles; None
        # for a block that was too large: there is one for each of its next letters
        self._blocks: dict[tuple, tuple[list[int], list[str]] | None] = {}
        self._keys = [title if mode == "reference" else normalise(title) for title in catalog.titles]
        for row, year in enumerate(catalog.years):
            if year is not None:
                self._by_title.setdefault(self._keys[row], []).append(row)
                if mode == "fuzzy":
                    self._index_folded(row, year, fold(catalog.titles[row]))
        self._split_blocks()
        # Per instance: lru_cache is one C call when an item was met before, and locks for itself.
        self.identify = lru_cache(maxsize=CACHE_SIZE)(self._identify)
        self._read = lru_cache(maxsize=CACHE_SIZE)(self._read_line)
        self._seen_key = lru_cache(maxsize=CACHE_SIZE)(self._make_seen_key)

    def meet_catalog(self) -> "Matcher":
        """Parse and look up each item of the catalog as a response writes it: most lines of a response are one of them,
        and what was met before costs a look-up. Some 5 µs an item; nothing for catalogs that the caches do not hold."""
        if len(self.catalog) <= CACHE_SIZE // 2:
            for title, year in zip(self.catalog.titles, self.catalog.years, strict=True):
                if year is not None:
                    self._read(format_item(title, year))
                    self.identify(title, year)
        return self

    def match(
        self,
        items: Sequence[Item | None],
        ground_truth: Iterable[tuple[str, object]],
        seen: Iterable[str] | None,
    ) -> MatchResult:
        """Relevance by rank: in the catalog, not seen, not at an earlier rank, and the ground truth holds it.

        Each ground-truth item is hit once, by the first item that is the same; an item takes the ground truth with the
        nearest year. Ground truth whose year is not a number is never hit.
        """
        if self.mode == "reference":
            return self._match_reference(items, ground_truth, seen)
        found = [_NOT_AN_ITEM if item is None else (*self.identify(*item), item.year) for item in items]
        return self._match(found, ground_truth, seen)

    def match_lines(
        self, lines: Iterable[str], ground_truth: Iterable[tuple[str, object]], seen: Iterable[str] | None
    ) -> MatchResult:
        """`match` of the parsed lines, in half the time: a line that was met before is one look-up."""
        if self.mode == "reference":
            return self._match_reference([parse_item(line) for line in lines], ground_truth, seen)
        return self._match(list(map(self._read, lines)), ground_truth, seen)

    def _match(
        self, found: list[_Found], ground_truth: Iterable[tuple[str, object]], seen: Iterable[str] | None
    ) -> MatchResult:
        truth = [
            (self.identify(title, year).key, year)
            for title, raw_year in ground_truth
            if (year := self.catalog.year_of(raw_year)) is not None
        ]
        seen_keys = {self._seen_key(title) for title in seen} if seen is not None else set()
        fold_seen = any(key[:1] == FOLDED for key in seen_keys)
        # Python looks at single ranks only where sets, which look at all at once, say that there is something to see.
        rows, keys = [row for row, _, _ in found], [key for _, key, _ in found]
        parsed = [one is not _NOT_AN_ITEM for one in found]
        duplicate, was_seen, relevance = [False] * len(found), [False] * len(found), [0] * len(found)
        if len(set(keys)) < len(keys):
            duplicate = _repeats(found)
        if fold_seen or not seen_keys.isdisjoint(keys):
            was_seen = [
                is_item and (key in seen_keys or (fold_seen and FOLDED + fold(key) in seen_keys))
                for is_item, key in zip(parsed, keys, strict=True)
            ]
        truth_keys = {key for key, _ in truth}
        if not truth_keys.isdisjoint(keys):
            for place, (row, key, year) in enumerate(found):
                if row >= 0 and key in truth_keys and not was_seen[place] and not duplicate[place]:
                    relevance[place] = self._take_nearest(truth, key, year)
        return MatchResult(relevance, [row >= 0 for row in rows], duplicate, was_seen, rows, parsed)

    def seen_rows(self, seen: Iterable[str]) -> list[int]:
        """The catalog rows that `match` calls seen when these titles are; not for mode `reference`."""
        keys = {self._seen_key(title) for title in seen}
        found = {
            row
            for key in keys
            for row in (self._by_folded.get(key[1:], ()) if key[:1] == FOLDED else self._by_title.get(key, ()))
        }
        return sorted(found)

    def _take_nearest(self, truth: list[tuple[str, int]], key: str, year: int) -> int:
        """Remove the ground truth with this key and the nearest year within the tolerance; 1 when there was one."""
        distances = [
            (abs(true_year - year), place) for place, (true_key, true_year) in enumerate(truth) if true_key == key
        ]
        if not distances or min(distances)[0] > self.year_tolerance:
            return 0
        del truth[min(distances)[1]]
        return 1

    def _read_line(self, line: str) -> _Found:
        item = parse_item.__wrapped__(line, self.catalog.dated)  # one cache for a line is enough
        return (*self._identify(*item), item.year) if item else _NOT_AN_ITEM

    def _identify(self, title: str, year: int) -> Identity:
        """The catalog row and the key of a title with its year."""
        if self.mode == "reference":
            row = next((r for r in self._by_title.get(title, ()) if self.catalog.years[r] == year), -1)
            return Identity(row, title)
        key = normalise(title)
        row = self._nearest(self._by_title.get(key, ()), year)
        if row < 0 and self.mode == "fuzzy":
            folded = fold(title)
            row = self._nearest(self._by_folded.get(folded, ()), year)
            if row < 0:
                row = self._most_similar(folded, year)
        if row < 0 and not self.catalog.dated and (shorter := _without_year(title)):
            return self._identify(shorter, year)
        return Identity(row, self._keys[row] if row >= 0 else key)

    def _nearest(self, rows: Sequence[int], year: int) -> int:
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
        self._by_folded.setdefault(folded, []).append(row)
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

    def _most_similar(self, folded: str, year: int) -> int:
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
                for title, similarity, place in process.extract(
                    query, titles, scorer=fuzz.ratio, score_cutoff=-best[0], limit=None
                ):
                    apart = abs(years[rows[place]] - year)  # type: ignore[operator]
                    if apart > 1:
                        similarity = fuzz.ratio(query + "#" * (apart - 1), title)
                    best = min(best, (-similarity, apart, rows[place]))
        return best[2]

    def _block(self, year: int, near: bool, guard: tuple, side: str, folded: str) -> tuple[list[int], list[str]] | None:
        for letters in range(FIRST_LETTERS[near], LONGEST_END + 1):
            key = (year, near, guard, _end(side, folded, letters))
            if (block := self._blocks.get(key)) is not None:
                return block
            if key not in self._blocks:
                return None
        return None

    def _make_seen_key(self, title: str) -> str:
        """A seen title has no year (one written all the same is taken off: a title seen is seen in every year). It is
        compared exactly when the catalog has that very title, so that having seen `Mother!` does not exclude `Mother`;
        folded otherwise."""
        key = normalise(title)
        if key not in self._by_title:
            if self.catalog.dated:
                title = item.title if (item := parse_item(title)) else title
            else:
                title = _without_year(title) or title
            key = normalise(title)
        return key if self.mode == "exact" or key in self._by_title else FOLDED + fold(key)

    def _match_reference(
        self, items: Sequence[Item | None], ground_truth: Iterable[tuple[str, object]], seen: Iterable[str] | None
    ) -> MatchResult:
        """The reference's rule, for `preset: reference`: the catalog must hold the very title and year; seen titles are
        compared letter by letter; ground truth by case-folded title, the same year first, then d = 1, 2, ... years
        later before d earlier; repeats count as long as ground truth is left."""
        seen_titles = set(seen) if seen is not None else set()
        left: dict[str, list[int]] = {}
        for title, raw_year in ground_truth:
            year = _integer(raw_year)
            if year is not None:
                left.setdefault(" ".join(title.casefold().split()), []).append(year)
        years_apart = [0] + [sign * d for d in range(1, self.year_tolerance + 1) for sign in (1, -1)]
        result = MatchResult([], [], [], [], [], [])
        earlier: set[Item] = set()
        for item in items:
            row = self.identify(*item).index if item else -1
            is_seen = item is not None and item.title in seen_titles
            hit = 0
            if item and row >= 0 and not is_seen:
                years = left.get(" ".join(item.title.casefold().split()), [])
                year = next((item.year + d for d in years_apart if item.year + d in years), None)
                if year is not None:
                    years.remove(year)
                    hit = 1
            result.relevance.append(hit)
            result.in_catalog.append(row >= 0)
            result.duplicate.append(item in earlier)
            result.seen.append(is_seen)
            result.catalog_index.append(row)
            result.parsed.append(item is not None)
            if item:
                earlier.add(item)
        return result


def _without_year(title: str) -> str | None:
    """The title in front of a year that was written where items have none; None for a title alone."""
    year = _YEAR_BEHIND.search(title)
    return title[: year.start()].rstrip() if year else None


def _repeats(found: Sequence[_Found]) -> list[bool]:
    """Whether an item stands at an earlier rank: the same row of the catalog, outside of it the same title and year."""
    earlier: set[object] = set()
    repeats = []
    for one in found:
        identity = one[0] if one[0] >= 0 else one
        repeats.append(one is not _NOT_AN_ITEM and identity in earlier)
        earlier.add(identity)
    return repeats


def _end(side: str, folded: str, letters: int) -> str:
    """A block's key: so many of the first or of the last letters."""
    return "<" + folded[:letters] if side == "<" else ">" + folded[-letters:]


def _integer(value: object) -> int | None:
    """As the reference reads a year: "1995" but not "1995.0"."""
    try:
        return int(str(value))
    except ValueError:
        return None
