"""A record of the HTTP interface as an item of the served catalog: every field checked, the first wrong one named."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from convrec.base.errors import UserError
from convrec.inference.served_catalog.columns import read_values
from convrec.inference.served_catalog.snapshot import CatalogItem
from convrec.titles.catalog import NEWEST_YEAR, OLDEST_YEAR, parse_year, shown_title
from convrec.titles.forms import normalise
from convrec.titles.item import parse_item


@dataclass(frozen=True)
class RecordReader:
    """Reads records for one catalog.

    Attributes:
        dated: whether its items have years.
        delimiter: between the items of a list, which no title may have.
        columns: the catalog's further columns.
    """

    dated: bool
    delimiter: str
    columns: pa.Schema

    def read(self, record: Mapping[str, Any], here: str) -> CatalogItem:
        """Return the item.

        Args:
            record: {"item_id", "title", "year", "display"} and further columns.
            here: what an error calls the record.

        Raises:
            UserError: A field is missing or wrong, or a list could not name the item.
        """
        if not isinstance(record, Mapping):
            raise UserError(f'{here}: write {{"item_id": ..., "title": ..., "year": ...}}')
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
            raise UserError(f"{here}: the title is {title!r:.80}; write a text of one line")
        return title.strip()

    def _read_display(self, record: Mapping[str, Any], here: str) -> str | None:
        """What the title is shown with, to tell it from others."""
        display = record.get("display")
        problem = UserError(f"{here}: display is {display!r:.80}; write a text of one line")
        if isinstance(display, bool) or not isinstance(display, str | int | None):
            raise problem
        text = "" if display is None else str(display).strip()
        if not text:
            return None
        if not _is_one_line(text) or self.delimiter in shown_title(record["title"].strip(), text):
            raise problem
        return text

    def _read_year(self, year: Any, here: str) -> int | None:
        if not self.dated:
            if year not in (None, ""):
                raise UserError(f"{here}: it has a year, but the catalog has none; leave it out")
            return None
        number = parse_year(year)
        if number is None or not OLDEST_YEAR <= number <= NEWEST_YEAR:
            raise UserError(f"{here}: the year is {year!r:.20}; write one from {OLDEST_YEAR} to {NEWEST_YEAR}")
        return number

    def _check_line(self, item: CatalogItem, here: str) -> None:
        """Refuse an item whose line in a list is read as another title."""
        again = parse_item(item.line, self.dated)
        if again is None or normalise(again.title) != normalise(item.title):
            raise UserError(f"{here}: {item.line!r} is read as {again.title if again else None!r}; change the title")


def _read_id(item_id: Any, here: str) -> str:
    if isinstance(item_id, bool) or not isinstance(item_id, str | int) or not _is_one_line(str(item_id)):
        raise UserError(f"{here}: item_id is {item_id!r:.40}; give a text of one line or a number")
    return str(item_id).strip()


def _is_one_line(text: str) -> bool:
    """Whether a text has one line, of whatever kind its breaks could be, and something in it."""
    return len(text.strip().splitlines()) == 1
