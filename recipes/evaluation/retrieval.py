"""The retrieval's lists for the rows of a split, and their fusion with a model's lists."""

from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from convrec.data.schema import get_truth
from convrec.lists.metrics import ndcg_at_k
from convrec.retrieval.conversations import read_row
from convrec.retrieval.folder import save_fusion
from convrec.retrieval.retriever import Choice, Fusion, Retriever, fit
from convrec.titles.item import Item
from recipes.evaluation.split import Split

CONSTANTS = (10.0, 60.0)
WEIGHTS = tuple(tenth / 10 for tenth in range(11))  # of the model in a fusion


def fit_retriever(split: Split, train_rows: Sequence[dict[str, Any]]) -> Retriever:
    """Fit a retriever on training rows, with the default Choice: nothing is tuned on the rows that are scored.

    Args:
        split: the rows to retrieve for; its catalog and matcher read the training rows.
        train_rows: of schema.RL_SCHEMA.

    Raises:
        UserError: the rows have no words in common, or no row has a relevant item in the catalog.
    """
    conversations = (read_row(row, split.matcher, split.reader) for row in train_rows)
    return Retriever(fit(conversations, len(train_rows), len(split.catalog)), split.catalog.titles, Choice())


def retrieve(split: Split, retriever: Retriever, count: int) -> list[list[int]]:
    """Rank catalog items for each row of a split.

    Training rows of the same conversation do not count. Rows with the same prompt share one list object.

    Args:
        split: the rows.
        retriever: fitted for the same catalog.
        count: length of the lists.

    Returns:
        One list of catalog rows per row, best first, without seen items.
    """
    lists_by_key: dict[tuple, list[int]] = {}  # rows with the same prompt share their list
    lists = []
    reader = split.reader
    for conversation in (read_row(row, split.matcher, reader) for row in split.rows):
        key = (conversation.text, conversation.name, *conversation.seen)
        lists.append(lists_by_key.get(key) or lists_by_key.setdefault(key, retriever.rank(conversation, count=count)))
    return lists


def find_listed_rows(split: Split, lists: Iterable[Sequence[Item | None]]) -> list[list[int]]:
    """Find the distinct unseen catalog items in each row's list.

    Args:
        split: the rows.
        lists: one per row; None for a line that is not an item.

    Returns:
        The items' catalog rows, in the order of each list.
    """
    rows = []
    reader = split.reader
    for row, items in zip(split.rows, lists, strict=True):
        listed = dict.fromkeys(split.matcher.identify_line(*item).index for item in items if item)
        excluded = {-1, *reader.seen_rows(row["seen_titles"])}
        rows.append([item for item in listed if item not in excluded])
    return rows


def find_relevant_items(split: Split) -> list[tuple[set[int], int]]:
    """Find each row's relevant items.

    Returns:
        For each row, the catalog rows of its ground truth, and the number of its ground truths, in the catalog or not.
    """
    counts = (len(split.matcher.truths(get_truth(row))) for row in split.rows)
    return [*zip(map(set, split.find_relevant_rows(split.rows)), counts, strict=True)]


def compute_mean_ndcg(lists: Iterable[Sequence[int]], answers: Sequence[tuple[set[int], int]], k: int) -> float:
    """Compute NDCG@k, averaged over the rows with ground truth.

    Args:
        lists: catalog items of each row.
        answers: what `find_relevant_items` returns.
        k: cut-off.
    """
    rows = zip(lists, answers, strict=True)
    values = [ndcg_at_k([item in wanted for item in items[:k]], count, k) for items, (wanted, count) in rows if count]
    return sum(values) / len(values)


def tune_fusion(
    split: Split,
    retriever: Retriever,
    folder: Path,
    model: str | None,
    k: int,
    written: Sequence[Sequence[int]],
    retrieved: list[list[int]],
) -> Fusion:
    """Choose the fusion with the best NDCG@k on the split, and store it in the retrieval's folder.

    Args:
        split: rows to tune on.
        retriever: loaded from the folder.
        folder: from `convrec retrieval fit`.
        model: name of the model whose lists are fused.
        k: cut-off of NDCG.
        written: the model's lists, as catalog rows.
        retrieved: the retrieval's lists.

    Raises:
        UserError: the folder holds another fit now.
    """
    answers = find_relevant_items(split)
    candidates = [Fusion(*pair) for pair in product(WEIGHTS, CONSTANTS)]
    both = [*zip(written, retrieved, strict=True)]
    scores = {fusion: compute_mean_ndcg([fusion.of(*pair) for pair in both], answers, k) for fusion in candidates}
    best = max(candidates, key=lambda fusion: scores[fusion])
    table = [{**fusion._asdict(), f"ndcg@{k}": score} for fusion, score in scores.items()]
    save_fusion(folder, retriever.notes, best, {"model": model, "data": split.data, "table": table})
    return best
