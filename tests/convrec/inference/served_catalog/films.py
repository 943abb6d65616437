"""A small catalog of films, and what a served catalog finds in it."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.inference.request_builder import RequestBuilder
from convrec.inference.served_catalog.items import ServedCatalog

FILMS = [("a", "Toy Story", 1995), ("b", "Heat", 1995), ("c", "Heat", 1986), ("d", "Amélie", 2001), ("300", "Up", 2009)]
LIMITS = {"max_items": 20, "max_tokens": 1000}
NEW = {"item_id": "n", "title": "Ronin", "year": 1998}


def write_catalog(folder: Path, films: list[tuple] = FILMS, ids: bool = True) -> Path:
    item_ids, titles, years = zip(*films, strict=True)
    columns = {"title": titles, "year": pa.array(years, pa.int32())} | ({"item_id": item_ids} if ids else {})
    pq.write_table(pa.table(columns), folder / "catalog.parquet")
    return folder / "catalog.parquet"


def ids(catalog: ServedCatalog) -> set[str]:
    return {item.item_id for item in catalog}


def find_ids(catalog: ServedCatalog, text: str | int) -> set[str]:
    snapshot = catalog.snapshot
    return {snapshot.items[number].item_id for number in catalog.find(text, snapshot)}


def make_requests(catalog: ServedCatalog) -> RequestBuilder:
    """Return a builder of requests that only looks up items: it has neither a model nor a tokenizer."""
    model: Any = None
    return RequestBuilder(model, catalog, None, template_arguments={}, max_prompt_length=0, context=0)
