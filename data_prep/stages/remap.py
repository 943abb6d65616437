"""Remap: a teacher's list onto the catalog, s = p (S + I) + lambda c.

B conversations, I items, of which the first M are the catalog's:

p_BI       1/sqrt(k) for the teacher's item at rank k (its first mention; a line that is no item keeps its rank)
S_IM       cosine of item and catalog item; I is 1 where the teacher's item is that catalog item
c_BM       cosine of conversation and catalog item

With unit vectors E, p S + lambda c = (p E + lambda e_conversation) E_catalog^T: one product a block of conversations,
and only the `candidates` best unseen items of each are kept. From the vector p E + lambda e_conversation (`query`)
adjust makes the other scores again. Neither S nor the scores of all conversations ever exist.

Memory: a process holds a range of conversations and a block of scores; the vectors of the items are read from a file
that all processes share.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from scipy import sparse

from convrec.base.errors import UserError
from convrec.base.files import scratch_folder
from convrec.titles.matching import Matcher
from data_prep.stages.embeddings import TFIDF_SVD
from data_prep.stages.metadata import FILE as METADATA
from data_prep.stages.metadata import has_only_titles
from data_prep.stages.ranges import make_ranges, processes
from data_prep.stages.record import Summary, by_rows, count_rows, read_range
from data_prep.stages.rows import CATALOG, ROWS, catalog_matcher
from data_prep.stages.spaces import (
    EmbeddingSettings,
    choose_space,
    load_conversation_vectors,
    load_item_vectors,
    make_spaces,
    write_array,
)
from data_prep.stages.teacher import FILE as TEACHER
from data_prep.tables import parquet_writer

FILE = "remap.parquet"
VECTORS = "item_vectors.npy"  # (S, M, D) float32, the catalog's items in each space; (0, M, 0) without remap
CANDIDATES_SCHEMA = pa.schema(
    [
        ("sample_id", pa.string()),
        ("candidates", pa.list_(pa.int32())),  # catalog rows, best first
        ("scores", pa.list_(pa.float32())),
    ]
)
SCHEMA = CANDIDATES_SCHEMA.append(pa.field("query", pa.list_(pa.float32())))  # empty without remap
BLOCK_SCORES = 2**22  # that exist at once in a process: 16 MiB
NAMESAKES = (
    "the catalog has nothing but titles, whose words tfidf-svd compares: namesakes of what the teacher names rise"
)


def rank_weights(teacher: Sequence[Sequence[int]], num_items: int) -> sparse.csr_matrix:
    """(B, I): 1/sqrt(k) at the item of rank k, from 1. An entry is an item or -1 for none; first mentions count."""
    rows = []
    columns = []
    values = []
    for b, items in enumerate(teacher):
        first: dict[int, int] = {}
        for k, item in enumerate(items, start=1):
            if item >= 0:
                first.setdefault(item, k)
        rows += [b] * len(first)
        columns += list(first)
        values += [k**-0.5 for k in first.values()]
    return sparse.csr_matrix((values, (rows, columns)), shape=(len(teacher), num_items), dtype=np.float32)


def query_vectors(
    p_BI: sparse.csr_matrix, items_ID: np.ndarray, conversations_BD: np.ndarray, weight: float
) -> np.ndarray:
    """(B, D) p E + lambda e_conversation, of unit vectors; weight: lambda."""
    return np.asarray(p_BI @ items_ID + weight * conversations_BD, np.float32)


def score_blocks(
    query_BD: np.ndarray, spaces_B: np.ndarray, vectors_SMD: Sequence[np.ndarray], added_BM: sparse.csr_matrix
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(rows, their scores of all M items): the products with the item vectors of each row's space, plus what is added.

    A block has at most BLOCK_SCORES scores, or one row; its array is the caller's to change.
    """
    size = max(1, BLOCK_SCORES // added_BM.shape[1])
    for space in np.unique(spaces_B):
        chosen = np.flatnonzero(spaces_B == space)
        for start in range(0, len(chosen), size):
            rows = chosen[start : start + size]
            scores_BM = query_BD[rows] @ vectors_SMD[space].T
            added = added_BM[rows].tocoo()
            scores_BM[added.row, added.col] += added.data
            yield rows, scores_BM


def matched_scores(p_1M: sparse.csr_matrix) -> np.ndarray:
    """(M,) without remap, for the ablation: s = p I, and -inf (no candidate) for what the teacher did not name."""
    scores_M = np.full(p_1M.shape[1], -np.inf, np.float32)
    scores_M[p_1M.indices] = p_1M.data
    return scores_M


def top_candidates(scores_M: np.ndarray, count: int) -> np.ndarray:
    """Rows of the `count` highest finite scores, best first; equal scores in the catalog's order."""
    usable = np.flatnonzero(np.isfinite(scores_M))
    if 0 < count < len(usable):
        kth = np.partition(scores_M[usable], len(usable) - count)[len(usable) - count]
        usable = usable[scores_M[usable] >= kth]
    return usable[np.argsort(-scores_M[usable], kind="stable")][:count]


def writable_rows(matcher: Matcher) -> np.ndarray:
    """(M,) whether a catalog row can stand in a list: it has a year and is not an earlier row's item once more."""
    items = zip(matcher.catalog.titles, matcher.catalog.years, strict=True)
    return np.array([y is not None and matcher.identify(t, y).index == m for m, (t, y) in enumerate(items)])


BETTER = "--metadata llm, a catalog with text columns, or --embedding sentence-transformers:MODEL"


def compares_titles(folder: Path, embedding: str) -> bool:
    """Whether the embedding knows items by their titles' words alone: then --remap is none where it is not given."""
    return embedding == TFIDF_SVD and (folder / METADATA).exists() and has_only_titles(folder)


@dataclass(frozen=True)
class RemapSettings(EmbeddingSettings):
    """What the candidates depend on.

    Attributes:
        candidates: that are kept of each conversation.
        conversation_weight: lambda, the weight of the conversation beside the teacher's list.
        remap: "full", or "none" for the teacher's items alone.
    """

    candidates: int
    conversation_weight: float
    remap: str


def run(folder: Path, settings: RemapSettings, num_items: int = 0, is_chosen: bool = True, workers: int = 1) -> Summary:
    """Write the candidates of each conversation.

    Args:
        folder: of the stages.
        settings: what the result depends on.
        num_items: of a list.
        is_chosen: whether `settings.remap` was asked for.
        workers: processes.

    Raises:
        UserError: Remap is "none", which was not asked for, and most rows have fewer than `num_items` candidates.
    """
    total = count_rows(folder / ROWS)
    kept = 0
    short = 0
    num_spaces = 0
    num_catalog = len(writable_catalog(folder)[0].catalog)
    with scratch_folder(folder / "remap") as scratch, processes(workers) as map_ranges:
        if settings.remap == "full":
            num_spaces = make_spaces(folder, scratch, settings, map_ranges)
        with parquet_writer(folder / FILE, SCHEMA) as writer:
            vectors_of = partial(remap_range, folder, scratch, settings, num_spaces)
            for table in by_rows(map_ranges(vectors_of, make_ranges(total)), total, "remap"):
                writer.write_table(table)
                sizes = pc.list_value_length(table["candidates"]).to_numpy()
                kept += int(sizes.sum())
                short += int((sizes < num_items).sum())
            if not (num_spaces or is_chosen) and 2 * short > total:
                raise UserError(
                    f"{folder}: the catalog has nothing but titles, so --remap is none, and {short:,} of {total:,} "
                    f"lists of the teacher name fewer than {num_items} of its items and would be left out. Give "
                    f"{BETTER}; or choose: --remap full or none"
                )
        dimensions = load_item_vectors(scratch, 0).shape[1] if num_spaces else 0
        item_vectors = (load_item_vectors(scratch, space)[:num_catalog] for space in range(num_spaces))
        write_array(folder / VECTORS, (num_spaces, num_catalog, dimensions), item_vectors)
    summary: Summary = {"candidates_a_row": round(kept / max(total, 1), 1), "dimensions": dimensions}
    return summary | {"too_few_candidates": short, "warnings": _warnings(folder, settings)}


def remap_range(
    folder: Path, scratch: Path, settings: RemapSettings, num_spaces: int, start: int, stop: int
) -> pa.Table:
    """Rows start to stop of `FILE`. num_spaces: 0 without remap."""
    rows = read_range(folder / ROWS, start, stop, ["sample_id", "seen_titles", "split", "group"]).to_pylist()
    teacher = read_range(folder / TEACHER, start, stop, ["items", "answer"]).to_pylist()
    matcher, writable_M = writable_catalog(folder)
    num_items = pq.read_metadata(folder / METADATA).num_rows
    p_BI = rank_weights([entry["items"] for entry in teacher], num_items)
    named_BM = p_BI[:, : len(matcher.catalog)]
    barred = [matcher.seen_rows(row["seen_titles"]) for row in rows]
    candidates: list[np.ndarray] = [np.empty(0, np.int32)] * len(rows)
    scores: list[np.ndarray] = [np.empty(0, np.float32)] * len(rows)

    def keep(b: int, scores_M: np.ndarray) -> None:
        scores_M[~writable_M] = -np.inf
        scores_M[barred[b]] = -np.inf
        if teacher[b]["answer"] is not None:  # without a list: no candidates
            candidates[b] = top_candidates(scores_M, settings.candidates)
            scores[b] = scores_M[candidates[b]]

    query_BD = np.zeros((len(rows), 0), np.float32)
    if num_spaces:
        spaces_B = np.array([choose_space(row, num_spaces) for row in rows])
        query_BD = load_conversation_vectors(scratch, start, stop).copy()
        for space in np.unique(spaces_B):
            chosen = np.flatnonzero(spaces_B == space)
            query_BD[chosen] = query_vectors(
                p_BI[chosen], load_item_vectors(scratch, space), query_BD[chosen], settings.conversation_weight
            )
        vectors_SMD = [load_item_vectors(scratch, space)[: len(matcher.catalog)] for space in range(num_spaces)]
        for block, scores_BM in score_blocks(query_BD, spaces_B, vectors_SMD, named_BM):
            for b, scores_M in zip(block, scores_BM, strict=True):
                keep(b, scores_M)
    else:
        for b in range(len(rows)):
            keep(b, matched_scores(named_BM[b]))
    return pa.table([[row["sample_id"] for row in rows], candidates, scores, list(query_BD)], SCHEMA)


def writable_catalog(folder: Path) -> tuple[Matcher, np.ndarray]:
    """The matcher and `writable_rows`; read once in a process."""
    return _writable_catalog(folder, (folder / CATALOG).stat().st_mtime_ns)


@lru_cache(maxsize=1)
def _writable_catalog(folder: Path, _: int) -> tuple[Matcher, np.ndarray]:
    matcher = catalog_matcher(folder)
    return matcher, writable_rows(matcher)


def _warnings(folder: Path, settings: RemapSettings) -> list[str]:
    if not compares_titles(folder, settings.embedding):
        return []
    if settings.remap == "full":
        return [f"{NAMESAKES}; --remap none leaves them out, {BETTER} tells items apart"]
    return [f"the catalog has nothing but titles: only the teacher's items, without remap; for remap give {BETTER}"]
