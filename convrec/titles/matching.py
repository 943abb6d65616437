"""Match items against catalog, ground truth and seen titles, and return the relevance per rank.

`Matcher.identify` finds the item for a title with a year as people write it in ground truth and conversations,
`Matcher.identify_line` the item for a line of a list. Two titles are the same item if they resolve to the same item of
the catalog (or, outside the catalog, are the same normalised title) and their years differ by at most `year_tolerance`.
How a title finds its catalog title:

exact      normalised: Unicode NFKC, case-folded, white space collapsed.
fuzzy      exact first. Then punctuation, `&`/`and` and accents folded, numbers and parts unified (`Part II`, `two`,
           `2`), another leading article in the same year; then, for `Title (note)` in exactly the same year, the title
           or the note alone, and the same letters; then the most similar catalog title with similarity >=
           `fuzzy_cutoff` (defined in convrec.titles.index). `identify` alone also accepts a subtitle that was omitted
           or added in exactly the same year, and a title without a year, if only one item of the catalog can be meant.
lenient    fuzzy, and lines are read as `identify` reads them.
reference  the rule of the public code: the exact title and year must be in the catalog; see `_match_reference`.

The sequel guard: only titles with the same numbers are compared (`Toy Story 2` is never `Toy Story 3`). Ties go to the
nearest year, then to the earlier row; if a stage finds several items in one year, none matches.

Several rows of the catalog are one item if they have the same id or, without ids, the same title and year; in mode
`fuzzy` the folded title with its article (`Amelie` and `Amélie`, both 2001, but not Fall and The Fall). The first row
represents the item. Rows with different ids are never the same. Aliases find a row as its own title does.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar

from convrec.base.errors import UserError
from convrec.titles.catalog import Catalog
from convrec.titles.forms import CACHE_SIZE, fold, forms, iter_readings, normalise, strip_label
from convrec.titles.index import FUZZY, TitleIndex
from convrec.titles.item import NO_YEAR, Item, parse_item

FOLDED = "\0"  # marks a folded key among normalised ones
# Defaults of ListSettings.
DEFAULT_MATCHING = "fuzzy"
YEAR_TOLERANCE = 2
FUZZY_CUTOFF = 90
MOST_READINGS = 4  # of a title with labels (`1: `) or trailing years; a looping model writes thousands of them

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_TRAILING_YEAR = re.compile(r"\(\d{4}\)$")


class MatchResult(NamedTuple):
    """The matches of a list: one entry per rank in every field. All are false for a line that did not parse.

    Attributes:
        relevance: 1 for a hit.
        in_catalog: whether the item is in the catalog.
        duplicate: whether the item is also at an earlier rank.
        seen: whether the conversation named its title.
        catalog_index: row of the catalog as in Identity, -1 for none.
    """

    relevance: list[int]
    in_catalog: list[bool]
    duplicate: list[bool]
    seen: list[bool]
    catalog_index: list[int]


class Identity(NamedTuple):
    """The item that a title with a year names.

    Attributes:
        index: the first row of the item in the catalog, -1 for none.
        key: titles are equal if their keys are.
    """

    index: int  # type: ignore[assignment]  # tuple.index is not needed here
    key: str


class Truth(NamedTuple):
    """A relevant item of a row, or the item at a rank.

    Attributes:
        index: as in Identity.
        key: as in Identity.
        year: a hit has a year within the tolerance; None for a relevant item that can never be hit.
    """

    index: int  # type: ignore[assignment]
    key: str
    year: int | None


_NOT_AN_ITEM = Truth(-1, "\n", NO_YEAR)  # no title's key has a line break


class cache_per_instance(Generic[Parameters, Result]):
    """Cache a method's results in an `lru_cache` per instance.

    As with `functools.cached_property`, the cache replaces the method in the instance at the first use: from then on, a
    call with known arguments is a single C call, which is thread-safe. `__wrapped__` is the method without its cache.
    """

    def __init__(self, method: Callable[Concatenate[Any, Parameters], Result]):
        self.method = method
        self.__doc__ = method.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type) -> "_lru_cache_wrapper[Result]":
        cache = lru_cache(maxsize=CACHE_SIZE)(self.method.__get__(instance, owner))
        return instance.__dict__.setdefault(self.name, cache)


class Matcher:
    """Match titles against one catalog. Read-only after construction, so threads can share it.

    Args:
        catalog: the items that can be matched.
        mode: a name in MATCHERS.
        year_tolerance: maximum difference in years between the same item's spellings, at least 0.
        fuzzy_cutoff: minimum similarity of a misspelled title, above 0 and up to 100.

    Raises:
        UserError: the mode is unknown, or needs years that the catalog does not have.
        ValueError: the tolerance or the cutoff is out of range.
    """

    def __init__(
        self,
        catalog: Catalog,
        mode: str = DEFAULT_MATCHING,
        year_tolerance: int = YEAR_TOLERANCE,
        fuzzy_cutoff: float = FUZZY_CUTOFF,
    ):
        needs_years = _get_matching(mode).needs_years
        if year_tolerance < 0 or not 0 < fuzzy_cutoff <= 100:
            raise ValueError(
                f"year_tolerance {year_tolerance} must be >= 0 and fuzzy_cutoff {fuzzy_cutoff} in (0, 100]"
            )
        if needs_years and not catalog.dated:
            raise UserError(
                "matching.missing-years",
                f"matching `{mode}` needs years, but the catalog has none. Use `fuzzy` or `exact`",
            )
        self.catalog = catalog
        self.mode = mode
        self.year_tolerance = year_tolerance
        self.fuzzy_cutoff = fuzzy_cutoff
        self.index = TitleIndex(catalog, mode, year_tolerance, fuzzy_cutoff)

    def find_relevant_rows(self, truth: Iterable[tuple[str, object]]) -> list[int]:
        """Return the catalog rows of a ground truth's items, each once; items outside the catalog are skipped.

        Args:
            truth: (title, year) pairs.
        """
        return [row for row in dict.fromkeys(self.wanted(*pair).index for pair in truth) if row >= 0]

    def match(
        self, items: Sequence[Item | None], ground_truth: Iterable[tuple[str, object]], seen: Iterable[str] | None
    ) -> MatchResult:
        """Match items: a hit is in the catalog and in the ground truth, not seen, and not at an earlier rank.

        Each ground-truth item is hit once, by the first equal item; an item takes the ground truth with the nearest
        year.

        Args:
            items: by rank; None for a line that did not parse.
            ground_truth: (title, year) pairs; see `wanted` for years of other kinds.
            seen: titles that the conversation named; None for none.
        """
        if self.mode == "reference":
            return self._match_reference(items, ground_truth, seen)
        return self._match(list(map(self._find_item, items)), ground_truth, seen)

    def match_lines(
        self, lines: Iterable[str], ground_truth: Iterable[tuple[str, object]], seen: Iterable[str] | None
    ) -> MatchResult:
        """Parse and match the lines of a list; each known line is a single look-up.

        Args:
            lines: by rank, as `split_lines` returns them.
            ground_truth: as in `match`.
            seen: as in `match`.
        """
        if self.mode == "reference":
            return self._match_reference(list(map(self.read_line, lines)), ground_truth, seen)
        return self._match(list(map(self._find_line, lines)), ground_truth, seen)

    def _match(
        self, ranks: list[Truth], ground_truth: Iterable[tuple[str, object]], seen: Iterable[str] | None
    ) -> MatchResult:
        # For speed, sets first test all ranks at once; Python visits single ranks only if there is something to find.
        rows = [row for row, _, _ in ranks]
        keys = [key for _, key, _ in ranks]
        duplicate = _find_repeats(ranks) if len(set(keys)) < len(keys) else [False] * len(ranks)
        is_seen = self._find_seen_ranks(ranks, rows, keys, () if seen is None else seen)
        relevance = [0] * len(ranks)
        truth = [(truth.key, truth.year) for truth in self.truths(ground_truth) if truth.year is not None]
        truth_keys = {key for key, _ in truth}
        if not truth_keys.isdisjoint(keys):
            for rank, (row, key, year) in enumerate(ranks):
                if row >= 0 and key in truth_keys and not is_seen[rank] and not duplicate[rank]:
                    relevance[rank] = self._take_nearest(truth, key, year)  # type: ignore[arg-type]  # a rank has one
        return MatchResult(
            relevance=relevance,
            in_catalog=[row >= 0 for row in rows],
            duplicate=duplicate,
            seen=is_seen,
            catalog_index=rows,
        )

    def _find_seen_ranks(
        self, ranks: Sequence[Truth], rows: Sequence[int], keys: Sequence[str], seen: Iterable[str]
    ) -> list[bool]:
        """Return whether each rank's item is one of the seen titles; rows and keys are those of `ranks`."""
        seen_items: set[int] = set()
        seen_keys: set[str] = set()
        for title in seen:
            items, key = self._find_seen(title)
            seen_items.update(items)
            seen_keys.add(key)
        has_folded_key = any(key[:1] == FOLDED for key in seen_keys)
        if not has_folded_key and seen_items.isdisjoint(rows) and seen_keys.isdisjoint(keys):
            return [False] * len(ranks)
        return [
            row in seen_items
            or (row < 0 and key != _NOT_AN_ITEM.key and (key in seen_keys or FOLDED + fold(key) in seen_keys))
            for row, key, _ in ranks
        ]

    @cache_per_instance
    def _find_item(self, item: Item | None) -> Truth:
        """Identify the item at a rank."""
        if item is None:
            return _NOT_AN_ITEM
        row, key = self.identify_line.__wrapped__(*item)
        # NO_YEAR: a line without a year, which matching `lenient` accepts, or a catalog without years.
        return Truth(row, key, item.year or (self.catalog.years[row] if row >= 0 else None) or NO_YEAR)

    @cache_per_instance
    def _find_line(self, line: str) -> Truth:
        return self._find_item.__wrapped__(self.read_line.__wrapped__(line))  # one cache per line is enough

    def truths(self, ground_truth: Iterable[tuple[str, object]]) -> list[Truth]:
        """Return the relevant items of a row, each once, however often and however spelled.

        Matching `reference` counts every entry as an item.
        """
        truths = [self.wanted(*pair) for pair in ground_truth]
        if self.mode == "reference":
            return truths
        distinct: dict[object, Truth] = {}
        for truth in truths:
            distinct.setdefault(truth.index if truth.index >= 0 else truth, truth)
        return list(distinct.values())

    @cache_per_instance
    def wanted(self, title: str, raw_year: object) -> Truth:
        """Identify an entry of ground truth. Without a year, it is the catalog's only item of that name.

        Args:
            title: the entry's title.
            raw_year: its year as data has it; None and anything that is not a whole number count as no year.

        Returns:
            The item: index -1 if the catalog lacks it, and year None if it also has no year, so that nothing hits it.
        """
        year = self.catalog.normalise_year(raw_year)
        row, key = self.identify(title, NO_YEAR if year is None else year)
        return Truth(row, key, year or self.catalog.years[row] if row >= 0 else year)

    @cache_per_instance
    def read_line(self, line: str) -> Item | None:
        """Parse a line of a list.

        Matching `lenient` also accepts a title without a year if the catalog has one item of that name.

        Args:
            line: the line, without its delimiter.

        Returns:
            The item; None if the line is not one.
        """
        item = parse_item.__wrapped__(line, self.catalog.dated)  # one cache per line is enough
        if item is None and self.mode == "lenient":
            title = parse_item(line, dated=False)
            item = title if title and self.identify(*title).index >= 0 else None
        return item

    def seen_rows(self, seen: Iterable[str]) -> list[int]:
        """Return the catalog rows that count as seen, given the seen titles."""
        if self.mode == "reference":
            return sorted(row for title in set(seen) for row in self.index.by_title.get(title, ()))
        items = {item for title in seen for item in self._find_seen(title)[0]}
        return sorted(row for item in items for row in self.index.rows.get(item, (item,)))

    def _take_nearest(self, truth: list[tuple[str, int]], key: str, year: int) -> int:
        """Remove the ground truth with this key and the nearest year within the tolerance; 1 if there was one."""
        distances = [
            (abs(true_year - year), index) for index, (true_key, true_year) in enumerate(truth) if true_key == key
        ]
        if not distances or min(distances)[0] > self.year_tolerance:
            return 0
        del truth[min(distances)[1]]
        return 1

    @property
    def identify_line(self) -> "_lru_cache_wrapper[Identity]":
        """The method that identifies lines of a list: `identify` in mode `lenient`, else `identify_written`."""
        return self.identify if self.mode == "lenient" else self.identify_written

    @cache_per_instance
    def identify_written(self, title: str, year: int) -> Identity:
        """Identify a title with its year, without guessing omitted parts.

        Args:
            title: a title without decoration.
            year: its year, NO_YEAR for none.

        Returns:
            The item; if the catalog lacks it, index -1 and as key the title in the form that is compared.
        """
        if self.mode == "reference":
            row = next((r for r in self.index.by_title.get(title, ()) if self.catalog.years[r] == year), -1)
            return Identity(row, title)
        key = ""
        for shortened in self._iter_shortened(title):
            key = normalise(shortened)
            row = self.index.find_nearest_year(self.index.by_title.get(key, ()), year)
            if row < 0 and self.mode in FUZZY:
                row = self._find_other_spelling(shortened, year)
            if row >= 0:
                first = self.index.items[row]
                return Identity(first, self.index.keys[first])
        return Identity(-1, key)

    @cache_per_instance
    def identify(self, title: str, year: int) -> Identity:
        """Identify a title with its year as people write it.

        If the catalog lacks the written title, the fuzzy modes return the only item that can be meant.

        Args:
            title: a title without decoration.
            year: its year, NO_YEAR for none.

        Returns:
            The item; index -1 if the catalog lacks it, or if several items can be meant.
        """
        identity = self.identify_written(title, year)
        if identity.index >= 0 or self.mode not in FUZZY or not self.catalog.dated:
            return identity
        for shortened in self._iter_shortened(title):
            row = self._find_only_item(shortened, year)
            if row >= 0:
                return Identity(row, self.index.keys[row])
        return identity

    def _find_only_item(self, title: str, year: int) -> int:
        """Return the only item of a title without a year or with another subtitle; -1 for none, AMBIGUOUS."""
        if year != NO_YEAR:
            return self.index.find_by_short_form(title, year)
        rows = self.index.by_title.get(normalise(title), [])
        return self.index.unique_item(rows or self.index.by_spelling.get(forms(title).spelling, []))

    def _iter_shortened(self, title: str) -> Iterator[str]:
        """Yield the title, then without a leading number or label or a trailing year."""
        for _ in range(MOST_READINGS):
            yield title
            title = strip_label(title) or (not self.catalog.dated and _strip_year(title)) or ""
            if not title:
                return

    def _find_other_spelling(self, title: str, year: int) -> int:
        """Return the catalog row of a title that the catalog does not have letter by letter, -1 for none."""
        row = self.index.find_by_spelling(title, year)
        if row == -1 and self.catalog.dated:
            # A note can name another film of a series, which is rarely of the same year: Twilight (New Moon) (2009).
            rows = (self.index.unique_in_year(fold(reading), year) for reading in iter_readings(title))
            row = next((note_row for note_row in rows if note_row >= 0), -1)
        if row == -1:
            row = self.index.find_by_letters(title, year)
        if row == -1:
            row = self.index.find_most_similar(title, year)
        return max(row, -1)

    @cache_per_instance
    def _find_seen(self, title: str) -> tuple[list[int], str]:
        """Return the first rows of the items that a seen title names, and its key among titles outside the catalog.

        A seen title has no year; one that was written is stripped, because a seen title is seen in every year. If the
        catalog has the exact title, it is compared exactly, so that a seen `Mother!` does not exclude a `Mother` of
        another year; otherwise folded. If it is still not found, it is read with its year, like ground truth.
        """
        by_title = self.index.by_title
        item = None
        key = normalise(title)
        if key not in by_title:
            if self.catalog.dated:
                title = item.title if (item := parse_item(title)) else title
            else:
                title = _strip_year(title) or title
            key = normalise(title)
        rows = by_title.get(key, ())
        if not rows and self.mode in FUZZY:
            folded = fold(key)
            rows = self.index.by_folded.get(folded, ())
            key = FOLDED + folded
            if not rows and item:
                rows = [row] if (row := self.identify(*item).index) >= 0 else []
        return [self.index.items[row] for row in rows], key

    def _match_reference(
        self, items: Sequence[Item | None], ground_truth: Iterable[tuple[str, object]], seen: Iterable[str] | None
    ) -> MatchResult:
        """Match by the reference's rule, for `preset: reference`.

        The catalog must have the exact title and year. Seen titles are compared letter by letter, ground truth by
        case-folded title: the same year first, then for d = 1, 2, ... d years later before d years earlier. Repeats
        count as long as ground truth is left.
        """
        seen_titles = set(seen) if seen is not None else set()
        years_left = _group_years(ground_truth)
        relevance = []
        duplicate = []
        earlier: set[Item | None] = set()
        rows = [self.identify(*item).index if item else -1 for item in items]
        is_seen = [item is not None and item.title in seen_titles for item in items]
        for item, row, is_seen_item in zip(items, rows, is_seen, strict=True):
            is_hit = item is not None and row >= 0 and not is_seen_item and self._take_nearest_year(item, years_left)
            relevance.append(int(is_hit))
            duplicate.append(item is not None and item in earlier)
            earlier.add(item)
        return MatchResult(
            relevance=relevance,
            in_catalog=[row >= 0 for row in rows],
            duplicate=duplicate,
            seen=is_seen,
            catalog_index=rows,
        )

    def _take_nearest_year(self, item: Item, years_left: Mapping[str, list[int]]) -> bool:
        """Remove the relevant item with this title and the nearest year; return whether there was one."""
        years = years_left.get(_casefold(item.title), [])
        for years_apart in range(self.year_tolerance + 1):
            for year in (item.year + years_apart, item.year - years_apart):
                if year in years:
                    years.remove(year)
                    return True
        return False


def _group_years(ground_truth: Iterable[tuple[str, object]]) -> dict[str, list[int]]:
    """Return the years of the relevant items by case-folded title; items without a year are skipped."""
    years: dict[str, list[int]] = {}
    for title, raw_year in ground_truth:
        year = _parse_reference_year(raw_year)
        if year is not None:
            years.setdefault(_casefold(title), []).append(year)
    return years


def _casefold(title: str) -> str:
    return " ".join(title.casefold().split())


@dataclass(frozen=True)
class Matching:
    """A value of `convrec.matching`.

    Attributes:
        matcher: `Matcher` or a subclass of it, which gets the value as its mode.
        help: a description for users.
        needs_years: whether the catalog must have years.
    """

    matcher: type[Matcher]
    help: str
    needs_years: bool = False


MATCHERS: dict[str, Matching] = {
    "fuzzy": Matching(Matcher, "exact, then folded titles, then the most similar title in the catalog"),
    "lenient": Matching(Matcher, "fuzzy, and lines may lack the subtitle or the year, like ground truth"),
    "exact": Matching(Matcher, "normalised titles"),
    "reference": Matching(Matcher, "the rule of the public code", needs_years=True),
}


def _get_matching(name: str) -> Matching:
    if name not in MATCHERS:
        raise UserError("matching.unknown-name", f"unknown matching {name!r}; use one of {', '.join(MATCHERS)}")
    return MATCHERS[name]


def make_named_matcher(name: str, catalog: Catalog, year_tolerance: int, fuzzy_cutoff: float) -> Matcher:
    """Return the matcher with this name for a catalog.

    Args:
        name: a key of MATCHERS.
        catalog: the catalog.
        year_tolerance: as in `Matcher`.
        fuzzy_cutoff: as in `Matcher`.

    Raises:
        UserError: the name is unknown, or the matcher needs years that the catalog does not have.
    """
    return _get_matching(name).matcher(catalog, name, year_tolerance, fuzzy_cutoff)


def _strip_year(title: str) -> str | None:
    """Return the title before a trailing year, written although items have none; None if there is no year."""
    year = _TRAILING_YEAR.search(title)
    return title[: year.start()].rstrip() if year else None


def _find_repeats(ranks: Sequence[Truth]) -> list[bool]:
    """Return whether each rank's item is at an earlier rank: the same row or, outside the catalog, title and year."""
    earlier: set[object] = set()
    repeats = []
    for truth in ranks:
        identity = truth.index if truth.index >= 0 else truth
        repeats.append(identity in earlier and truth is not _NOT_AN_ITEM)
        earlier.add(identity)
    return repeats


def _parse_reference_year(value: object) -> int | None:
    """Parse a year as the reference does: "1995" but not "1995.0"."""
    try:
        return int(str(value))
    except ValueError:
        return None
