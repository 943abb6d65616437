"""Attributes that a model can ask about: columns of labels in the catalog, or `decade`, derived from the years."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from convrec.base.errors import UserError
from convrec.titles.catalog import Catalog, load_catalog, parse_labels, reject_changes
from convrec.titles.forms import fold

DECADE = "decade"


@dataclass(frozen=True)
class Attributes:
    """Labels of a catalog's items.

    Attributes:
        catalog: the items.
        values: attribute -> the labels of each catalog row; empty for an item without labels.
    """

    catalog: Catalog
    values: Mapping[str, Sequence[frozenset[str]]]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.values)

    @cached_property
    def labels(self) -> Mapping[str, list[str]]:
        """Return attribute -> all labels that occur in the catalog, sorted."""
        return {name: sorted(frozenset().union(*of_row)) for name, of_row in self.values.items()}

    def most_common_labels(self, attribute: str, count: int) -> tuple[str, ...]:
        """Return the attribute's labels with the most items, at most `count`."""
        frequencies = Counter(label for labels in self.values[attribute] for label in sorted(labels))
        return tuple(label for label, _ in frequencies.most_common(count))

    def shared(self, attribute: str, rows: Sequence[int]) -> list[str]:
        """Return the labels that all of these items share, sorted; empty if there are no rows."""
        labels_by_row = self.values[attribute]
        return sorted(frozenset.intersection(*(labels_by_row[row] for row in rows))) if rows else []

    def named(self, attribute: str, answer: str) -> list[str]:
        """Return the attribute's labels that an answer contains as words."""
        text = f" {fold(answer)} "
        return [label for label in self.labels[attribute] if f" {fold(label)} " in text]

    def rank_by_preferences(self, rows: Iterable[int], preferences: Mapping[str, Sequence[str]]) -> list[int]:
        """Sort rows by how many preferred labels they have, most first; ties keep their order.

        Args:
            rows: rows of the catalog.
            preferences: attribute -> the labels that the user named.
        """
        return sorted(rows, key=lambda row: -self._count_matches(row, preferences))

    def find_most_uncertain(
        self, names: Sequence[str], rows: Sequence[int], preferences: Mapping[str, Sequence[str]]
    ) -> str:
        """Return the attribute about which a question tells most, given what the user has named.

        That is the one whose labels have the highest entropy over the rows with the most preferred labels; the first of
        `names` on a tie.

        Args:
            names: the attributes to choose from, at least one.
            rows: catalog rows that may be recommended.
            preferences: attribute -> the labels that the user named.
        """
        from scipy.stats import entropy  # the import takes two seconds

        matches = [self._count_matches(row, preferences) for row in rows]
        most = max(matches, default=0)
        best = [row for row, count in zip(rows, matches, strict=True) if count == most]
        frequencies = {name: Counter(label for row in best for label in self.values[name][row]) for name in names}
        return max(names, key=lambda name: entropy([*frequencies[name].values()] or [1]))

    def _count_matches(self, row: int, preferences: Mapping[str, Sequence[str]]) -> int:
        return sum(len(self.values[name][row].intersection(labels)) for name, labels in preferences.items())

    def said(self, attribute: str, rows: Sequence[int], conversation: str) -> bool:
        """Return whether the conversation contains every label that these items share; True if they share none."""
        text = f" {fold(conversation)} "
        return all(f" {fold(label)} " in text for label in self.shared(attribute, rows))


def load_attributes(catalog_file: str | Path, names: Sequence[str], setting: str = "--ask") -> Attributes:
    """Read the attributes that a model may ask about from a parquet catalog.

    Args:
        catalog_file: the catalog. Attribute `genre` is column `genre` or `genres`; `decade` can come from the years.
        names: the attributes.
        setting: the option or variable that names the attributes, for error messages.

    Raises:
        UserError: an attribute is repeated, has no column, or has fewer than two labels, so that there is nothing to
            ask; or the file is replaced while it is read.
    """
    if Path(catalog_file).suffix != ".parquet":
        raise UserError(
            "questions.no-columns",
            f"{setting}: {catalog_file} has only titles and years. Use a .parquet catalog with columns to ask about.",
        )
    _check_names(names, setting)
    with reject_changes(catalog_file):
        catalog = load_catalog(catalog_file)
        columns = {name: _read_cells(catalog_file, catalog, name, setting) for name in names}
    values: dict[str, list[frozenset[str]]] = {}
    for name, (column, cells) in columns.items():
        try:
            values[name] = [parse_labels(cell) for cell in cells]
        except UserError as error:
            raise UserError(error.code, f"{setting} {name}: {catalog_file}: {column}: {error}") from None
        labels = sorted(frozenset().union(*values[name]))
        if len(labels) < 2:
            raise UserError(
                "questions.too-few-labels",
                f"{setting} {name}: {catalog_file}: column {column} has {len(labels)} different labels "
                f"({', '.join(labels)}), so there is nothing to ask. Name another column.",
            )
    return Attributes(catalog, values)


def _check_names(names: Sequence[str], setting: str) -> None:
    is_repeated = len(set(names)) < len(names)
    is_written_well = all(name.replace("_", "").isalnum() for name in names)
    if not names or is_repeated or not is_written_well:
        raise UserError(
            "questions.invalid-names",
            f"{setting} {','.join(names)}: name each attribute once, in letters, digits and underscores.",
        )
    identifying = {"title", "aliases", "item_id", "display"}.intersection(names)
    if identifying:
        raise UserError(
            "questions.identifying-attribute",
            f"{setting} {','.join(identifying)}: the answer would identify the item. Name other columns.",
        )


def _read_cells(catalog_file: str | Path, catalog: Catalog, name: str, setting: str) -> tuple[str, list[Any]]:
    """Return the column of an attribute, and its cell for each row of the catalog."""
    import pyarrow.parquet as pq

    columns = pq.read_schema(catalog_file).names
    for column in (name, f"{name}s"):
        if column in columns:
            return column, pq.read_table(catalog_file, columns=[column]).column(0).to_pylist()
    if name == DECADE and catalog.dated:
        return name, [None if year is None else f"{year // 10}0s" for year in catalog.years]
    choices = ", ".join(columns) + (f", and {DECADE} from the years" if catalog.dated else "")
    raise UserError(
        "questions.unknown-attribute",
        f"{setting} {name}: the catalog {catalog_file} has no column {name} or {name}s. It has {choices}.",
    )
