"""Load the catalog, which says what items exist, from parquet or from the release's pickle without running its code."""

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any

from convrec.base.errors import UserError
from convrec.base.files import file_hash
from convrec.titles.forms import forms, normalise
from convrec.titles.item import NO_YEAR, format_item
from convrec.titles.plain_pickle import read_pickle

OLDEST_YEAR = 1870
NEWEST_YEAR = 2100
PICKLES = (".pkl", ".pickle")
MAX_PRINTED = 5  # problems that are printed one by one
SUFFIXES = (".parquet", *PICKLES)  # of a catalog file
# Columns read from parquet; the first two are required.
COLUMNS = ("title", "year", "mentions", "item_id", "genres", "aliases", "display")


def parse_year(value: object) -> int | None:
    """Return 1995 for 1995, "1995" or 1995.0; None for anything that is not a whole number."""
    if isinstance(value, str):
        value = value.strip()
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return int(number) if number.is_integer() else None


def add_display(title: str, display: object = None) -> str:
    """Return the title as lists write it: `Hello [Adele]` if the column `display` tells equal titles apart.

    Args:
        title: the item's title.
        display: the item's cell in that column; None or a blank text leaves the title unchanged.
    """
    return title if display is None or not str(display).strip() else f"{title} [{str(display).strip()}]"


@dataclass(frozen=True)
class Catalog:
    """Titles, years and further columns, in the order of the file.

    Attributes:
        titles: as lists write them, including the column `display` (add_display).
        years: None if the file has no valid year for an item.
        mentions: how often an item is a training target; None without the column.
        problems: one sentence per entry that cannot be matched; the caller prints them once, at load.
        dated: whether items have years. If no entry has one, every year is NO_YEAR, also in texts that are compared
            with this catalog, and titles alone decide.
        item_ids: ids of items; None without the column. Rows with the same id are one item, rows with different ids
            are different items, however they are spelled. A row whose id is None counts as if there were no ids.
        genres: an item's categories of any kind; None without the column. Matching does not read them.
        aliases: other titles of an item, such as foreign ones; None without the column.
        displays: the column `display`, which `titles` include; None without the column.
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
        """Build a catalog from COLUMNS, of which the first two are required.

        Args:
            columns: name -> one value per row; columns other than COLUMNS are ignored.

        Raises:
            UserError: a value is of another kind; the message names its row.
        """
        titles = columns["title"]
        if "display" in columns:
            pairs = zip(titles, columns["display"], strict=True)
            titles = [add_display(title, display) if isinstance(title, str) else title for title, display in pairs]
        mentions = columns.get("mentions")
        for row, count in enumerate(() if mentions is None else mentions):
            if not isinstance(count, Real | None):
                raise UserError("catalog.invalid-mentions", f"row {row}: mentions={count!r}: expected a number")
        catalog = cls.from_items(
            zip(titles, columns["year"], strict=True),
            mentions=mentions,
            item_ids=columns.get("item_id"),
            genres=columns.get("genres"),
            aliases=columns.get("aliases"),
        )
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
        """Build a catalog from (title, year) pairs.

        Invalid entries keep their place, so that row numbers stay those of the file, and are reported in `problems`.

        Args:
            items: the year is an int, a string or None. If all are None or "", the catalog has no years.
            mentions: as in the class.
            item_ids: as in the class.
            genres: a list or a text for each item, see `parse_labels`.
            aliases: a list of titles, or a text with bars between them, for each item.

        Raises:
            UserError: genres or aliases are of another kind; the message names the row.
        """
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
        return cls(
            titles=titles,
            years=years,
            mentions=mentions,
            problems=tuple(problems),
            dated=dated,
            item_ids=None if item_ids is None else [_normalise_id(value) for value in item_ids],
            genres=None if genres is None else [_parse_genres(value, row) for row, value in enumerate(genres)],
            aliases=None if aliases is None else [_parse_aliases(value, row) for row, value in enumerate(aliases)],
        )

    @property
    def lines(self) -> list[str]:
        """The rows as lists write them."""
        return [format_item(title, year or NO_YEAR) for title, year in zip(self.titles, self.years, strict=True)]

    def clean_title(self, row: int) -> str:
        """Return the row's title without its `display`."""
        return self.titles[row].removesuffix(add_display("", self.displays[row])) if self.displays else self.titles[row]

    def normalise_year(self, value: object) -> int | None:
        """Return a ground truth's year as this catalog compares it.

        Args:
            value: a year as data has it, of any kind.

        Returns:
            The year, None if it is not a whole number; NO_YEAR for every value if the catalog has no years.
        """
        return parse_year(value) if self.dated else NO_YEAR

    def first_rows(self, forms: Sequence[str]) -> list[int]:
        """Return, for each row, the first row of the same item.

        Rows are the same item if they have the same id or, without ids, the same form and year. Rows that cannot be
        matched are their own item.

        Args:
            forms: for each row, the text by which titles are equal.
        """
        ids = self.item_ids or [None] * len(self)
        first: dict[object, int] = {}
        return [
            row if year is None else first.setdefault((form, year) if item_id is None else (item_id,), row)
            for row, (form, year, item_id) in enumerate(zip(forms, self.years, ids, strict=True))
        ]

    def compute_spelling_forms(self) -> list[str]:
        """Return the form by which matching `fuzzy` compares rows of one year: Fall and The Fall differ."""
        return [forms(title).spelling or normalise(title) for title in self.titles]

    def spellings(self) -> list[str]:
        """Return one sentence per row that counts as an earlier row's item although its title differs.

        Matching `fuzzy` takes it for another spelling, or it has the same id.
        """
        same_id = (
            "row {row}: {title!r} has the item_id of row {first}, {other!r}: they count as one item with two titles. "
            "If they are two items, give each its own id"
        )
        same_form = (
            "row {row}: {title!r} ({year}) is another spelling of row {first}, {other!r}: they count as one item "
            "unless a column item_id tells them apart"
        )
        ids = self.item_ids or [None] * len(self)
        exact = [normalise(title) for title in self.titles]
        firsts = self.first_rows(self.compute_spelling_forms() if self.dated else exact)
        return [
            (same_form if ids[row] is None else same_id).format(
                row=row, title=self.titles[row], year=self.years[row], first=first, other=self.titles[first]
            )
            for row, first in enumerate(firsts)
            if exact[row] != exact[first]
        ]


def parse_labels(value: object) -> frozenset[str]:
    """Return an item's genres, or its texts in another column.

    Args:
        value: a list of texts, or a text with bars or commas between its parts; anything else gives an empty set.

    Raises:
        UserError: a list has something other than texts.
    """
    parts = value.replace("|", ",").split(",") if isinstance(value, str) else value
    if not isinstance(parts, Collection) or isinstance(parts, bytes | Mapping):
        return frozenset()
    other = next((part for part in parts if part is not None and not isinstance(part, str)), None)
    if other is not None:
        raise UserError(
            "catalog.invalid-labels",
            f"{other!r} is not a text. Write names only: ['Action', 'Crime'] or `Action|Crime`",
        )
    return frozenset(part.strip() for part in parts if part)


def _parse_genres(value: object, row: int) -> frozenset[str]:
    try:
        return parse_labels(value)
    except UserError as error:
        raise UserError(error.code, f"row {row}: genres: {error}") from None


def _parse_aliases(value: object, row: int) -> list[str]:
    """Split a text at bars only, because titles contain commas."""
    titles = value.split("|") if isinstance(value, str) else [] if value is None else value
    if not isinstance(titles, Sequence) or not all(isinstance(title, str) for title in titles):
        raise UserError(
            "catalog.invalid-aliases",
            f"row {row}: aliases={value!r}: expected a list of titles, or a text with bars between them",
        )
    return [title.strip() for title in titles if title.strip()]


def _normalise_id(value: object) -> object:
    """Undo pandas' conversion of a column with missing values to floats: 12.0 is 12, and NaN is None."""
    if not isinstance(value, float):
        return value
    return int(value) if value.is_integer() else None if value != value else value


def load_catalog(path: str | Path) -> Catalog:
    """Load a catalog.

    Args:
        path: .parquet with COLUMNS, of which title and year are required, or .pkl with a list, tuple or set of (title,
            year).

    Raises:
        UserError: the file is missing, damaged or in another format, or has no usable entry.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(
            "catalog.missing-file", f"catalog {path}: no such file. Set CATALOG_FILE to a .parquet or .pkl catalog"
        )
    if path.suffix == ".parquet":
        return _load_parquet(path)
    if path.suffix in PICKLES:
        try:
            entries = read_pickle(path.read_bytes())
        except UserError as error:
            raise UserError(error.code, f"catalog {path}: {error}") from None
        return _check_usable(Catalog.from_items(entries), path)
    raise UserError("catalog.unknown-format", f"catalog {path}: unknown format {path.suffix!r}; use .parquet or .pkl")


@contextmanager
def reject_changes(path: str | Path) -> Iterator[str]:
    """Refuse a catalog whose file changes within the block, which reads it several times.

    Otherwise a row could have its title from one file and its columns from another.

    Args:
        path: the catalog's file.

    Yields:
        The SHA-256 of the file; "" if it cannot be read.

    Raises:
        UserError: the file has changed; also in place of an error within the block.
    """
    sha256 = _hash_or_empty(path)
    try:
        yield sha256
    finally:
        check_unchanged(path, sha256)


def check_unchanged(path: str | Path, sha256: str) -> None:
    """Check that a catalog's file is still the one that was read.

    Args:
        path: the catalog's file.
        sha256: of the file that was read.

    Raises:
        UserError: the file has changed or is gone.
    """
    if _hash_or_empty(path) != sha256:
        raise UserError("catalog.changed", f"catalog {path}: the file changed while it was in use. Start again.")


def _hash_or_empty(path: str | Path) -> str:
    try:
        return file_hash(path)
    except OSError:  # load_catalog says why
        return ""


def print_problems(path: str | Path, problems: Sequence[str]) -> None:
    """Print the first problems to stderr, and the number of the others."""
    for sentence in problems[:MAX_PRINTED]:
        print(f"{path}: {sentence}", file=sys.stderr)
    if len(problems) > MAX_PRINTED:
        print(f"{path}: {len(problems) - MAX_PRINTED} more such entries", file=sys.stderr)


def _load_parquet(path: Path) -> Catalog:
    import pyarrow.parquet as pq  # takes 0.1 s, which processes without a catalog save

    try:
        names = pq.read_schema(path).names
    except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
        raise UserError("catalog.unreadable-parquet", f"catalog {path}: not a parquet file ({error})") from error
    missing = {"title", "year"} - set(names)
    if missing:
        raise UserError(
            "catalog.missing-column",
            f"catalog {path}: no column {' or '.join(sorted(missing))}; it has {', '.join(names)}. For items without "
            "years, add a column year that is null in every row",
        )
    try:
        columns = pq.read_table(path, columns=[name for name in COLUMNS if name in names]).to_pydict()
    except UnicodeDecodeError as error:
        raise UserError(
            "catalog.invalid-encoding", f"catalog {path}: a title is not UTF-8 ({error}). Write the file again"
        ) from error
    except (OSError, ValueError) as error:
        raise UserError(
            "catalog.damaged-file", f"catalog {path}: damaged ({error}). Copy it again, or make it again"
        ) from error
    try:
        catalog = Catalog.from_columns(columns)
    except UserError as error:
        raise UserError(error.code, f"catalog {path}: {error}") from None
    return _check_usable(catalog, path)


def _check_usable(catalog: Catalog, path: Path) -> Catalog:
    if all(year is None for year in catalog.years):
        raise UserError("catalog.no-usable-entry", f"catalog {path}: no entry has both a title and a valid year")
    return catalog
