"""How well the embedded sample data can be ranked at all, and how well popularity and the generated teacher rank it.

    python -m benchmarks.studies.sample_ceiling data/sample

A reader gets the taste back out of a conversation's words and ranks by the true utility: nothing that the ground truth
depends on is hidden from it.
"""

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from convrec.data.schema import conversation_text, get_truth
from convrec.lists.metrics import ndcg_at_k, recall_at_k
from convrec.titles.item import format_item
from data_prep.sample import select_unseen
from data_prep.sample_data.conversations import ERA_WORDS, GENRE_WORDS
from data_prep.sample_data.films import FilmTable, Taste, load_films


def read_taste(table: FilmTable, conversation: str) -> Taste:
    """Read the taste that a conversation states: the films it names, and genre and era words outside of their titles.

    Args:
        table: the films.
        conversation: its text.
    """
    named = []
    for row, film in sorted(enumerate(table.films), key=lambda entry: -len(entry[1].name)):
        if film.name in conversation:  # longest first: "Psycho (1960)" is also the end of "American Psycho (1960)"
            named.append(row)
            conversation = conversation.replace(film.name, "")
    return Taste(
        genres=tuple(genre for genre, spellings in GENRE_WORDS.items() if _says(conversation, spellings)),
        era=next((era for era, spellings in ERA_WORDS.items() if _says(conversation, spellings)), ""),
        named=tuple(named),
    )


def _says(text: str, spellings: Sequence[str]) -> bool:
    return any(re.search(rf"\b{re.escape(spelling)}\b", text) for spelling in spellings)


def oracle_list(table: FilmTable, conversation: str, num_items: int) -> list[int]:
    """Rank films by the true utility of the taste that the conversation's words state.

    Args:
        table: the films.
        conversation: its text.
        num_items: length of the list.

    Returns:
        Rows of the table, best first, without the films that are named.
    """
    taste = read_taste(table, conversation)
    return select_unseen(table, np.argsort(-table.utility(taste)), num_items, taste.named)


def check_sample(folder: str | os.PathLike) -> dict[str, tuple[float, float]]:
    """Measure popularity, teacher and oracle on the validation split of the sample.

    Args:
        folder: that `convrec data sample` wrote.

    Returns:
        Name -> recall and NDCG at the length of the lists.
    """
    table = load_films()
    rows = pq.read_table(Path(folder) / "sft_validation.parquet").to_pylist()
    catalog = pq.read_table(Path(folder) / "catalog.parquet").sort_by([("mentions", "descending")]).to_pylist()
    popular = [format_item(film["title"], film["year"]) for film in catalog[:60]]
    lists: dict[str, list[list[str]]] = {"popularity": [], "teacher": [], "oracle": []}
    for row in rows:
        teacher = row["completion"][0]["content"].split("\n")
        conversation = conversation_text(row)
        lists["teacher"].append(teacher)
        lists["popularity"].append([name for name in popular if name not in conversation][: len(teacher)])
        lists["oracle"].append([table.films[i].name for i in oracle_list(table, conversation, len(teacher))])
    truths = [{format_item(title, int(year)) for title, year in get_truth(row)} for row in rows]
    return {name: _recall_and_ndcg(ranked, truths) for name, ranked in lists.items()}


def _recall_and_ndcg(lists: list[list[str]], truths: list[set[str]]) -> tuple[float, float]:
    """Means over rows, by exact names: every title here comes from one table, so nothing needs matching."""
    recalls, ndcgs = [], []
    for names, truth in zip(lists, truths, strict=True):
        relevance = [float(name in truth) for name in names]
        recalls.append(recall_at_k(relevance, len(truth), len(names)))
        ndcgs.append(ndcg_at_k(relevance, len(truth), len(names)))
    return float(np.mean(recalls)), float(np.mean(ndcgs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", help="what `convrec data sample` wrote")
    for name, (recall, ndcg) in check_sample(parser.parse_args().folder).items():
        print(f"{name:>10}  recall {recall:.4f}  ndcg {ndcg:.4f}")


if __name__ == "__main__":
    main()
