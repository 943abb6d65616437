"""Lists of the retrieval for the rows of a split, and a model's lists fused with them."""

from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from convrec.base.files import write_json
from convrec.data.schema import get_truth
from convrec.lists.metrics import ndcg_at_k
from convrec.retrieval.conversations import read_row
from convrec.retrieval.folder import NOTES, load_notes
from convrec.retrieval.retriever import Choice, Fusion, Retriever, fit
from convrec.titles.item import Item
from recipes.evaluation.split import Split

CONSTANTS = (10.0, 60.0)
WEIGHTS = tuple(tenth / 10 for tenth in range(11))  # of a model


def fitted(split: Split, train_rows: Sequence[dict[str, Any]]) -> Retriever:
    """On these rows, with the weights of a Choice of its own: nothing is chosen on the rows that are scored."""
    conversations = (read_row(row, split.matcher, split.reader) for row in train_rows)
    return Retriever(fit(conversations, len(train_rows), len(split.catalog)), split.catalog.titles, Choice())


def retrieve(split: Split, retriever: Retriever) -> list[list[int]]:
    """Of every row catalog items, best first; its own conversation's training rows have no part in them."""
    known: dict[tuple, list[int]] = {}  # rows of a prompt share their list
    lists = []
    reader = split.reader
    for asked in (read_row(row, split.matcher, reader) for row in split.rows):
        same = (asked.text, asked.name, *asked.seen)
        lists.append(known.get(same) or known.setdefault(same, retriever.rank(asked)))
    return lists


def written_rows(split: Split, lists: Iterable[Sequence[Item | None]]) -> list[list[int]]:
    """Of every row the catalog's items in the list that a model wrote, but what was seen, each once."""
    rows = []
    reader = split.reader
    for row, items in zip(split.rows, lists, strict=True):
        found = dict.fromkeys(split.matcher.identify_line(*item).index for item in items if item)
        rows.append([item for item in found if item not in {-1, *reader.seen_rows(row["seen_titles"])}])
    return rows


def find_relevant_items(split: Split) -> list[tuple[set[int], int]]:
    """Of every row the items that it wants, and how many titles, those that the catalog lacks included."""
    counts = (len(split.matcher.truths(get_truth(row))) for row in split.rows)
    return [*zip(map(set, split.wanted_rows(split.rows)), counts, strict=True)]


def mean_ndcg(lists: Iterable[Sequence[int]], answers: Sequence[tuple[set[int], int]], k: int) -> float:
    """NDCG@k, the mean over the rows that want something."""
    rows = zip(lists, answers, strict=True)
    values = [ndcg_at_k([item in wanted for item in items[:k]], count, k) for items, (wanted, count) in rows if count]
    return sum(values) / len(values)


def weigh(
    split: Split, folder: Path, model: str | None, k: int, written: Sequence[Sequence[int]], found: list[list[int]]
) -> Fusion:
    """The best fusion of a model's lists and those retrieved by NDCG@k on these rows; noted in the folder."""
    answers = find_relevant_items(split)
    tried = [Fusion(*pair) for pair in product(WEIGHTS, CONSTANTS)]
    both = [*zip(written, found, strict=True)]
    scores = {fusion: mean_ndcg([fusion.of(*pair) for pair in both], answers, k) for fusion in tried}
    best = max(tried, key=lambda fusion: scores[fusion])
    table = [{**fusion._asdict(), f"ndcg@{k}": score} for fusion, score in scores.items()]
    chosen = {"fusion": best._asdict(), "fusion_of": {"model": model, "data": split.data, "table": table}}
    write_json(folder / NOTES, load_notes(folder) | chosen)
    return best
