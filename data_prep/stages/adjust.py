"""Adjust: s_final = w s + b per catalog item, fitted to what was really recommended (docs/explanation/method.md 6).

The objective is that of data_prep/stages/objective.py. Its softmax is over

catalog      all of the catalog but what the user has seen: the paper's eq. 13. Ground truths that are no candidate
             count, and items that are no candidate may come into the list. Their s is remap's, without a rating
candidates   a conversation's candidates alone, which come in another order; ground truths that are none have no term.
             Without remap the others have no score
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import joblib
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from convrec.base.errors import UserError
from convrec.base.files import scratch_folder, write_table
from convrec.base.progress import Progress
from convrec.data.schema import TRUTH, get_truth
from convrec.retrieval.retriever import make_multi_hot
from convrec.titles.matching import Matcher
from data_prep.stages import reflect, remap
from data_prep.stages.objective import Fit, Part, Sums, final_blocks, fit, sums
from data_prep.stages.ranges import Range, RangeMap, make_ranges, processes
from data_prep.stages.record import Summary, count_rows, read_range, read_record
from data_prep.stages.rows import ADJUST_WEIGHTS, ADJUSTED, ROWS, year_column
from data_prep.stages.spaces import choose_space
from data_prep.stages.teacher import FILE as TEACHER
from data_prep.tables import parquet_writer

PENALTY = {"catalog": 10.0, "candidates": 1.0}  # measured: notes/remap_adjust.md
FEW_CONVERSATIONS = 300  # that fit w and b: below, a warning


@dataclass(frozen=True)
class AdjustSettings:
    """What w and b depend on.

    Attributes:
        softmax: "catalog" or "candidates": the items of the softmax.
        penalty: of the distance of w from 1 and of b from 0.
        max_epochs: passes over the conversations, at most; 0: w = 1 and b = 0.
    """

    softmax: str
    penalty: float
    max_epochs: int


def run(folder: Path, settings: AdjustSettings, workers: int = 1) -> Summary:
    """Fit w and b of each item, and write the lists that they make.

    Raises:
        UserError: No training conversation has a ground truth that can be fitted.
    """
    ranges = make_ranges(count_rows(folder / ROWS))
    softmax = settings.softmax
    matcher, writable_M = remap.writable_catalog(folder)
    with scratch_folder(folder / "adjust") as scratch, processes(workers) as map_ranges:
        conversations = set[int]()
        truths = 0
        candidates = 0
        truth_M = np.zeros(len(writable_M), int)
        prepared = map_ranges(partial(prepare_range, folder, scratch, softmax), ranges)
        for counts in Progress(prepared, total=len(ranges), desc="read", unit="range"):
            conversations |= counts.groups
            truths += counts.truths
            candidates += counts.candidates
            truth_M += counts.truth_M
        num_fitted = int(truth_M.sum())
        if not num_fitted:
            where = "among its candidates; raise --candidates" if softmax == "candidates" else "in the catalog"
            raise UserError(f"{folder}: no training conversation has a ground truth {where}")
        sums_of = partial(sum_range, folder, scratch, softmax)
        fitted = _fit(sums_of, settings, writable_M, ranges, map_ranges)
        weights = _weights(fitted.w_M, fitted.b_M, writable_M)
        before_M, after_M = _rewrite(folder, scratch, softmax, weights, ranges, map_ranges)
    write_table(folder / ADJUST_WEIGHTS, _weights_table(matcher, fitted, truth_M, before_M, after_M))
    summary = {
        "conversations": len(conversations),
        "ground_truths": truths,
        "ground_truths_fitted": num_fitted,
        "ground_truths_not_candidates": truths - candidates,
        "epochs": len(fitted.history),
        "log_likelihood": [round(fitted.history[at] / num_fitted, 4) for at in (0, -1) if fitted.history],
    }
    return summary | {"warnings": _warnings(summary, settings, fitted)}


def _warnings(summary: Summary, settings: AdjustSettings, fitted: Fit) -> list[str]:
    warnings = []
    if fitted.stopped:
        warnings.append(
            f"w and b are not at the maximum: the fit stopped after {len(fitted.history)} passes ({fitted.stopped}); "
            "give more --max-epochs, or a higher --penalty"
        )
    if settings.max_epochs and summary["conversations"] < FEW_CONVERSATIONS:
        warnings.append(
            f"w and b of every item are fitted to {summary['conversations']} conversations: fewer than "
            f"{FEW_CONVERSATIONS} say little; give more (--share), or --max-epochs 0 to leave the scores as they are"
        )
    if (left := summary["ground_truths"] - summary["ground_truths_fitted"]) > summary["ground_truths"] / 10:
        why = "no candidates" if settings.softmax == "candidates" else "not in the catalog, or seen"
        told = f"{left:,} of {summary['ground_truths']:,} ground truths are {why}: w and b do not know of them"
        warnings.append(told)
    return warnings


# ---- what the fit reads, written once: a part for each range


class RangeCounts(NamedTuple):
    """Of the training split's ground truths in a range."""

    groups: set[int]  # checksums of those with one that is fitted
    truths: int
    candidates: int  # ground truths that are candidates
    truth_M: np.ndarray  # how often each item is one that is fitted


def prepare_range(folder: Path, scratch: Path, softmax: str, start: int, stop: int) -> RangeCounts:
    """Leave the range's Part in `scratch`, and count its ground truths."""
    rows = read_range(folder / ROWS, start, stop, ["split", "group", "seen_titles", TRUTH]).to_pylist()
    matcher, writable_M = remap.writable_catalog(folder)
    num_items = len(writable_M)
    query_BD, spaces_B, added_BM, candidates = _read_scores(folder, softmax, rows, num_items, start, stop)
    seen = [matcher.seen_rows(row["seen_titles"]) for row in rows]
    fitted_truths: list[list[int]] = []
    groups = set()
    total = 0
    hits = 0
    for row, its_seen, its_candidates in zip(rows, seen, candidates, strict=True):
        pairs = get_truth(row) if row["split"] == "train" else []
        known = {matcher.wanted(title, year).index for title, year in pairs} - {-1}
        among = known.intersection(its_candidates.tolist())
        usable = among
        if softmax == "catalog" and len(its_candidates):  # none: the teacher gave no list
            usable = {m for m in known.difference(its_seen) if writable_M[m]}
        fitted_truths.append(sorted(usable))
        total += len(pairs)
        hits += len(among)
        if usable:
            groups.add(zlib.crc32(row["group"].encode()))
    seen_BM = make_multi_hot(seen, num_items)
    truth_BM = make_multi_hot(fitted_truths, num_items)
    part = Part(query_BD=query_BD, spaces_B=spaces_B, added_BM=added_BM, seen_BM=seen_BM, truth_BM=truth_BM)
    joblib.dump(part, scratch / str(start))
    return RangeCounts(
        groups=groups,
        truths=total,
        candidates=hits,
        truth_M=np.bincount(truth_BM.indices, minlength=num_items),
    )


def _read_scores(
    folder: Path, softmax: str, rows: Sequence[dict], num_items: int, start: int, stop: int
) -> tuple[np.ndarray, np.ndarray, sparse.csr_matrix, list[np.ndarray]]:
    """(queries, spaces, what is added to their products: as `Part` has them; the candidates of each row)."""
    kept = read_range(folder / remap.FILE, start, stop, ["candidates", "scores", "query"])
    rated = read_range(folder / reflect.FILE, start, stop, ["scores"])
    shape = len(rows), num_items
    sizes, candidates = _lists(kept["candidates"])
    _, scores = _lists(rated["scores"])
    by_row = np.split(candidates, np.cumsum(sizes)[:-1])
    if softmax != "catalog":
        no_query_BD = np.zeros((len(rows), 0), np.float32)
        return no_query_BD, np.zeros(len(rows), int), _matrix(sizes, candidates, scores, shape), by_row
    _, queries = _lists(kept["query"])
    _, scores_of_remap = _lists(kept["scores"])
    num_spaces = len(_vectors(folder, softmax))
    spaces_B = np.array([choose_space(row, num_spaces) for row in rows])
    lists_of_teacher = read_range(folder / TEACHER, start, stop, ["items"])["items"].to_pylist()
    in_catalog = [[m if m < num_items else -1 for m in items] for items in lists_of_teacher]
    named_BM = remap.rank_weights(in_catalog, num_items)
    added_BM = _matrix(sizes, candidates, scores - scores_of_remap, shape) + named_BM
    return queries.reshape(len(rows), -1), spaces_B, added_BM, by_row


def _lists(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """(lengths, values one after the other) of a column of lists."""
    return pc.list_value_length(column).to_numpy(), pc.list_flatten(column).to_numpy()


def _matrix(lengths: np.ndarray, columns: np.ndarray, values: np.ndarray, shape: tuple[int, int]) -> sparse.csr_matrix:
    """Row by row so many columns with their values, float32."""
    ends = np.concatenate([[0], np.cumsum(lengths)])
    return sparse.csr_matrix((values.astype(np.float32), columns.astype(np.int32), ends), shape)


def _vectors(folder: Path, softmax: str) -> np.ndarray:
    """(S, M, D) item vectors; over the candidates alone, D = 0: the parts have the whole score."""
    vectors_SMD = np.load(folder / remap.VECTORS, mmap_mode="r")
    return vectors_SMD if softmax == "catalog" else np.zeros((1, vectors_SMD.shape[1], 0), np.float32)


# ---- the fit


def _fit(
    sums_of: Callable[..., Sums], settings: AdjustSettings, writable_M: np.ndarray, ranges: list[Range], over: RangeMap
) -> Fit:
    with Progress(desc="adjust", unit="row") as bar:

        def pass_over(w_M: np.ndarray, b_M: np.ndarray, powers: int) -> Sums:
            weights = _weights(w_M, b_M, writable_M)
            parts = over(partial(sums_of, weights, powers), ranges)
            found = Sums(0.0, np.zeros((powers, len(w_M))), np.zeros((powers, len(w_M))))
            for (start, stop), some in zip(ranges, parts, strict=True):
                found += some
                bar.update(stop - start)
            bar.set_postfix_str(f"log-likelihood {found.log_likelihood:,.1f}")
            return found

        return fit(pass_over, len(writable_M), settings.penalty, settings.max_epochs)


Weights = tuple[np.ndarray, np.ndarray]  # w and b, float64; b is -inf for items that may be in no list


def _weights(w_M: np.ndarray, b_M: np.ndarray, writable_M: np.ndarray) -> Weights:
    return w_M, np.where(writable_M, b_M, -np.inf)


def sum_range(folder: Path, scratch: Path, softmax: str, weights: Weights, powers: int, start: int, stop: int) -> Sums:
    w_M, b_M = weights
    return sums(joblib.load(scratch / str(start)), _vectors(folder, softmax), w_M, b_M, powers)


# ---- the lists


def _rewrite(
    folder: Path, scratch: Path, softmax: str, weights: Weights, ranges: Sequence[Range], map_ranges: RangeMap
) -> tuple[np.ndarray, np.ndarray]:
    """Write the adjusted candidates; how often each item is in the first N before and after, on all rows."""
    record = read_record(folder, "rows")
    assert record is not None
    rewrite = partial(rewrite_range, folder, scratch, softmax, weights, record["settings"]["num_items"])
    before_M = np.zeros(len(weights[0]), np.int64)
    after_M = np.zeros(len(weights[0]), np.int64)
    with (
        parquet_writer(folder / ADJUSTED, remap.CANDIDATES_SCHEMA) as writer,
        Progress(total=ranges[-1][1], desc="lists", unit="row") as bar,
    ):
        for table, first_before, first_after in map_ranges(rewrite, ranges):
            writer.write_table(table)
            before_M += np.bincount(first_before, minlength=len(before_M))
            after_M += np.bincount(first_after, minlength=len(after_M))
            bar.update(len(table))
    return before_M, after_M


def rewrite_range(
    folder: Path, scratch: Path, softmax: str, weights: Weights, num_items: int, start: int, stop: int
) -> tuple[pa.Table, np.ndarray, np.ndarray]:
    """Rows start to stop of ADJUSTED, as many items for each as it has candidates; the items in the first N before and
    after."""
    names = read_range(folder / ROWS, start, stop, ["sample_id"])["sample_id"]
    candidates = read_range(folder / remap.FILE, start, stop, ["candidates"])["candidates"].to_pylist()
    rated = read_range(folder / reflect.FILE, start, stop, ["scores"])["scores"].to_pylist()
    kept: list[np.ndarray] = [np.empty(0, np.int32)] * len(candidates)
    scores: list[np.ndarray] = [np.empty(0, np.float32)] * len(candidates)
    part = joblib.load(scratch / str(start))
    w_M, b_M = weights
    for rows, _, final_BM in final_blocks(part, _vectors(folder, softmax), w_M, b_M):
        for b, final_M in zip(rows, final_BM, strict=True):
            kept[b] = remap.top_candidates(final_M, len(candidates[b]))
            scores[b] = final_M[kept[b]].astype(np.float32)
    table = pa.table([names, kept, scores], remap.CANDIDATES_SCHEMA)
    before = [
        np.array(c, int)[np.argsort(-np.array(s), kind="stable")[:num_items]]
        for c, s in zip(candidates, rated, strict=True)
    ]
    return table, np.concatenate(before), np.concatenate([some[:num_items] for some in kept]).astype(int)


def _weights_table(
    matcher: Matcher, fitted: Fit, truth_M: np.ndarray, before_M: np.ndarray, after_M: np.ndarray
) -> pa.Table:
    return pa.table(
        {
            "title": pa.array(matcher.catalog.titles, pa.string()),
            "year": year_column(matcher.catalog),
            "w": fitted.w_M.astype(np.float32),
            "b": fitted.b_M.astype(np.float32),
            "ground_truths": truth_M,
            "lists_before": before_M,
            "lists_after": after_M,
        }
    )
