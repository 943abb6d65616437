"""The catalog: which items exist. Loaded from parquet, or from the release's pickle without running any of its code."""

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any

from convrec.base.errors import UserError
from convrec.titles.forms import forms, normalise
from convrec.titles.item import NO_YEAR, format_item
from convrec.titles.plain_pickle import read_pickle

OLDEST_YEAR = 1870
NEWEST_YEAR = 2100
PICKLES = (".pkl", ".pickle")
TOLD = 5  # problems that are printed one by one
SUFFIXES = (".parquet", *PICKLES)  # of a catalog's file
# Read from parquet; the first two must be there.
COLUMNS = ("title", "year", "mentions", "item_id", "genres", "aliases", "display")


def parse_year(value: object) -> int | None:
    """1995, "1995" or 1995.0 -> 1995; None for anything that is not a whole number."""
    if isinstance(value, str):
        value = value.strip()
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return int(number) if number.is_integer() else None


def shown_title(title: str, display: object = None) -> str:
    """The title as lists write it: `Hello [Adele]` with what the column `display` has, by which equal titles differ."""
    return title if display is None or not str(display).strip() else f"{title} [{str(display).strip()}]"


@dataclass(frozen=True)
class Catalog:
    """Titles and years in the file's order; a year is None where the file had none that can be a year.

    titles: as lists write them, with the column `display` (shown_title).
    dated: whether items have years at all. False when no entry has one: then every year is NO_YEAR, of what is compared
    with this catalog too, and titles alone decide.
    mentions: how often an item is a training target, where the file says so (else None).
    problems: one sentence for each entry that cannot be matched; the caller prints them once, at load.
    item_ids: what tells items apart, where the file says so (else None): rows of one id are one item, rows of two ids
    are two, however they are spelt. A row whose id is None is told apart as if there were no ids.
    genres: an item's categories of any kind, where the file says so (else None); no matching reads them.
    aliases: other titles of an item, foreign ones for instance, where the file says so (else None).
    displays: the column `display` that `titles` have already, where the file has it (else None).
    """

    titles: Sequence[str]
    years: Sequence[int | None]
    mentions: Sequence[int] | None = None
    problems: Sequence[str] = field(default=())
    dated: bool = True
    item_ids: Sequence[object] | None = None
    genres: Sequence[frozenset[str]] | None = None
    aliases: Sequence[Sequence[str]] | None = None
    displays: Sequence[object] | None = None

    def __len__(self) -> int:
        return len(self.titles)

    @classmethod
    def from_columns(cls, columns: Mapping[str, Sequence[Any]]) -> "Catalog":
        """Of COLUMNS, the first two of which must be there."""
        titles = columns["title"]
        if "display" in columns:
            shown = zip(titles, columns["display"], strict=True)
            titles = [shown_title(title, display) if isinstance(title, str) else title for title, display in shown]
        further = (columns.get(name) for name in ("mentions", "item_id", "genres", "aliases"))
        mentions = columns.get("mentions")
        for row, count in enumerate(() if mentions is None else mentions):
            if not isinstance(count, Real | None):
                raise UserError(f"row {row}: mentions is {count!r}; write a number")
        catalog = cls.from_items(zip(titles, columns["year"], strict=True), *further)
        return replace(catalog, displays=columns.get("display"))

    @classmethod
    def from_items(
        cls,
        items: Iterable[tuple[str, object]],
        mentions: Sequence[int] | None = None,
        item_ids: Sequence[object] | None = None,
        genres: Sequence[object] | None = None,
        aliases: Sequence[object] | None = None,
    ) -> "Catalog":
        """Items are (title, year) with the year as int, string or None. Broken entries are kept in place, so that
        indices stay those of the file, and reported in `problems`. All years None or "": a catalog without years."""
        items = list(items)
        dated = any(year not in (None, "") for _, year in items)
        titles: list[str] = []
        years: list[int | None] = []
        problems: list[str] = []
        for row, (title, raw_year) in enumerate(items):
            year = parse_year(raw_year) if dated else NO_YEAR
            if year is None:
                problems.append(f"row {row}: {title!r} has no year ({raw_year!r}); it can never be matched")
            elif dated and not OLDEST_YEAR <= year <= NEWEST_YEAR:
                problems.append(f"row {row}: {title!r} has the year {year}; it can never be matched")
                year = None
            if not isinstance(title, str) or not title.strip():
                problems.append(f"row {row}: the title is empty ({title!r}); it can never be matched")
                title = ""
                year = None
            titles.append(title)
            years.append(year)
        sets = None if genres is None else [_genres(value, row) for row, value in enumerate(genres)]
        ids = None if item_ids is None else [_id(value) for value in item_ids]
        others = None if aliases is None else [_aliases(value, row) for row, value in enumerate(aliases)]
        return cls(titles, years, mentions, tuple(problems), dated, ids, sets, others)

    @property
    def lines(self) -> list[str]:
        """The rows as lists write them."""
        return [format_item(title, year or NO_YEAR) for title, year in zip(self.titles, self.years, strict=True)]

    def clean_title(self, row: int) -> str:
        """The row's title without its `display`."""
        return self.titles[row].removesuffix(shown_title("", self.displays[row])) if self.displays else self.titles[row]

    def normalise_year(self, value: object) -> int | None:
        """A ground truth's year as this catalog compares it; None for one that is no number."""
        return parse_year(value) if self.dated else NO_YEAR

    def first_rows(self, forms: Sequence[str]) -> list[int]:
        """Of each row, the first row of the same item: the same id or, without ids, the same form and year. Rows that
        cannot be matched stay alone."""
        ids = self.item_ids or [None] * len(self)
        first: dict[object, int] = {}
        return [
            row if year is None else first.setdefault((form, year) if item_id is None else (item_id,), row)
            for row, (form, year, item_id) in enumerate(zip(forms, self.years, ids, strict=True))
        ]

    def spelling_forms(self) -> list[str]:
        """By which matching `fuzzy` takes rows of one year for one item: Fall and The Fall are two."""
        return [forms(title).spelling or normalise(title) for title in self.titles]

    def spellings(self) -> list[str]:
        """One sentence for each row that matching `fuzzy` takes for an earlier row's item in another spelling, or that
        has an earlier row's id and another title."""
        if not (self.item_ids or self.dated):
            return []
        if self.item_ids:
            told = (
                "row {row}: {title!r} has the item_id of row {first}, {other!r}: one item of two titles; where they "
                "are two items, give each an id of its own"
            )
        else:
            told = (
                "row {row}: {title!r} ({year}) is another spelling of row {first}, {other!r}: one item, unless a "
                "column item_id tells them apart"
            )
        exact = [normalise(title) for title in self.titles]
        firsts = enumerate(self.first_rows(exact if self.item_ids else self.spelling_forms()))
        return [
            told.format(row=row, title=self.titles[row], year=self.years[row], first=first, other=self.titles[first])
            for row, first in firsts
            if exact[row] != exact[first]
        ]


def parse_labels(value: object) -> frozenset[str]:
    """An item's genres, or its texts of another column: of a list, or of a text with bars or commas between its parts;
    empty for what is neither. Raises UserError for a list of other things than texts."""
    parts = value.replace("|", ",").split(",") if isinstance(value, str) else value
    if not isinstance(parts, Collection) or isinstance(parts, bytes | Mapping):
        return frozenset()
    other = next((part for part in parts if part is not None and not isinstance(part, str)), None)
    if other is not None:
        raise UserError(f"{other!r} is no text; give the names alone: ['Action', 'Crime'] or `Action|Crime`")
    return frozenset(part.strip() for part in parts if part)


def _genres(value: object, row: int) -> frozenset[str]:
    try:
        return parse_labels(value)
    except UserError as error:
        raise UserError(f"row {row}: genres: {error}") from None


def _aliases(value: object, row: int) -> list[str]:
    """A text has bars between its titles, which have commas of their own."""
    titles = value.split("|") if isinstance(value, str) else [] if value is None else value
    if not isinstance(titles, Sequence) or not all(isinstance(title, str) for title in titles):
        raise UserError(f"row {row}: aliases is {value!r}; write a list of titles, or a text with bars between them")
    return [title.strip() for title in titles if title.strip()]


def _id(value: object) -> object:
    """pandas makes numbers of a column with missing values floats: 12.0 is 12, and NaN is none."""
    if not isinstance(value, float):
        return value
    return int(value) if value.is_integer() else None if value != value else value


def load_catalog(path: str | Path) -> Catalog:
    """Read .parquet (COLUMNS: title and year, the others where it has them) or .pkl (a list, tuple or set of (title,
    year))."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"catalog {path}: no such file. Set CATALOG_FILE to a .parquet or .pkl catalog.")
    if path.suffix == ".parquet":
        return _load_parquet(path)
    if path.suffix in PICKLES:
        try:
            entries = read_pickle(path.read_bytes())
        except UserError as error:
            raise UserError(f"catalog {path}: {error}") from None
        return _nonempty(Catalog.from_items(entries), path)
    raise UserError(f"catalog {path}: unknown format {path.suffix!r}; .parquet and .pkl are read")


def tell_problems(path: str | Path, problems: Sequence[str]) -> None:
    """Print the first of them to stderr, and how many there are besides."""
    for sentence in problems[:TOLD]:
        print(f"{path}: {sentence}", file=sys.stderr)
    if len(problems) > TOLD:
        print(f"{path}: {len(problems) - TOLD} more such entries", file=sys.stderr)


def _load_parquet(path: Path) -> Catalog:
    import pyarrow.parquet as pq  # here: 0.1 s that processes without a catalog need not pay

    try:
        names = pq.read_schema(path).names
    except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
        raise UserError(f"catalog {path}: not a parquet file ({error})") from error
    missing = {"title", "year"} - set(names)
    if missing:
        raise UserError(
            f"catalog {path}: column {' and '.join(sorted(missing))} is missing; it has {', '.join(names)}. Items "
            "without years have a column year that is null in every row."
        )
    try:
        columns = pq.read_table(path, columns=[name for name in COLUMNS if name in names]).to_pydict()
    except UnicodeDecodeError as error:
        raise UserError(f"catalog {path}: a title that is no UTF-8 ({error}); write it again") from error
    except (OSError, ValueError) as error:
        raise UserError(f"catalog {path}: damaged ({error}); copy or make it again") from error
    try:
        catalog = Catalog.from_columns(columns)
    except UserError as error:
        raise UserError(f"catalog {path}: {error}") from None
    return _nonempty(catalog, path)


def _nonempty(catalog: Catalog, path: Path) -> Catalog:
    if all(year is None for year in catalog.years):
        raise UserError(f"catalog {path}: no entry has a title, or none has a year that can be one")
    return catalog
