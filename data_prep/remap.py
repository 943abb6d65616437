"""Remap: a teacher's list onto the catalog, s = p (S + I) + lambda c.

B conversations, I items, of which the first M are the catalog's:

p_BI       1/sqrt(k) for the teacher's item at rank k (its first mention; a line that is no item keeps its rank)
S_IM       cosine of item and catalog item; I is 1 where the teacher's item is that catalog item
c_BM       cosine of conversation and catalog item

With unit vectors E, p S + lambda c = (p E + lambda e_conversation) E_catalog^T: one product a block of conversations,
and only the `candidates` best unseen items of each are kept. Neither S nor the scores of all conversations ever exist.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy import sparse
from tqdm import tqdm

from convrec.matching import Matcher
from convrec.ranks import format_item
from data_prep.embeddings import Embedder, make_embedder
from data_prep.rows import ROWS, catalog_matcher, conversation_of_row
from data_prep.stages import Summary, count_rows, parquet_writer, read_blocks

FILE = "remap.parquet"
SCHEMA = pa.schema(
    [
        ("sample_id", pa.string()),
        ("candidates", pa.list_(pa.int32())),  # catalog rows, best first
        ("scores", pa.list_(pa.float32())),
    ]
)
BLOCK = 512  # conversations: a block of scores over 7,404 items is 15 MB
FIT_TEXTS = 20_000  # training conversations that tfidf-svd is fitted on, at most


def rank_weights(teacher: Sequence[Sequence[int]], num_items: int) -> sparse.csr_matrix:
    """(B, I): 1/sqrt(k) at the item of rank k, from 1. An entry is an item or -1 for none; first mentions count."""
    rows, columns, values = [], [], []
    for b, items in enumerate(teacher):
        first: dict[int, int] = {}
        for k, item in enumerate(items, start=1):
            if item >= 0:
                first.setdefault(item, k)
        rows += [b] * len(first)
        columns += list(first)
        values += [k**-0.5 for k in first.values()]
    return sparse.csr_matrix((values, (rows, columns)), shape=(len(teacher), num_items), dtype=np.float32)


def remap_scores(
    p_BI: sparse.csr_matrix, items_ID: np.ndarray, num_catalog: int, conversations_BD: np.ndarray, weight: float
) -> np.ndarray:
    """(B, M) s of SPEC 6. items_ID: unit vectors, the catalog's M items first; weight: lambda."""
    query_BD = p_BI @ items_ID + weight * conversations_BD
    return query_BD @ items_ID[:num_catalog].T + p_BI[:, :num_catalog].toarray()


def matched_scores(p_BI: sparse.csr_matrix, num_catalog: int) -> np.ndarray:
    """(B, M) without remap, for the ablation: s = p I, and -inf (no candidate) for what the teacher did not name."""
    p_BM = p_BI[:, :num_catalog].toarray()
    return np.where(p_BM > 0, p_BM, -np.inf)


def top_candidates(scores_M: np.ndarray, count: int) -> np.ndarray:
    """Rows of the `count` highest finite scores, best first; equal scores in the catalog's order."""
    usable = np.flatnonzero(np.isfinite(scores_M))
    if len(usable) > count:
        kth = np.partition(scores_M[usable], len(usable) - count)[len(usable) - count]
        usable = usable[scores_M[usable] >= kth]
    return usable[np.argsort(-scores_M[usable], kind="stable")][:count]


def writable_rows(matcher: Matcher) -> np.ndarray:
    """(M,) whether a catalog row can stand in a list: it has a year and is not an earlier row's item once more."""
    items = zip(matcher.catalog.titles, matcher.catalog.years, strict=True)
    return np.array([y is not None and matcher.identify(t, y).index == m for m, (t, y) in enumerate(items)])


def run(folder: Path, settings: dict[str, Any]) -> Summary:
    """settings: embedding, dimensions, seed, candidates, conversation_weight (lambda), remap ("full" or "none")."""
    matcher = catalog_matcher(folder)
    num_catalog, writable_M = len(matcher.catalog), writable_rows(matcher)
    metadata = pq.read_table(folder / "metadata.parquet", columns=["text"])["text"].to_pylist()
    is_full = settings["remap"] == "full"
    embedder, items_ID = None, np.zeros((len(metadata), 1), np.float32)
    if is_full:
        texts = metadata + training_texts(folder)
        catalog = zip(matcher.catalog.titles, matcher.catalog.years, strict=True)
        names = [format_item(title, year) for title, year in catalog if year is not None]
        embedder = make_embedder(settings["embedding"], texts, names, settings["dimensions"], settings["seed"])
        items_ID = embedder.encode(metadata)
    kept = 0
    with (
        parquet_writer(folder / FILE, SCHEMA) as writer,
        tqdm(total=count_rows(folder / ROWS), desc="remap", unit="row", disable=None) as bar,
    ):
        for rows, teacher in zip(
            read_blocks(folder / ROWS, BLOCK), read_blocks(folder / "teacher.parquet", BLOCK, ["items"]), strict=True
        ):
            p_BI = rank_weights([entry["items"] for entry in teacher], len(metadata))
            scores_BM = _scores(p_BI, items_ID, num_catalog, embedder, rows, settings)
            scores_BM[:, ~writable_M] = -np.inf
            found = []
            for row, scores_M in zip(rows, scores_BM, strict=True):
                scores_M[matcher.seen_rows(row["seen_titles"])] = -np.inf
                found.append(top_candidates(scores_M, settings["candidates"]))
            kept += sum(map(len, found))
            writer.write_batch(
                pa.record_batch(
                    [
                        pa.array([row["sample_id"] for row in rows]),
                        pa.array(found, SCHEMA.field("candidates").type),
                        pa.array([s[c] for s, c in zip(scores_BM, found, strict=True)], SCHEMA.field("scores").type),
                    ],
                    schema=SCHEMA,
                )
            )
            bar.update(len(rows))
    return {"candidates_a_row": round(kept / max(count_rows(folder / ROWS), 1), 1), "dimensions": items_ID.shape[1]}


def _scores(
    p_BI: sparse.csr_matrix,
    items_ID: np.ndarray,
    num_catalog: int,
    embedder: Embedder | None,
    rows: list[dict],
    settings: dict[str, Any],
) -> np.ndarray:
    if embedder is None:
        return matched_scores(p_BI, num_catalog)
    conversations_BD = embedder.encode([conversation_of_row(row) for row in rows])
    return remap_scores(p_BI, items_ID, num_catalog, conversations_BD, settings["conversation_weight"])


def training_texts(folder: Path) -> list[str]:
    """Conversations of the training split, evenly thinned to FIT_TEXTS."""

    def texts() -> Iterator[str]:
        for block in read_blocks(folder / ROWS, 4096, ["prompt", "split"]):
            yield from (conversation_of_row(row) for row in block if row["split"] == "train")

    step = max(1, -(-count_rows(folder / ROWS) // FIT_TEXTS))
    return [text for index, text in enumerate(texts()) if index % step == 0]
