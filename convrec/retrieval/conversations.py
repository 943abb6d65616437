"""What retrieval reads: conversations (words, titles named and wanted, whose they are) and the catalog's own words."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.data.schema import conversation_text, group_of, is_like, truth_of
from convrec.lists.matching import Matcher


class Conversation(NamedTuple):
    """named, wanted: catalog rows, of an item's rows the first. seen: all rows of the items named, which no list has.
    name: whose rows of training are left out; None: none are."""

    text: str
    named: Sequence[int] = ()
    name: str | None = None
    wanted: Sequence[int] = ()
    seen: Sequence[int] = ()

    @property
    def key(self) -> int:
        """60 bits of the hash of its name, the same in every process."""
        return int(sha256((self.name or "").encode("utf-8", "surrogatepass")).hexdigest()[:15], 16)


def read_row(row: Mapping[str, Any], matcher: Matcher, reader: Matcher | None = None) -> Conversation:
    """A row of schema.RL_SCHEMA. matcher, reader: find the titles wanted, and those named (None: the same)."""
    seen = (reader or matcher).seen_rows(row["seen_titles"])
    named = {(reader or matcher).index.items[one] for one in seen}
    wanted = {matcher.wanted(*pair).index for pair in truth_of(row)} - {-1}
    return Conversation(conversation_text(row), sorted(named), group_of(row), sorted(wanted), seen)


def item_texts(file: str | Path, matcher: Matcher) -> list[str]:
    """The words of each item, at its first row: titles, and the columns of texts and of lists of texts, but the id."""
    fields = pq.read_schema(file) if Path(file).suffix == ".parquet" else ()
    names = {one.name for one in fields if is_like(one.type, pa.string()) or is_like(one.type, pa.list_(pa.string()))}
    columns = [pq.read_table(file, columns=[name])[name].to_pylist() for name in sorted(names - {"title", "item_id"})]
    columns = [[" ".join(filter(None, [v] if isinstance(v, str) else v or ())) for v in column] for column in columns]
    words_M, catalog = [""] * len(matcher.catalog), matcher.catalog
    for first, *words in zip(matcher.index.items, catalog.titles, *columns, strict=True):
        if catalog.years[first] or not catalog.dated:  # else no line names it
            words_M[first] += " ".join(words) + " "
    return words_M
