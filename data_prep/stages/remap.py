"""Remap: score the catalog by a teacher's list, s = p (S + I) + lambda c.

B conversations, I items, the first M of which are those of the catalog:

p_BI       1/sqrt(k) for the teacher's item at rank k (its first mention; a line that is not an item keeps its rank)
S_IM       cosine of item and catalog item; I is 1 if the teacher's item is that catalog item
c_BM       cosine of conversation and catalog item

With unit vectors E, p S + lambda c = (p E + lambda e_conversation) E_catalog^T: one product per block of
conversations, of which only the `candidates` best unseen items are kept. Adjust recomputes the other scores from the
vector p E + lambda e_conversation (`query`). Neither S nor the scores of all conversations are ever in memory.

A process holds a range of conversations and a block of scores; the vectors of the items are mapped from a file that all
processes share.
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
from data_prep.stages.ranges import make_ranges, open_process_pool
from data_prep.stages.record import Summary, count_rows, iter_with_progress, read_range
from data_prep.stages.rows import CATALOG, ROWS, load_matcher
from data_prep.stages.spaces import (
    EmbeddingSettings,
    choose_space,
    load_conversation_vectors,
    load_item_vectors,
    make_spaces,
    write_array,
)
from data_prep.stages.teacher import FILE as TEACHER
from data_prep.tables import open_parquet_writer

FILE = "remap.parquet"
VECTORS = "item_vectors.npy"  # (S, M, D) float32: vectors of the catalog's items per space; (0, M, 0) without remap
CANDIDATES_SCHEMA = pa.schema(
    [
        ("sample_id", pa.string()),
        ("candidates", pa.list_(pa.int32())),  # catalog rows, best first
        ("scores", pa.list_(pa.float32())),
    ]
)
SCHEMA = CANDIDATES_SCHEMA.append(pa.field("query", pa.list_(pa.float32())))  # empty without remap
BLOCK_SCORES = 2**22  # scores in memory at once in a process: 16 MiB
NAMESAKES = (
    "the catalog has only titles, and tfidf-svd compares their words: items with similar titles are ranked too high"
)


def compute_rank_weights(teacher: Sequence[Sequence[int]], num_items: int) -> sparse.csr_matrix:
    """Return p: 1/sqrt(k) for the item at rank k, from 1.

    Args:
        teacher: the lists; -1 for a line that is not an item, which keeps its rank. The first mention of an item
            counts.
        num_items: I.

    Returns:
        p, (B, I) float32, sparse.
    """
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


def compute_queries(
    p_BI: sparse.csr_matrix, items_ID: np.ndarray, conversations_BD: np.ndarray, weight: float
) -> np.ndarray:
    """Return p E + lambda e_conversation.

    Args:
        p_BI: from `compute_rank_weights`.
        items_ID: unit vectors E.
        conversations_BD: unit vectors e_conversation.
        weight: lambda.

    Returns:
        The queries, (B, D) float32, which are not unit vectors.
    """
    return np.asarray(p_BI @ items_ID + weight * conversations_BD, np.float32)


def iter_scores(
    query_BD: np.ndarray, spaces_B: np.ndarray, vectors_SMD: Sequence[np.ndarray], added_BM: sparse.csr_matrix
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield row indices and their scores of all M items, block by block.

    Args:
        query_BD: queries.
        spaces_B: space of each query.
        vectors_SMD: item vectors of each space.
        added_BM: added to the products of queries and item vectors.

    Yields:
        At most BLOCK_SCORES scores, or one row. The caller may change the array.
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


def compute_matched_scores(p_1M: sparse.csr_matrix) -> np.ndarray:
    """Return the scores without remap, for the ablation: s = p I.

    Returns:
        (M,) float32; -inf for items that the teacher did not name.
    """
    scores_M = np.full(p_1M.shape[1], -np.inf, np.float32)
    scores_M[p_1M.indices] = p_1M.data
    return scores_M


def select_top(scores_M: np.ndarray, count: int) -> np.ndarray:
    """Select the items with the highest scores.

    Args:
        scores_M: -inf for items that must not be selected.
        count: the most items; 0 selects none.

    Returns:
        Catalog rows, best first; equal scores in the catalog's order.
    """
    usable = np.flatnonzero(np.isfinite(scores_M))
    if 0 < count < len(usable):
        kth = np.partition(scores_M[usable], len(usable) - count)[len(usable) - count]
        usable = usable[scores_M[usable] >= kth]
    return usable[np.argsort(-scores_M[usable], kind="stable")][:count]


def find_writable_rows(matcher: Matcher) -> np.ndarray:
    """Return whether each catalog row can be in a list, (M,): it has a year and does not repeat an earlier item."""
    items = zip(matcher.catalog.titles, matcher.catalog.years, strict=True)
    return np.array([y is not None and matcher.identify(t, y).index == m for m, (t, y) in enumerate(items)])


REMEDIES = "--metadata llm, a catalog with text columns, or --embedding sentence-transformers:MODEL"


def compares_only_titles(folder: Path, embedding: str) -> bool:
    """Return whether the embedding only knows the words of titles; --remap then defaults to none.

    Args:
        folder: of the stages. Before `metadata` was run, the answer is False.
        embedding: its name.
    """
    return embedding == TFIDF_SVD and (folder / METADATA).exists() and has_only_titles(folder)


@dataclass(frozen=True)
class RemapSettings(EmbeddingSettings):
    """Settings that the candidates depend on.

    Attributes:
        candidates: maximum number of candidates per conversation.
        conversation_weight: lambda, the weight of the conversation relative to the teacher's list.
        remap: "full", or "none" to use only the teacher's items.
    """

    candidates: int
    conversation_weight: float
    remap: str


def run(folder: Path, settings: RemapSettings, num_items: int = 0, is_chosen: bool = True, workers: int = 1) -> Summary:
    """Write the candidates of each conversation.

    Args:
        folder: of the stages.
        settings: what the result depends on.
        num_items: items of a list.
        is_chosen: whether the user chose `settings.remap`.
        workers: number of processes.

    Raises:
        UserError: Remap is "none" by default, and most rows have fewer than `num_items` candidates.
    """
    total = count_rows(folder / ROWS)
    num_candidates = 0
    short = 0
    num_spaces = 0
    num_catalog = len(load_writable_catalog(folder)[0].catalog)
    with scratch_folder(folder / "remap") as scratch, open_process_pool(workers) as map_ranges:
        if settings.remap == "full":
            num_spaces = make_spaces(folder, scratch, settings, map_ranges)
        with open_parquet_writer(folder / FILE, SCHEMA) as writer:
            compute_range = partial(remap_range, folder, scratch, settings, num_spaces)
            for table in iter_with_progress(map_ranges(compute_range, make_ranges(total)), total, "remap"):
                writer.write_table(table)
                sizes = pc.list_value_length(table["candidates"]).to_numpy()
                num_candidates += int(sizes.sum())
                short += int((sizes < num_items).sum())
            if not (num_spaces or is_chosen) and 2 * short > total:
                raise UserError(
                    "demonstrations.too-few-candidates",
                    f"{folder}: the catalog has only titles, so --remap is none, and {short:,} of {total:,} lists of "
                    f"the teacher name fewer than {num_items} items of the catalog and would be left out. Give "
                    f"{REMEDIES}, or choose --remap full or none.",
                )
        dimensions = load_item_vectors(scratch, 0).shape[1] if num_spaces else 0
        item_vectors = (load_item_vectors(scratch, space)[:num_catalog] for space in range(num_spaces))
        write_array(folder / VECTORS, (num_spaces, num_catalog, dimensions), item_vectors)
    summary: Summary = {"candidates_a_row": round(num_candidates / max(total, 1), 1), "dimensions": dimensions}
    return summary | {"too_few_candidates": short, "warnings": _make_warnings(folder, settings)}


def remap_range(
    folder: Path, scratch: Path, settings: RemapSettings, num_spaces: int, start: int, stop: int
) -> pa.Table:
    """Compute rows of `FILE`.

    Args:
        folder: of the stages.
        scratch: with the vectors of `make_spaces`.
        settings: of the stage.
        num_spaces: number of spaces; 0 without remap.
        start: the first row of the range.
        stop: the row after its last.
    """
    rows = read_range(folder / ROWS, start, stop, ["sample_id", "seen_titles", "split", "group"]).to_pylist()
    teacher = read_range(folder / TEACHER, start, stop, ["items", "answer"]).to_pylist()
    matcher, writable_M = load_writable_catalog(folder)
    num_items = pq.read_metadata(folder / METADATA).num_rows
    p_BI = compute_rank_weights([entry["items"] for entry in teacher], num_items)
    named_BM = p_BI[:, : len(matcher.catalog)]
    seen = [matcher.seen_rows(row["seen_titles"]) for row in rows]
    candidates: list[np.ndarray] = [np.empty(0, np.int32)] * len(rows)
    scores: list[np.ndarray] = [np.empty(0, np.float32)] * len(rows)

    def store(b: int, scores_M: np.ndarray) -> None:
        scores_M[~writable_M] = -np.inf
        scores_M[seen[b]] = -np.inf
        if teacher[b]["answer"] is not None:  # no candidates without a list
            candidates[b] = select_top(scores_M, settings.candidates)
            scores[b] = scores_M[candidates[b]]

    query_BD = np.zeros((len(rows), 0), np.float32)
    if num_spaces:
        spaces_B = np.array([choose_space(row, num_spaces) for row in rows])
        query_BD = load_conversation_vectors(scratch, start, stop).copy()
        for space in np.unique(spaces_B):
            chosen = np.flatnonzero(spaces_B == space)
            query_BD[chosen] = compute_queries(
                p_BI[chosen], load_item_vectors(scratch, space), query_BD[chosen], settings.conversation_weight
            )
        vectors_SMD = [load_item_vectors(scratch, space)[: len(matcher.catalog)] for space in range(num_spaces)]
        for block, scores_BM in iter_scores(query_BD, spaces_B, vectors_SMD, named_BM):
            for b, scores_M in zip(block, scores_BM, strict=True):
                store(b, scores_M)
    else:
        for b in range(len(rows)):
            store(b, compute_matched_scores(named_BM[b]))
    return pa.table([[row["sample_id"] for row in rows], candidates, scores, list(query_BD)], SCHEMA)


def load_writable_catalog(folder: Path) -> tuple[Matcher, np.ndarray]:
    """Return the matcher and `find_writable_rows`; read once per process."""
    return _load_writable_catalog(folder, (folder / CATALOG).stat().st_mtime_ns)


@lru_cache(maxsize=1)
def _load_writable_catalog(folder: Path, _: int) -> tuple[Matcher, np.ndarray]:
    matcher = load_matcher(folder)
    return matcher, find_writable_rows(matcher)


def _make_warnings(folder: Path, settings: RemapSettings) -> list[str]:
    if not compares_only_titles(folder, settings.embedding):
        return []
    if settings.remap == "full":
        return [f"{NAMESAKES}. Give --remap none, or describe the items: {REMEDIES}"]
    return [
        f"the catalog has only titles, so only the teacher's items are used, without remap; for remap give {REMEDIES}"
    ]
