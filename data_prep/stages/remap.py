"""Remap: a teacher's list onto the catalog, s = p (S + I) + lambda c.

B conversations, I items, of which the first M are the catalog's:

p_BI       1/sqrt(k) for the teacher's item at rank k (its first mention; a line that is no item keeps its rank)
S_IM       cosine of item and catalog item; I is 1 where the teacher's item is that catalog item
c_BM       cosine of conversation and catalog item

With unit vectors E, p S + lambda c = (p E + lambda e_conversation) E_catalog^T: one product a block of conversations,
and only the `candidates` best unseen items of each are kept. Neither S nor the scores of all conversations ever exist.
"""

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy import sparse

from convrec.data.schema import conversation_text
from convrec.errors import UserError
from convrec.lists.matching import Matcher
from convrec.lists.ranks import format_item
from convrec.progress import Progress
from data_prep.stages.embeddings import TFIDF_SVD, Embedder, make_embedder
from data_prep.stages.metadata import FILE as METADATA
from data_prep.stages.metadata import has_only_titles
from data_prep.stages.record import Summary, count_rows, read_blocks
from data_prep.stages.rows import ROWS, catalog_matcher
from data_prep.stages.teacher import FILE as TEACHER
from data_prep.tables import parquet_writer

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
FOLDS, ALL = 4, -1
NAMESAKES = (
    "the catalog has nothing but titles, whose words tfidf-svd compares: namesakes of what the teacher names rise"
)


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
    """(B, M) s of docs/explanation/method.md 6. items_ID: unit vectors, the catalog's M items first; weight: lambda."""
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


BETTER = "--metadata llm, a catalog with text columns, or --embedding sentence-transformers:MODEL"


def choose(folder: Path, embedding: str) -> str:
    """What --remap is where it is not given: "none" where the embedding knows items by their titles' words alone."""
    return "none" if _compares_titles(folder, embedding) else "full"


def _compares_titles(folder: Path, embedding: str) -> bool:
    return embedding == TFIDF_SVD and (folder / METADATA).exists() and has_only_titles(folder)


def run(folder: Path, settings: dict[str, Any], num_items: int = 0, is_chosen: bool = True) -> Summary:
    """settings: embedding, dimensions, seed, candidates, conversation_weight (lambda), remap ("full" or "none"), and
    trust_remote_code where it is given. is_chosen: whether `remap` was asked for; if not, raises UserError where most
    rows have fewer than `num_items` candidates without it."""
    matcher = catalog_matcher(folder)
    num_catalog, writable_M = len(matcher.catalog), writable_rows(matcher)
    metadata = pq.read_table(folder / METADATA, columns=["text"])["text"].to_pylist()
    spaces = make_spaces(folder, matcher, metadata, settings) if settings["remap"] == "full" else {}
    total, kept, short = count_rows(folder / ROWS), 0, 0
    with (
        parquet_writer(folder / FILE, SCHEMA) as writer,
        Progress(total=total, desc="remap", unit="row") as bar,
    ):
        for rows, teacher in zip(
            read_blocks(folder / ROWS, BLOCK), read_blocks(folder / TEACHER, BLOCK, ["items", "answer"]), strict=True
        ):
            p_BI = rank_weights([entry["items"] for entry in teacher], len(metadata))
            scores_BM = _scores(p_BI, num_catalog, spaces, rows, settings["conversation_weight"])
            scores_BM[:, ~writable_M] = -np.inf
            scores_BM[[entry["answer"] is None for entry in teacher]] = -np.inf  # without a list: no candidates
            candidates_of_rows = []
            for row, scores_M in zip(rows, scores_BM, strict=True):
                scores_M[matcher.seen_rows(row["seen_titles"])] = -np.inf
                candidates_of_rows.append(top_candidates(scores_M, settings["candidates"]))
            kept += sum(map(len, candidates_of_rows))
            short += sum(len(candidates) < num_items for candidates in candidates_of_rows)
            writer.write_batch(
                pa.record_batch(
                    [
                        pa.array([row["sample_id"] for row in rows]),
                        pa.array(candidates_of_rows, SCHEMA.field("candidates").type),
                        pa.array(
                            [s[c] for s, c in zip(scores_BM, candidates_of_rows, strict=True)],
                            SCHEMA.field("scores").type,
                        ),
                    ],
                    schema=SCHEMA,
                )
            )
            bar.update(len(rows))
        if not (spaces or is_chosen) and 2 * short > total:
            raise UserError(
                f"{folder}: the catalog has nothing but titles, so --remap is none, and {short:,} of {total:,} lists "
                f"of the teacher name fewer than {num_items} of its items and would be left out. Give {BETTER}; or "
                "choose: --remap full or none"
            )
    dimensions = spaces[ALL].items_ID.shape[1] if spaces else 0
    summary: Summary = {"candidates_a_row": round(kept / max(total, 1), 1), "dimensions": dimensions}
    return summary | {"too_few_candidates": short, "warnings": _warnings(folder, settings)}


def _warnings(folder: Path, settings: dict[str, Any]) -> list[str]:
    if not _compares_titles(folder, settings["embedding"]):
        return []
    if settings["remap"] == "full":
        return [f"{NAMESAKES}; --remap none leaves them out, {BETTER} tells items apart"]
    return [f"the catalog has nothing but titles: only the teacher's items, without remap; for remap give {BETTER}"]


def _scores(
    p_BI: sparse.csr_matrix, num_catalog: int, spaces: Mapping[int, "Space"], rows: list[dict], weight: float
) -> np.ndarray:
    if not spaces:
        return matched_scores(p_BI, num_catalog)
    fold_B = np.array([fold_of(row) if len(spaces) > 1 else ALL for row in rows])
    scores_BM = np.empty((len(rows), num_catalog), np.float32)
    for fold in np.unique(fold_B):
        chosen, space = np.flatnonzero(fold_B == fold), spaces[int(fold)]
        conversations_BD = space.embedder.encode([conversation_text(rows[b]) for b in chosen])
        scores_BM[chosen] = remap_scores(p_BI[chosen], space.items_ID, num_catalog, conversations_BD, weight)
    return scores_BM


# ---- embeddings that have not read the conversation they are asked about


class Space(NamedTuple):
    embedder: Embedder
    items_ID: np.ndarray


def fold_of(row: dict) -> int:
    """The part of the training split that a row's conversation belongs to; ALL for validation rows."""
    return zlib.crc32(row["group"].encode()) % FOLDS if row["split"] == "train" else ALL


def make_spaces(folder: Path, matcher: Matcher, metadata: list[str], settings: dict[str, Any]) -> dict[int, Space]:
    """One for every row under ALL; where the embedding is fitted, also one a fold, fitted without that fold.

    A later row of a conversation names what was recommended in an earlier one. An embedding that has read it ranks that
    item higher for the earlier row than it ever could for a new conversation, and adjust would rely on it.
    """
    folds, texts = training_texts(folder) if settings["embedding"] == TFIDF_SVD else ([], [])
    catalog = zip(matcher.catalog.titles, matcher.catalog.years, strict=True)
    names = [format_item(title, year) for title, year in catalog if year is not None]
    spaces = {}
    for fold in sorted({ALL, *folds}):
        # of ALL, everything
        read = [text for text, fold_of_text in zip(texts, folds, strict=True) if fold_of_text != fold]
        embedder = make_embedder(
            settings["embedding"],
            metadata + read,
            names,
            settings["dimensions"],
            settings["seed"],
            settings.get("trust_remote_code", False),
        )
        spaces[fold] = Space(embedder, embedder.encode(metadata))
    return spaces


def training_texts(folder: Path) -> tuple[list[int], list[str]]:
    """(fold, conversation) of the training split, evenly thinned to FIT_TEXTS."""
    folds: list[int] = []
    texts: list[str] = []
    step = max(1, -(-count_rows(folder / ROWS) // FIT_TEXTS))
    index = 0
    for block in read_blocks(folder / ROWS, 4096, ["prompt", "split", "group"]):
        for row in block:
            if row["split"] == "train":
                if index % step == 0:
                    folds.append(fold_of(row))
                    texts.append(conversation_text(row))
                index += 1
    return folds, texts
