"""Items against catalog, ground truth and seen titles -> relevance per rank.

`Matcher.identify` says which item a title with a year is, as people write it in ground truth and conversations, and
`Matcher.identify_line` what a list's line is. Two titles are the same item when they resolve to the same item of the
catalog (or, outside the catalog, are the same normalised title) and their years differ by at most `year_tolerance`. How
a title finds its catalog title:

exact      normalised: Unicode NFKC, case-folded, white space collapsed.
fuzzy      exact first. What is left: punctuation, `&`/`and` and accents folded, numbers and parts written alike (`Part
           II`, `two`, `2`), a leading article in the same year; then, of `Title (note)` and the very same year, the
           title or the note alone, and the same letters; then the most similar catalog title with similarity >=
           `fuzzy_cutoff` (what that is: `title_index`). `identify` alone reads more than is written, where one item of
           the catalog is meant and no other: a subtitle left out or added in the very same year, a title with no year.
lenient    fuzzy, and lines are read as `identify` reads.
reference  the public reference's rule: the very title and year must be in the catalog; see `_match_reference`.

The sequel guard: only titles with the same numbers are ever compared (`Toy Story 2` is never `Toy Story 3`).
On a tie the nearest year, then the catalog's order, wins; where a stage could mean several items of one year, none.

Several rows of the catalog are one item when they have one id, or no ids and the same title and year, folded in mode
`fuzzy` (`Amelie` and `Amélie`, both 2001), but for the article (Fall, The Fall): the first of them stands for all. Rows
of different ids are never the same. Other titles of a row (the column `aliases`) find it as its own does.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar

from convrec.base.errors import UserError
from convrec.titles.catalog import Catalog
from convrec.titles.forms import CACHE_SIZE, fold, forms, normalise, readings, without_label
from convrec.titles.index import FUZZY, TitleIndex
from convrec.titles.item import NO_YEAR, Item, parse_item

FOLDED = "\0"  # marks a folded key among normalised ones
# What ListSettings has where nobody sets it
DEFAULT_MATCHING = "fuzzy"
YEAR_TOLERANCE = 2
FUZZY_CUTOFF = 90
MOST_READINGS = 4  # of a title that has `1: ` before it or a year behind it; a looping model writes thousands

if TYPE_CHECKING:
    from functools import _lru_cache_wrapper

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_YEAR_BEHIND = re.compile(r"\(\d{4}\)$")


class MatchResult(NamedTuple):
    """One entry a rank in every list.

    relevance: 1 where the rank is a hit. catalog_index: row of the catalog as in Identity, -1 for none. in_catalog,
    duplicate (the item stands at an earlier rank), seen (the conversation named its title). All false where the line
    did not parse.
    """

    relevance: list[int]
    in_catalog: list[bool]
    duplicate: list[bool]
    seen: list[bool]
    catalog_index: list[int]


class Identity(NamedTuple):
    """What a title with a year stands for: its catalog row, of one item's rows the first (-1 for none), and the key by
    which titles are equal."""

    index: int  # type: ignore[assignment]  # tuple.index is not needed here
    key: str


class Truth(NamedTuple):
    """An item that a row wants, or that a rank stands for: Identity, and the year, which a hit's year is near; None for
    a wanted one that is never hit."""

    index: int  # type: ignore[assignment]
    key: str
    year: int | None


_NOT_AN_ITEM = Truth(-1, "\n", NO_YEAR)  # no title's key has a line break


class cache_per_instance(Generic[Parameters, Result]):
    """A method whose results an `lru_cache` keeps, one for each instance.

    As with `functools.cached_property`, the cache takes the method's place in the instance at the first use: from then
    on, a call with arguments that were met before is one C call, which locks for itself. `__wrapped__` is the method
    without its cache.
    """

    def __init__(self, method: Callable[Concatenate[Any, Parameters], Result]):
        self.method = method
        self.__doc__ = method.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type) -> "_lru_cache_wrapper[Result]":
        cached = lru_cache(maxsize=CACHE_SIZE)(self.method.__get__(instance, owner))
        return instance.__dict__.setdefault(self.name, cached)


class Matcher:
    """The rules of a hit over one catalog's index, built once and then read only; safe to share between threads."""

    def __init__(
        self,
        catalog: Catalog,
        mode: str = DEFAULT_MATCHING,
        year_tolerance: int = YEAR_TOLERANCE,
        fuzzy_cutoff: float = FUZZY_CUTOFF,
    ):
        needs_years = _matching_named(mode).needs_years
        if year_tolerance < 0 or not 0 < fuzzy_cutoff <= 100:
            raise ValueError(
                f"year_tolerance {year_tolerance} must be >= 0 and fuzzy_cutoff {fuzzy_cutoff} in (0, 100]"
            )
        if needs_years and not catalog.dated:
            raise UserError(f"the catalog has no years, which matching `{mode}` needs: use `fuzzy` or `exact`")
        self.catalog = catalog
        self.mode = mode
        self.year_tolerance = year_tolerance
        self.fuzzy_cutoff = fuzzy_cutoff
        self.index = TitleIndex(catalog, mode, year_tolerance, fuzzy_cutoff)

    def wanted_rows(self, truth: Iterable[tuple[str, object]]) -> list[int]:
        """The rows of the titles of a ground truth, each once, of those that the catalog has."""
        return [row for row in dict.fromkeys(self.wanted(*pair).index for pair in truth) if row >= 0]

    def match(
        self, items: Sequence[Item | None], ground_truth: Iterable[tuple[str, object]], seen: Iterable[str] | None
    ) -> MatchResult:
        """Relevance by rank: in the catalog, not seen, not at an earlier rank, and the ground truth holds it.

        Each ground-truth item is hit once, by the first item that is the same; an item takes the ground truth with the
        nearest year.
        """
        if self.mode == "reference":
            return self._match_reference(items, ground_truth, seen)
        return self._match(list(map(self._find_item, items)), ground_truth, seen)

    def match_lines(
        self, lines: Iterable[str], ground_truth: Iterable[tuple[str, object]], seen: Iterable[str] | None
    ) -> MatchResult:
        """`match` of the parsed lines; a line that was met before is one look-up."""
        if self.mode == "reference":
            return self._match_reference(list(map(self.read_line, lines)), ground_truth, seen)
        return self._match(list(map(self._find_line, lines)), ground_truth, seen)

    def _match(
        self, found: list[Truth], ground_truth: Iterable[tuple[str, object]], seen: Iterable[str] | None
    ) -> MatchResult:
        # Python looks at single ranks only where sets, which look at all at once, say that there is something to see.
        rows = [row for row, _, _ in found]
        keys = [key for _, key, _ in found]
        duplicate = _repeats(found) if len(set(keys)) < len(keys) else [False] * len(found)
        was_seen = self._were_seen(found, rows, keys, () if seen is None else seen)
        relevance = [0] * len(found)
        truth = [(wanted.key, wanted.year) for wanted in self.truths(ground_truth) if wanted.year is not None]
        truth_keys = {key for key, _ in truth}
        if not truth_keys.isdisjoint(keys):
            for rank, (row, key, year) in enumerate(found):
                if row >= 0 and key in truth_keys and not was_seen[rank] and not duplicate[rank]:
                    relevance[rank] = self._take_nearest(truth, key, year)  # type: ignore[arg-type]  # a rank has one
        return MatchResult(relevance, [row >= 0 for row in rows], duplicate, was_seen, rows)

    def _were_seen(
        self, found: Sequence[Truth], rows: Sequence[int], keys: Sequence[str], seen: Iterable[str]
    ) -> list[bool]:
        """Whether each rank's item is one of the seen titles. rows, keys: those of `found`."""
        seen_items: set[int] = set()
        seen_keys: set[str] = set()
        for title in seen:
            items, key = self._find_seen(title)
            seen_items.update(items)
            seen_keys.add(key)
        has_folded_key = any(key[:1] == FOLDED for key in seen_keys)
        if not has_folded_key and seen_items.isdisjoint(rows) and seen_keys.isdisjoint(keys):
            return [False] * len(found)
        return [
            row in seen_items
            or (row < 0 and key != _NOT_AN_ITEM.key and (key in seen_keys or FOLDED + fold(key) in seen_keys))
            for row, key, _ in found
        ]

    @cache_per_instance
    def _find_item(self, item: Item | None) -> Truth:
        """What a rank stands for."""
        if item is None:
            return _NOT_AN_ITEM
        row, key = self.identify_line.__wrapped__(*item)
        # NO_YEAR: a line without one, which matching `lenient` reads, or a catalog without years
        return Truth(row, key, item.year or (self.catalog.years[row] if row >= 0 else None) or NO_YEAR)

    @cache_per_instance
    def _find_line(self, line: str) -> Truth:
        return self._find_item.__wrapped__(self.read_line.__wrapped__(line))  # one cache for a line is enough

    def truths(self, ground_truth: Iterable[tuple[str, object]]) -> list[Truth]:
        """The items that a row wants, each once, however often and however spelled it stands there. Matching
        `reference` takes every entry for an item of its own."""
        wanted = [self.wanted(*pair) for pair in ground_truth]
        if self.mode == "reference":
            return wanted
        found: dict[object, Truth] = {}
        for one in wanted:
            found.setdefault(one.index if one.index >= 0 else one, one)
        return list(found.values())

    @cache_per_instance
    def wanted(self, title: str, raw_year: object) -> Truth:
        """What an entry of ground truth stands for. One without a year is the catalog's only item of that name."""
        year = self.catalog.normalise_year(raw_year)
        row, key = self.identify(title, NO_YEAR if year is None else year)
        return Truth(row, key, year or self.catalog.years[row] if row >= 0 else year)

    @cache_per_instance
    def read_line(self, line: str) -> Item | None:
        """The item that a line of a list writes; None for none. Matching `lenient` reads a title without its year, too,
        where the catalog has one item of that name."""
        item = parse_item.__wrapped__(line, self.catalog.dated)  # one cache for a line is enough
        if item is None and self.mode == "lenient":
            title = parse_item(line, dated=False)
            item = title if title and self.identify(*title).index >= 0 else None
        return item

    def seen_rows(self, seen: Iterable[str]) -> list[int]:
        """The catalog rows that `match` calls seen when these titles are."""
        if self.mode == "reference":
            return sorted(row for title in set(seen) for row in self.index.by_title.get(title, ()))
        items = {item for title in seen for item in self._find_seen(title)[0]}
        return sorted(row for item in items for row in self.index.rows.get(item, (item,)))

    def _take_nearest(self, truth: list[tuple[str, int]], key: str, year: int) -> int:
        """Remove the ground truth with this key and the nearest year within the tolerance; 1 when there was one."""
        distances = [
            (abs(true_year - year), index) for index, (true_key, true_year) in enumerate(truth) if true_key == key
        ]
        if not distances or min(distances)[0] > self.year_tolerance:
            return 0
        del truth[min(distances)[1]]
        return 1

    @property
    def identify_line(self) -> "_lru_cache_wrapper[Identity]":
        """`identify` of what a line of a list says: in mode `lenient` the same, else only what is written."""
        return self.identify if self.mode == "lenient" else self.identify_written

    @cache_per_instance
    def identify_written(self, title: str, year: int) -> Identity:
        """The item that a title with its year is as it is written."""
        if self.mode == "reference":
            row = next((r for r in self.index.by_title.get(title, ()) if self.catalog.years[r] == year), -1)
            return Identity(row, title)
        key = ""
        for shortened in self._shortened(title):
            key = normalise(shortened)
            row = self.index.find_nearest_year(self.index.by_title.get(key, ()), year)
            if row < 0 and self.mode in FUZZY:
                row = self._find_unlike(shortened, year)
            if row >= 0:
                first = self.index.items[row]
                return Identity(first, self.index.keys[first])
        return Identity(-1, key)

    @cache_per_instance
    def identify(self, title: str, year: int) -> Identity:
        """The item that a title with its year (NO_YEAR for none) is, as people write it.

        In the fuzzy modes that is, where the catalog lacks what is written, the only item that can be meant.
        """
        identity = self.identify_written(title, year)
        if identity.index >= 0 or self.mode not in FUZZY or not self.catalog.dated:
            return identity
        for shortened in self._shortened(title):
            row = self._only_item(shortened, year)
            if row >= 0:
                return Identity(row, self.index.keys[row])
        return identity

    def _only_item(self, title: str, year: int) -> int:
        """The only item with a title but no year, or with a subtitle left out or added; -1 for none, AMBIGUOUS."""
        if year != NO_YEAR:
            return self.index.find_by_short_form(title, year)
        titled = self.index.by_title.get(normalise(title), [])
        return self.index.unique_item(titled or self.index.by_spelling.get(forms(title).spelling, []))

    def _shortened(self, title: str) -> Iterator[str]:
        """The title, then without a number or label before it or a year behind it."""
        for _ in range(MOST_READINGS):
            yield title
            title = without_label(title) or (not self.catalog.dated and _without_year(title)) or ""
            if not title:
                return

    def _find_unlike(self, title: str, year: int) -> int:
        """The catalog row of a title that is not in the catalog letter by letter; -1 for none."""
        row = self.index.find_by_spelling(title, year)
        if row == -1 and self.catalog.dated:
            # A note can name another film of a series, which is seldom of the same year: Twilight (New Moon) (2009).
            notes = (self.index.unique_in_year(fold(reading), year) for reading in readings(title))
            row = next((found for found in notes if found >= 0), -1)
        if row == -1:
            row = self.index.find_by_letters(title, year)
        if row == -1:
            row = self.index.find_most_similar(title, year)
        return max(row, -1)

    @cache_per_instance
    def _find_seen(self, title: str) -> tuple[list[int], str]:
        """The items of the catalog, as their first rows, that a seen title stands for, and the key that it has among
        titles outside of the catalog.

        A seen title has no year (one written all the same is taken off: a title seen is seen in every year). It is
        compared exactly when the catalog has that very title, so that having seen `Mother!` does not exclude a `Mother`
        of another year; folded otherwise. One that is still not found is read with its year, as ground truth is.
        """
        by_title = self.index.by_title
        item = None
        key = normalise(title)
        if key not in by_title:
            if self.catalog.dated:
                title = item.title if (item := parse_item(title)) else title
            else:
                title = _without_year(title) or title
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
        """The reference's rule, for `preset: reference`: the catalog must hold the very title and year; seen titles are
        compared letter by letter; ground truth by case-folded title, the same year first, then d = 1, 2, ... years
        later before d earlier; repeats count as long as ground truth is left."""
        seen_titles = set(seen) if seen is not None else set()
        years_left = _years_by_title(ground_truth)
        relevance = []
        duplicate = []
        earlier: set[Item | None] = set()
        rows = [self.identify(*item).index if item else -1 for item in items]
        was_seen = [item is not None and item.title in seen_titles for item in items]
        for item, row, is_seen in zip(items, rows, was_seen, strict=True):
            is_hit = item is not None and row >= 0 and not is_seen and self._take_nearest_year(item, years_left)
            relevance.append(int(is_hit))
            duplicate.append(item is not None and item in earlier)
            earlier.add(item)
        return MatchResult(relevance, [row >= 0 for row in rows], duplicate, was_seen, rows)

    def _take_nearest_year(self, item: Item, years_left: Mapping[str, list[int]]) -> bool:
        """Take the wanted item of this title that is nearest in years out of those left; whether there is one."""
        years = years_left.get(_casefolded(item.title), [])
        for years_apart in range(self.year_tolerance + 1):
            for year in (item.year + years_apart, item.year - years_apart):
                if year in years:
                    years.remove(year)
                    return True
        return False


def _years_by_title(ground_truth: Iterable[tuple[str, object]]) -> dict[str, list[int]]:
    """The years of the wanted items by their case-folded titles; items without a year are left out."""
    years: dict[str, list[int]] = {}
    for title, raw_year in ground_truth:
        year = _integer(raw_year)
        if year is not None:
            years.setdefault(_casefolded(title), []).append(year)
    return years


def _casefolded(title: str) -> str:
    return " ".join(title.casefold().split())


@dataclass(frozen=True)
class Matching:
    """A name that `convrec.matching` takes. matcher: `Matcher` or a subclass of it, which gets the name as its mode."""

    matcher: type[Matcher]
    help: str
    needs_years: bool = False  # of the catalog


MATCHERS: dict[str, Matching] = {
    "fuzzy": Matching(Matcher, "exact first, then titles folded, then the most similar title of the catalog"),
    "lenient": Matching(Matcher, "fuzzy; a line, as ground truth, may lack the subtitle or the year"),
    "exact": Matching(Matcher, "normalised titles"),
    "reference": Matching(Matcher, "the rule of the public code", needs_years=True),
}


def _matching_named(name: str) -> Matching:
    if name not in MATCHERS:
        raise UserError(f"unknown matching {name!r}: one of {', '.join(MATCHERS)}")
    return MATCHERS[name]


def matcher_named(name: str, catalog: Catalog, year_tolerance: int, fuzzy_cutoff: float) -> Matcher:
    """Return the matcher of this name for a catalog.

    Raises:
        UserError: There is none of this name, or it cannot take the catalog.
    """
    return _matching_named(name).matcher(catalog, name, year_tolerance, fuzzy_cutoff)


def _without_year(title: str) -> str | None:
    """The title in front of a year that was written where items have none; None for a title alone."""
    year = _YEAR_BEHIND.search(title)
    return title[: year.start()].rstrip() if year else None


def _repeats(found: Sequence[Truth]) -> list[bool]:
    """Whether an item stands at an earlier rank: the same row of the catalog, outside of it the same title and year."""
    earlier: set[object] = set()
    repeats = []
    for one in found:
        identity = one.index if one.index >= 0 else one
        repeats.append(identity in earlier and one is not _NOT_AN_ITEM)
        earlier.add(identity)
    return repeats


def _integer(value: object) -> int | None:
    """As the reference reads a year: "1995" but not "1995.0"."""
    try:
        return int(str(value))
    except ValueError:
        return None
