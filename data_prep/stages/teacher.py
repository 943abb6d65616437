"""Teacher lists, by a language model at an OpenAI-compatible endpoint or by retrieval without a model."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from convrec.base.files import write_table
from convrec.data.schema import RL_SCHEMA
from convrec.lists.ranks import parse_items
from convrec.retrieval.conversations import read_row
from convrec.retrieval.retriever import Choice, Retriever, fit
from convrec.titles.item import Item
from convrec.titles.matching import Matcher
from data_prep.stages.asking import BLOCK, PROMPTS, Asker
from data_prep.stages.record import Summary, count_rows, read_blocks, read_rows
from data_prep.stages.rows import ROWS, find_train_file, load_matcher, make_year_column
from data_prep.tables import open_table_writer

FILE = "teacher.parquet"
ITEMS = "items.parquet"
FREQUENT_SHARE = 0.5  # of the lists
MIN_LISTS = 100
SCHEMA = pa.schema(
    [
        ("sample_id", pa.string()),
        ("answer", pa.string()),  # null if the question got none
        ("items", pa.list_(pa.int32())),  # row of items.parquet by rank; -1 if the line is not an item
    ]
)
# The catalog's rows come first, then the items outside of it that the teacher named.
ITEMS_SCHEMA = pa.schema([("title", pa.string()), ("year", pa.int32()), ("in_catalog", pa.bool_())])


class ItemTable:
    """Number items: by their row in the catalog, and items outside of it from there on, in order of appearance."""

    def __init__(self, matcher: Matcher) -> None:
        self.matcher = matcher
        self.outside: dict[tuple[str, int], tuple[int, Item]] = {}

    def find_number(self, item: Item | None) -> int:
        """Return the number of an item; -1 for None."""
        if item is None:
            return -1
        row, key = self.matcher.identify_line(*item)
        if row >= 0:
            return row
        new = len(self.matcher.catalog) + len(self.outside)
        return self.outside.setdefault((key, item.year), (new, item))[0]

    def build_table(self) -> pa.Table:
        """Return all numbered items, with ITEMS_SCHEMA."""
        catalog = self.matcher.catalog
        outside = [item for _, item in self.outside.values()]
        columns = {
            "title": [*catalog.titles, *(item.title for item in outside)],
            "year": [
                *make_year_column(catalog).to_pylist(),
                *(item.year if catalog.dated else None for item in outside),
            ],
            "in_catalog": [True] * len(catalog) + [False] * len(outside),
        }
        return pa.table(columns, ITEMS_SCHEMA)


@dataclass(frozen=True)
class TeacherSettings:
    """Settings that the teacher's lists depend on.

    Attributes:
        teacher: "llm" or "retrieval".
        num_items: items of a list.
        model: name of the model that is asked; None: none.
        sampling: sampling parameters of its answers.
    """

    teacher: str
    num_items: int
    model: str | None = None
    sampling: Mapping[str, Any] | None = None


def run(folder: Path, settings: TeacherSettings, asker: Asker | None) -> Summary:
    """Write a list for each conversation, and number all items that the lists name.

    Args:
        folder: of the stages.
        settings: what the result depends on.
        asker: asks the teacher; None: retrieval makes the lists.
    """
    matcher = load_matcher(folder)
    n = settings.num_items
    catalog = matcher.catalog
    numbers = ItemTable(matcher)
    lists = iter_llm_lists(folder, n, asker, catalog.dated) if asker else iter_retrieval_lists(folder, n, matcher)
    lines = 0
    items = 0
    in_catalog = 0
    num_lists = 0
    listed: Counter[int] = Counter()
    with open_table_writer(folder / FILE, SCHEMA) as add:
        for sample_id, answer in lists:
            list_numbers = [numbers.find_number(item) for item in parse_items(answer or "", dated=catalog.dated)[:n]]
            num_lists += 1
            listed.update({number for number in list_numbers if number >= 0})
            lines += len(list_numbers)
            items += sum(number >= 0 for number in list_numbers)
            in_catalog += sum(0 <= number < len(catalog) for number in list_numbers)
            add({"sample_id": sample_id, "answer": answer, "items": list_numbers})
    table = numbers.build_table()
    write_table(folder / ITEMS, table)
    summary = {
        "lines_a_list": round(lines / max(count_rows(folder / ROWS), 1), 2),
        "not_items": lines - items,
        "in_catalog": round(in_catalog / max(items, 1), 4),
        "items_outside": len(numbers.outside),
        "warnings": warn_about_frequent_items(listed, num_lists, table["title"].to_pylist()),
    }
    return summary | (asker.summary() if asker else {})


def warn_about_frequent_items(listed: Mapping[int, int], num_lists: int, titles: Sequence[str]) -> list[str]:
    """Warn about items that are in more than FREQUENT_SHARE of the lists, whatever was asked for.

    Args:
        listed: number of an item -> number of lists that contain it.
        num_lists: number of lists; there is no warning for fewer than MIN_LISTS.
        titles: title by number of an item.
    """
    frequent = [item for item, count in listed.items() if count > FREQUENT_SHARE * num_lists]
    if num_lists < MIN_LISTS or not frequent:
        return []
    most = max(frequent, key=lambda item: listed[item])
    return [
        f"{len(frequent):,} items are in more than half of the lists, {titles[most]} in {listed[most]:,} of "
        f"{num_lists:,}: the teacher repeats popular items; read some lists before you train on them"
    ]


def iter_llm_lists(folder: Path, num_items: int, asker: Asker, dated: bool) -> Iterator[tuple[str, str | None]]:
    """Ask a model for the list of each row, with the row's own prompt.

    Args:
        folder: of the stages.
        num_items: items of a list. The model is asked again if an answer has fewer than half of them.
        asker: asks, and notes failed rows.
        dated: whether lines have years.

    Yields:
        (sample_id, answer). If the model answered twice, the answer with more items counts; None if it did not answer.
    """

    def count(text: str) -> int:
        return sum(item is not None for item in parse_items(text, dated=dated))

    form = "title (release year)" if dated else "title"
    for rows in read_blocks(folder / ROWS, BLOCK, ["sample_id", "prompt"]):
        names = [row["sample_id"] for row in rows]
        answers = asker.ask(
            [row["prompt"] for row in rows],
            lambda _, text: 2 * count(text) >= num_items,
            PROMPTS["teacher_again"].format(num_items=num_items, form=form),
            "teacher",
            names=names,
        )
        best = [max(texts, key=count) for texts in answers]
        failed = {entry["row"] for entry in asker.failed}
        for name, text in zip(names, best, strict=True):
            yield name, None if name in failed and not text else text


def iter_retrieval_lists(folder: Path, num_items: int, matcher: Matcher) -> Iterator[tuple[str, str | None]]:
    """Make the list of each row by retrieval fitted on the whole training split.

    A row's own conversation does not influence its list.

    Args:
        folder: of the stages.
        num_items: items of a list; shorter if fewer items are known.
        matcher: of the catalog.

    Yields:
        (sample_id, list), one item per line.

    Raises:
        UserError: the training split is missing or has changed, or nothing can be fitted on it.
    """
    catalog = matcher.catalog
    lines = matcher.catalog.lines
    train = find_train_file(folder)
    rows = (read_row(row, matcher) for row in read_rows(train, RL_SCHEMA.names))
    retriever = Retriever(fit(rows, count_rows(train), len(catalog)), catalog.titles, Choice())
    usable_M = np.array([year is not None for year in catalog.years])
    for row in read_rows(folder / ROWS, RL_SCHEMA.names):
        items = retriever.rank(read_row(row, matcher), usable_M, num_items)
        yield row["sample_id"], "\n".join(lines[m] for m in items)
