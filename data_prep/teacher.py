"""Teacher lists: of a language model behind an OpenAI-compatible address, or of retrieval (no model at all)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.matching import Matcher
from convrec.ranks import Item, format_item, parse_items
from convrec.schema import RL_SCHEMA
from data_prep.asking import BLOCK, Asker
from data_prep.retrieval_teacher import RetrievalTeacher
from data_prep.rows import ROWS, catalog_matcher, train_file
from data_prep.stages import Summary, count_rows, parquet_writer, read_blocks, written_whole

FILE, ITEMS = "teacher.parquet", "items.parquet"
SCHEMA = pa.schema(
    [
        ("sample_id", pa.string()),
        ("answer", pa.string()),
        ("items", pa.list_(pa.int32())),  # row of items.parquet by rank; -1 where the line is no item
    ]
)
# The catalog's rows first, then the items outside of it that the teacher named.
ITEMS_SCHEMA = pa.schema([("title", pa.string()), ("year", pa.int32()), ("in_catalog", pa.bool_())])
CORRECTION = (
    "That is not the list. Reply with exactly {num_items} lines and nothing else, one recommendation a line, best "
    "first, each in the form: title (release year)"
)


class ItemTable:
    """Numbers for items: the catalog's rows, and from there on what is not in the catalog, as it is met."""

    def __init__(self, matcher: Matcher) -> None:
        self.matcher = matcher
        self.outside: dict[tuple[str, int], tuple[int, Item]] = {}

    def number(self, item: Item | None) -> int:
        if item is None:
            return -1
        row, key = self.matcher.identify(*item)
        if row >= 0:
            return row
        new = len(self.matcher.catalog) + len(self.outside)
        return self.outside.setdefault((key, item.year), (new, item))[0]

    def table(self) -> pa.Table:
        catalog = self.matcher.catalog
        rows = [(title, year, True) for title, year in zip(catalog.titles, catalog.years, strict=True)]
        rows += [(item.title, item.year, False) for _, item in self.outside.values()]
        return pa.Table.from_pylist([dict(zip(ITEMS_SCHEMA.names, row, strict=True)) for row in rows], ITEMS_SCHEMA)


def run(folder: Path, settings: dict[str, Any], asker: Asker | None) -> Summary:
    """settings: teacher ("llm" or "retrieval"), num_items; asker: for the former."""
    matcher = catalog_matcher(folder)
    numbers = ItemTable(matcher)
    lists = llm_lists(folder, settings["num_items"], asker) if asker else retrieval_lists(folder, settings["num_items"])
    lines = items = in_catalog = 0
    with parquet_writer(folder / FILE, SCHEMA) as writer:
        for block in lists:
            rows = []
            for sample_id, answer in block:
                found = [numbers.number(item) for item in parse_items(answer)[: settings["num_items"]]]
                lines += len(found)
                items += sum(number >= 0 for number in found)
                in_catalog += sum(0 <= number < len(matcher.catalog) for number in found)
                rows.append({"sample_id": sample_id, "answer": answer, "items": found})
            writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
    with written_whole(folder / ITEMS) as partial:
        pq.write_table(numbers.table(), partial)
    summary = {
        "lines_a_list": round(lines / max(count_rows(folder / ROWS), 1), 2),
        "not_items": lines - items,
        "in_catalog": round(in_catalog / max(items, 1), 4),
        "items_outside": len(numbers.outside),
    }
    return summary | (asker.summary() if asker else {})


def llm_lists(folder: Path, num_items: int, asker: Asker) -> Iterator[list[tuple[str, str]]]:
    """Blocks of (sample_id, answer), the prompt asked as it is. Of two answers the one with more items."""

    def count(text: str) -> int:
        return sum(item is not None for item in parse_items(text))

    correction = CORRECTION.format(num_items=num_items)
    for rows in read_blocks(folder / ROWS, BLOCK, ["sample_id", "prompt"]):
        answers = asker.ask(
            [row["prompt"] for row in rows], lambda _, text: 2 * count(text) >= num_items, correction, "teacher"
        )
        yield [(row["sample_id"], max(texts, key=count)) for row, texts in zip(rows, answers, strict=True)]


def retrieval_lists(folder: Path, num_items: int) -> Iterator[list[tuple[str, str]]]:
    """Blocks of (sample_id, list) by RetrievalTeacher, which reads the whole training split into memory."""
    catalog = catalog_matcher(folder).catalog
    pairs = [(t, str(y)) for t, y in zip(catalog.titles, catalog.years, strict=True) if y is not None]
    teacher = RetrievalTeacher(pq.read_table(train_file(folder), columns=RL_SCHEMA.names).to_pylist(), pairs)
    for rows in read_blocks(folder / ROWS, BLOCK, RL_SCHEMA.names):
        lists = teacher.lists(rows, num_items, "teacher")
        yield [
            (row["sample_id"], "\n".join(format_item(title, int(year)) for title, year in items))
            for row, items in zip(rows, lists, strict=True)
        ]
