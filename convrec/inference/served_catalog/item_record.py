"""Reads a record of the HTTP interface as an item of the served catalog, and checks every field."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from convrec.base.errors import UserError
from convrec.inference.served_catalog.columns import read_values
from convrec.inference.served_catalog.snapshot import CatalogItem
from convrec.titles.catalog import NEWEST_YEAR, OLDEST_YEAR, add_display, parse_year
from convrec.titles.forms import normalise
from convrec.titles.item import parse_item


@dataclass(frozen=True)
class RecordReader:
    """Reads records for one catalog.

    Attributes:
        dated: whether its items have years.
        delimiter: between the items of a list; no title may contain it.
        columns: the catalog's additional columns.
    """

    dated: bool
    delimiter: str
    columns: pa.Schema

    def read(self, record: Mapping[str, Any], here: str) -> CatalogItem:
        """Read an item.

        Args:
            record: {"item_id", "title", "year", "display"} and additional columns.
            here: what an error calls the record.

        Raises:
            UserError: a field is missing or invalid, or a list could not name the item.
        """
        if not isinstance(record, Mapping):
            raise UserError("item.no-record", f'{here}: expected {{"item_id": ..., "title": ..., "year": ...}}.')
        item = CatalogItem(
            item_id=_read_id(record.get("item_id"), here),
            clean_title=self._read_title(record.get("title"), here),
            display=self._read_display(record, here),
            year=self._read_year(record.get("year"), here),
            columns=read_values(record, self.columns, here),
        )
        self._check_line(item, here)
        return item

    def _read_title(self, title: Any, here: str) -> str:
        if not isinstance(title, str) or not _is_one_line(title) or self.delimiter in title:
            raise UserError("item.title", f"{here}: the title {title!r:.80} is not a single line of text.")
        return title.strip()

    def _read_display(self, record: Mapping[str, Any], here: str) -> str | None:
        """Read the addition that tells the title from equal ones; None for none."""
        display = record.get("display")
        error = UserError("item.display", f"{here}: display {display!r:.80} is not a single line of text.")
        if isinstance(display, bool) or not isinstance(display, str | int | None):
            raise error
        text = "" if display is None else str(display).strip()
        if not text:
            return None
        if not _is_one_line(text) or self.delimiter in add_display(record["title"].strip(), text):
            raise error
        return text

    def _read_year(self, year: Any, here: str) -> int | None:
        if not self.dated:
            if year not in (None, ""):
                raise UserError("item.year", f"{here}: year {year!r:.20}: the catalog has no years. Remove it.")
            return None
        number = parse_year(year)
        if number is None or not OLDEST_YEAR <= number <= NEWEST_YEAR:
            raise UserError("item.year", f"{here}: year {year!r:.20} is not from {OLDEST_YEAR} to {NEWEST_YEAR}.")
        return number

    def _check_line(self, item: CatalogItem, here: str) -> None:
        """Refuse an item whose line in a list reads as another title."""
        parsed = parse_item(item.line, self.dated)
        if parsed is None or normalise(parsed.title) != normalise(item.title):
            raise UserError(
                "item.misread-line",
                f"{here}: the line {item.line!r} reads as {parsed.title if parsed else None!r}. Change the title.",
            )


def _read_id(item_id: Any, here: str) -> str:
    if isinstance(item_id, bool) or not isinstance(item_id, str | int) or not _is_one_line(str(item_id)):
        raise UserError("item.id", f"{here}: item_id {item_id!r:.40} is not a single line of text or a number.")
    return str(item_id).strip()


def _is_one_line(text: str) -> bool:
    """Return whether a text is one non-empty line, for all kinds of line breaks."""
    return len(text.strip().splitlines()) == 1
