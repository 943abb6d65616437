"""What retrieval reads: conversations (words, titles named and wanted, whose they are) and the catalog's own words."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.data.schema import (
    TURN,
    before_questions,
    conversation_text,
    get_group_id,
    get_truth,
    is_like,
    normalise_text,
)
from convrec.titles.matching import Matcher

# Speakers count. With fewer, other people's conversations begin alike: of ReDial's 1,605 two do with 8, 109 with 4.
PREFIX_WORDS = 8


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
        return hash60(self.name or "")

    def text_keys(self) -> list[int]:
        """Hash what the conversation was after each turn of PREFIX_WORDS or more, and, last, the whole of it.

        By these keys two rows are found to be one conversation although their names differ: the same text, or one text
        that goes on where the other ends. Questions at the end are no part of it (`before_questions`).
        """
        text = before_questions(self.text)
        keys = []
        for turn in islice(TURN.finditer(text), 1, None):
            prefix = normalise_text(text[: turn.start()])
            if len(prefix.split()) >= PREFIX_WORDS:
                keys.append(hash60(prefix))
        return [*keys, hash60(normalise_text(text))]


def hash60(text: str) -> int:
    return int(sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:15], 16)


def read_row(row: Mapping[str, Any], matcher: Matcher, reader: Matcher | None = None) -> Conversation:
    """A row of schema.RL_SCHEMA. matcher, reader: find the titles wanted, and those named (None: the same)."""
    seen = (reader or matcher).seen_rows(row["seen_titles"])
    named = {(reader or matcher).index.items[one] for one in seen}
    wanted = {matcher.wanted(*pair).index for pair in get_truth(row)} - {-1}
    return Conversation(
        text=conversation_text(row),
        named=sorted(named),
        name=get_group_id(row),
        wanted=sorted(wanted),
        seen=seen,
    )


def item_texts(file: str | Path, matcher: Matcher) -> list[str]:
    """The words of each item, at its first row: titles, and the columns of texts and of lists of texts, but the id."""
    fields = pq.read_schema(file) if Path(file).suffix == ".parquet" else ()
    names = {one.name for one in fields if is_like(one.type, pa.string()) or is_like(one.type, pa.list_(pa.string()))}
    columns = []
    for name in sorted(names - {"title", "item_id"}):
        cells = pq.read_table(file, columns=[name])[name].to_pylist()
        columns.append([_join_texts(cell) for cell in cells])
    words_M = [""] * len(matcher.catalog)
    catalog = matcher.catalog
    for first, *words in zip(matcher.index.items, catalog.titles, *columns, strict=True):
        if catalog.years[first] or not catalog.dated:  # else no line names it
            words_M[first] += " ".join(words) + " "
    return words_M


def _join_texts(cell: str | Sequence[str | None] | None) -> str:
    """The words of a cell that is a text or a list of texts."""
    texts = [cell] if isinstance(cell, str) else cell or ()
    return " ".join(text for text in texts if text)
