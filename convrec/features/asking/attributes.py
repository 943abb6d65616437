"""What can be asked about: attributes of a catalog's items, each a column of labels, or `decade`, of the years."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from convrec.base.errors import UserError
from convrec.titles.catalog import Catalog, load_catalog, parse_labels
from convrec.titles.forms import fold

DECADE = "decade"


@dataclass(frozen=True)
class Attributes:
    """values: attribute -> the labels of each row of the catalog, none where it has none."""

    catalog: Catalog
    values: Mapping[str, Sequence[frozenset[str]]]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.values)

    @cached_property
    def labels(self) -> Mapping[str, list[str]]:
        """attribute -> all labels that some item has, sorted."""
        return {name: sorted(frozenset().union(*of_row)) for name, of_row in self.values.items()}

    def commonest(self, attribute: str, count: int) -> tuple[str, ...]:
        """The labels that most items have, at most so many."""
        of_items = Counter(label for labels in self.values[attribute] for label in sorted(labels))
        return tuple(label for label, _ in of_items.most_common(count))

    def shared(self, attribute: str, rows: Sequence[int]) -> list[str]:
        """The labels that all of these items have, sorted; none for no rows."""
        of_row = self.values[attribute]
        return sorted(frozenset.intersection(*(of_row[row] for row in rows))) if rows else []

    def named(self, attribute: str, answer: str) -> list[str]:
        """The labels of the attribute that an answer has as words."""
        text = f" {fold(answer)} "
        return [label for label in self.labels[attribute] if f" {fold(label)} " in text]

    def by_what_was_told(self, rows: Iterable[int], told: Mapping[str, Sequence[str]]) -> list[int]:
        """The rows, those first that have more of the labels that were told of each attribute; else in their order."""
        return sorted(rows, key=lambda row: -self._fit(row, told))

    def most_uncertain(self, names: Sequence[str], rows: Sequence[int], told: Mapping[str, Sequence[str]]) -> str:
        """The attribute whose labels have the greatest entropy over the rows that fit best what was told."""
        from scipy.stats import entropy  # takes two seconds

        fits = [self._fit(row, told) for row in rows]
        most = max(fits, default=0)
        best = [row for row, fit in zip(rows, fits, strict=True) if fit == most]
        of_best = {name: Counter(label for row in best for label in self.values[name][row]) for name in names}
        return max(names, key=lambda name: entropy([*of_best[name].values()] or [1]))

    def _fit(self, row: int, told: Mapping[str, Sequence[str]]) -> int:
        return sum(len(self.values[name][row].intersection(labels)) for name, labels in told.items())

    def said(self, attribute: str, rows: Sequence[int], conversation: str) -> bool:
        """Whether the conversation has every label that these items share; True where they share none."""
        text = f" {fold(conversation)} "
        return all(f" {fold(label)} " in text for label in self.shared(attribute, rows))


def load_attributes(catalog_file: str | Path, names: Sequence[str], setting: str = "--ask") -> Attributes:
    """Read what a model may ask about from a parquet catalog.

    Args:
        catalog_file: of the catalog. Attribute `genre` is its column `genre` or `genres`; `decade` may come from years.
        names: of the attributes.
        setting: for the error.

    Raises:
        UserError: an attribute is missing, repeated, has no column, or has less than two labels, so that its answer
            would be known.
    """
    if Path(catalog_file).suffix != ".parquet":
        raise UserError(f"{setting}: {catalog_file} has titles and years alone; give a .parquet with columns to ask of")
    _check_names(names, setting)
    catalog = load_catalog(catalog_file)
    values: dict[str, list[frozenset[str]]] = {}
    for name in names:
        column, cells = _read_cells(catalog_file, catalog, name, setting)
        try:
            values[name] = [parse_labels(cell) for cell in cells]
        except UserError as error:
            raise UserError(f"{setting} {name}: {catalog_file}: {column}: {error}") from None
        labels = sorted(frozenset().union(*values[name]))
        if len(labels) < 2:
            raise UserError(
                f"{setting} {name}: {catalog_file}: {column} has {len(labels)} values of texts ({', '.join(labels)}): "
                "there is nothing to ask; name another column"
            )
    return Attributes(catalog, values)


def _check_names(names: Sequence[str], setting: str) -> None:
    is_repeated = len(set(names)) < len(names)
    is_written_well = all(name.replace("_", "").isalnum() for name in names)
    if not names or is_repeated or not is_written_well:
        raise UserError(f"{setting} {','.join(names)}: name attributes, each once, in letters and digits")
    own = {"title", "aliases", "item_id", "display"}.intersection(names)
    if own:
        raise UserError(f"{setting} {','.join(own)}: the answer would be the item itself; name other columns")


def _read_cells(catalog_file: str | Path, catalog: Catalog, name: str, setting: str) -> tuple[str, list[Any]]:
    """Return what an attribute is read from, and its cell for each row of the catalog."""
    import pyarrow.parquet as pq

    columns = pq.read_schema(catalog_file).names
    for column in (name, f"{name}s"):
        if column in columns:
            return column, pq.read_table(catalog_file, columns=[column]).column(0).to_pylist()
    if name == DECADE and catalog.dated:
        return name, [None if year is None else f"{year // 10}0s" for year in catalog.years]
    known = ", ".join(columns) + (f", and {DECADE} of its years" if catalog.dated else "")
    raise UserError(f"{setting} {name}: the catalog {catalog_file} has no column {name} or {name}s; it has {known}")
