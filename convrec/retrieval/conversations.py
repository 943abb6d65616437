"""The inputs of retrieval: conversations (text, named and relevant titles) and the words of the catalog."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.data.schema import (
    TURN,
    conversation_text,
    get_group_id,
    get_truth,
    is_like,
    normalise_text,
    strip_questions,
)
from convrec.titles.matching import Matcher

# Speakers count as words. With fewer words, conversations of different people begin the same: of ReDial's 1,605, two do
# with 8 words, 109 with 4.
PREFIX_WORDS = 8


class Conversation(NamedTuple):
    """A conversation.

    Attributes:
        text: the turns.
        named: the named items, as their first catalog rows.
        name: the conversation's id, whose training rows are ignored; None to ignore none.
        wanted: the relevant items, as their first catalog rows.
        seen: all catalog rows of the named items, which no list may contain.
    """

    text: str
    named: Sequence[int] = ()
    name: str | None = None
    wanted: Sequence[int] = ()
    seen: Sequence[int] = ()

    @property
    def key(self) -> int:
        """60 bits of a hash of the name, the same in every process."""
        return hash60(self.name or "")

    def compute_text_keys(self) -> list[int]:
        """Hash the prefixes of the conversation: after each turn, if they have PREFIX_WORDS or more, and the whole.

        With these keys, two rows are recognised as one conversation even if their names differ: their texts are equal,
        or one continues the other. Questions at the end are ignored (`strip_questions`).
        """
        text = strip_questions(self.text)
        keys = []
        for turn in islice(TURN.finditer(text), 1, None):
            prefix = normalise_text(text[: turn.start()])
            if len(prefix.split()) >= PREFIX_WORDS:
                keys.append(hash60(prefix))
        return [*keys, hash60(normalise_text(text))]


def hash60(text: str) -> int:
    """Return 60 bits of a hash of a text."""
    return int(sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:15], 16)


def read_row(row: Mapping[str, Any], matcher: Matcher, reader: Matcher | None = None) -> Conversation:
    """Read a row of schema.RL_SCHEMA.

    Args:
        row: the row.
        matcher: finds the relevant titles.
        reader: finds the named titles; None for the same matcher.
    """
    seen = (reader or matcher).seen_rows(row["seen_titles"])
    named = {(reader or matcher).index.items[catalog_row] for catalog_row in seen}
    wanted = {matcher.wanted(*pair).index for pair in get_truth(row)} - {-1}
    return Conversation(
        text=conversation_text(row),
        named=sorted(named),
        name=get_group_id(row),
        wanted=sorted(wanted),
        seen=seen,
    )


def build_item_texts(file: str | Path, matcher: Matcher) -> list[str]:
    """Return the words of each item at its first row: its titles and its columns of texts, except for the id.

    Args:
        file: the catalog's file; only parquet has columns besides the titles.
        matcher: of the same catalog.

    Returns:
        M texts; "" for rows that repeat an earlier item, and for items without a year in a catalog with years.
    """
    schema = pq.read_schema(file) if Path(file).suffix == ".parquet" else ()
    text_types = (pa.string(), pa.list_(pa.string()))
    names = {column.name for column in schema if any(is_like(column.type, kind) for kind in text_types)}
    columns = []
    for name in sorted(names - {"title", "item_id"}):
        cells = pq.read_table(file, columns=[name])[name].to_pylist()
        columns.append([_join_texts(cell) for cell in cells])
    words_M = [""] * len(matcher.catalog)
    catalog = matcher.catalog
    for first, *words in zip(matcher.index.items, catalog.titles, *columns, strict=True):
        if catalog.years[first] or not catalog.dated:  # an item without a year has no line
            words_M[first] += " ".join(words) + " "
    return words_M


def _join_texts(cell: str | Sequence[str | None] | None) -> str:
    """Join the texts of a cell, which is a text or a list of texts."""
    texts = [cell] if isinstance(cell, str) else cell or ()
    return " ".join(text for text in texts if text)
