"""Lists of the retrieval for the rows of a split, and a model's lists fused with them."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from convrec.data.schema import truth_of
from convrec.lists.metrics import ndcg_at_k
from convrec.lists.ranks import Item
from convrec.retrieval.conversations import Conversation, item_texts, read_row
from convrec.retrieval.folder import load
from convrec.retrieval.fusion import Fusion
from convrec.retrieval.retriever import Choice, Retriever, fit
from recipes.evaluation.split import Split


def fitted(split: Split, train_rows: Sequence[dict[str, Any]]) -> Retriever:
    """On these rows, with the weights of a Choice of its own: nothing is chosen on the rows that are scored."""
    conversations = (read_row(row, split.matcher, split.reader) for row in train_rows)
    arrays = fit(conversations, len(train_rows), len(split.catalog))
    return Retriever(arrays, item_texts(split.catalog_file, split.catalog), Choice())


def loaded(split: Split, folder: str, fuses: bool) -> Retriever:
    """With a warning where the catalog is another than it was fitted on. fuses: with a model's lists."""
    retriever, warnings = load(Path(folder), split.catalog_file, split.matcher, fuses)
    split.warnings.extend(warnings)
    return retriever


def asked_of(split: Split) -> Iterator[tuple[Conversation, np.ndarray]]:
    """Of every row what retrieval reads, and (M,) which items a list may have: what the scoring does not call seen."""
    for row in split.rows:
        allowed_M = np.ones(len(split.catalog), bool)
        allowed_M[split.reader.seen_rows(row["seen_titles"])] = False
        yield read_row(row, split.matcher, split.reader), allowed_M


def retrieve(split: Split, retriever: Retriever) -> list[list[int]]:
    """Of every row catalog items, best first; its own conversation's training rows have no part in them."""
    known: dict[tuple, list[int]] = {}  # rows of a prompt share their list
    lists = []
    for asked, allowed_M in asked_of(split):
        same = (asked.text, asked.name, allowed_M.tobytes())
        lists.append(known.get(same) or known.setdefault(same, retriever.rank(asked, allowed_M)))
    return lists


def written_rows(split: Split, lists: Iterable[Sequence[Item | None]]) -> list[list[int]]:
    """The catalog's items in lists that a model wrote, each once."""
    rows = [[split.matcher.identify_line(*item).index for item in items if item] for items in lists]
    return [[item for item in dict.fromkeys(items) if item >= 0] for items in rows]


def fuse_rows(
    split: Split, fusion: Fusion, written: Iterable[Sequence[int]], retrieved: Iterable[Sequence[int]]
) -> list[list[int]]:
    """Of every row the fused list of what a model wrote, but what was seen, and what is retrieved."""
    lists = []
    for row, items, found in zip(split.rows, written, retrieved, strict=True):
        seen = set(split.reader.seen_rows(row["seen_titles"]))
        lists.append(fusion.of([item for item in items if item not in seen], found))
    return lists


class Answer(NamedTuple):
    """What a row wants: items of the catalog, and how many titles, those that the catalog lacks included."""

    items: set[int]
    titles: int


def answers_of(split: Split) -> list[Answer]:
    counts = (len(split.matcher.truths(truth_of(row))) for row in split.rows)
    return [Answer(set(items), count) for items, count in zip(split.wanted_rows(split.rows), counts, strict=True)]


def mean_ndcg(lists: Iterable[Sequence[int]], answers: Sequence[Answer], k: int) -> float:
    """NDCG@k, the mean over the rows that want something."""
    rows = zip(lists, answers, strict=True)
    values = [ndcg_at_k([item in of.items for item in items[:k]], of.titles, k) for items, of in rows if of.titles]
    return sum(values) / len(values)
