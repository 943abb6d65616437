"""Adjust: s_final = w s + b per catalog item, fitted to the ground truth (docs/explanation/method.md 6).

The objective is defined in data_prep/stages/objective.py. Its softmax is over

catalog      the whole catalog without seen items, as in eq. 13 of the paper. Ground truths count even if they are not
             candidates, and items that are not candidates may enter the list; their s is that of remap, without rating
candidates   a conversation's candidates, which are only reordered; other ground truths have no term. Used without
             remap, because other items then have no score
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
from data_prep.stages.objective import Fit, Part, Sums, compute_sums, iter_final_scores, maximise
from data_prep.stages.ranges import Range, RangeMap, make_ranges, open_process_pool
from data_prep.stages.record import Summary, count_rows, read_range, read_record
from data_prep.stages.rows import ADJUST_WEIGHTS, ADJUSTED, ROWS, make_year_column
from data_prep.stages.spaces import choose_space
from data_prep.stages.teacher import FILE as TEACHER
from data_prep.tables import open_parquet_writer

PENALTY = {"catalog": 10.0, "candidates": 1.0}  # measured: notes/remap_adjust.md
MIN_CONVERSATIONS = 300  # a fit to fewer gives a warning


@dataclass(frozen=True)
class AdjustSettings:
    """Settings that w and b depend on.

    Attributes:
        softmax: items of the softmax: "catalog" or "candidates".
        penalty: weight of |w - 1|^2 and |b|^2.
        max_epochs: maximum number of passes over the conversations; 0: w = 1 and b = 0.
    """

    softmax: str
    penalty: float
    max_epochs: int


def run(folder: Path, settings: AdjustSettings, workers: int = 1) -> Summary:
    """Fit w and b of each item, and write the adjusted lists.

    Args:
        folder: of the stages.
        settings: what the result depends on.
        workers: number of processes.

    Returns:
        The summary of the stage.

    Raises:
        UserError: No training conversation has a ground truth that can be fitted.
    """
    ranges = make_ranges(count_rows(folder / ROWS))
    softmax = settings.softmax
    matcher, writable_M = remap.load_writable_catalog(folder)
    with scratch_folder(folder / "adjust") as scratch, open_process_pool(workers) as map_ranges:
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
            raise UserError(
                "demonstrations.no-ground-truth", f"{folder}: no training conversation has a ground truth {where}"
            )
        compute_range = partial(sum_range, folder, scratch, softmax)
        fitted = _fit(compute_range, settings, writable_M, ranges, map_ranges)
        weights = _make_weights(fitted.w_M, fitted.b_M, writable_M)
        before_M, after_M = _write_lists(folder, scratch, softmax, weights, ranges, map_ranges)
    write_table(folder / ADJUST_WEIGHTS, _make_weights_table(matcher, fitted, truth_M, before_M, after_M))
    summary = {
        "conversations": len(conversations),
        "ground_truths": truths,
        "ground_truths_fitted": num_fitted,
        "ground_truths_not_candidates": truths - candidates,
        "epochs": len(fitted.history),
        "log_likelihood": [round(fitted.history[at] / num_fitted, 4) for at in (0, -1) if fitted.history],
    }
    return summary | {"warnings": _make_warnings(summary, settings, fitted)}


def _make_warnings(summary: Summary, settings: AdjustSettings, fitted: Fit) -> list[str]:
    warnings = []
    if fitted.stopped:
        warnings.append(
            f"the fit of w and b stopped before its maximum, after {len(fitted.history)} passes ({fitted.stopped}); "
            "give more --max-epochs, or a higher --penalty"
        )
    if settings.max_epochs and summary["conversations"] < MIN_CONVERSATIONS:
        warnings.append(
            f"w and b are fitted to only {summary['conversations']} conversations; give at least {MIN_CONVERSATIONS} "
            "(--share), or --max-epochs 0 to leave the scores unchanged"
        )
    num_unused = summary["ground_truths"] - summary["ground_truths_fitted"]
    if num_unused > summary["ground_truths"] / 10:
        why = "not candidates" if settings.softmax == "candidates" else "not in the catalog, or already seen"
        total = summary["ground_truths"]
        warnings.append(f"{num_unused:,} of {total:,} ground truths are {why}, so w and b are fitted without them")
    return warnings


# ---- the input of the fit, written once: a part for each range


class RangeCounts(NamedTuple):
    """Counts of the training split's ground truths in a range."""

    groups: set[int]  # checksums of the conversations with a ground truth that is fitted
    truths: int
    candidates: int  # ground truths that are candidates
    truth_M: np.ndarray  # how often each item is a ground truth that is fitted


def prepare_range(folder: Path, scratch: Path, softmax: str, start: int, stop: int) -> RangeCounts:
    """Write the range's Part to `scratch`, and count its ground truths.

    Args:
        folder: of the stages.
        scratch: gets a file named after `start`.
        softmax: "catalog" or "candidates".
        start: the first row of the range.
        stop: the row after its last.
    """
    rows = read_range(folder / ROWS, start, stop, ["split", "group", "seen_titles", TRUTH]).to_pylist()
    matcher, writable_M = remap.load_writable_catalog(folder)
    num_items = len(writable_M)
    query_BD, spaces_B, added_BM, candidates = _read_scores(folder, softmax, rows, num_items, start, stop)
    seen = [matcher.seen_rows(row["seen_titles"]) for row in rows]
    fitted_truths: list[list[int]] = []
    groups = set()
    total = 0
    hits = 0
    for row, seen_rows, candidate_rows in zip(rows, seen, candidates, strict=True):
        pairs = get_truth(row) if row["split"] == "train" else []
        truth_rows = {matcher.wanted(title, year).index for title, year in pairs} - {-1}
        hits_in_row = truth_rows.intersection(candidate_rows.tolist())
        usable = hits_in_row
        if softmax == "catalog" and len(candidate_rows):  # there are none if the teacher gave no list
            usable = {m for m in truth_rows.difference(seen_rows) if writable_M[m]}
        fitted_truths.append(sorted(usable))
        total += len(pairs)
        hits += len(hits_in_row)
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
    """Return queries, spaces and addends as `Part` has them, and the candidates of each row."""
    remapped = read_range(folder / remap.FILE, start, stop, ["candidates", "scores", "query"])
    rated = read_range(folder / reflect.FILE, start, stop, ["scores"])
    shape = len(rows), num_items
    sizes, candidates = _flatten(remapped["candidates"])
    _, scores = _flatten(rated["scores"])
    candidates_by_row = np.split(candidates, np.cumsum(sizes)[:-1])
    if softmax != "catalog":
        no_query_BD = np.zeros((len(rows), 0), np.float32)
        return no_query_BD, np.zeros(len(rows), int), _make_matrix(sizes, candidates, scores, shape), candidates_by_row
    _, queries = _flatten(remapped["query"])
    _, remap_scores = _flatten(remapped["scores"])
    num_spaces = len(_load_vectors(folder, softmax))
    spaces_B = np.array([choose_space(row, num_spaces) for row in rows])
    teacher_lists = read_range(folder / TEACHER, start, stop, ["items"])["items"].to_pylist()
    in_catalog = [[m if m < num_items else -1 for m in items] for items in teacher_lists]
    named_BM = remap.compute_rank_weights(in_catalog, num_items)
    added_BM = _make_matrix(sizes, candidates, scores - remap_scores, shape) + named_BM
    return queries.reshape(len(rows), -1), spaces_B, added_BM, candidates_by_row


def _flatten(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lengths and the concatenated values of a column of lists."""
    return pc.list_value_length(column).to_numpy(), pc.list_flatten(column).to_numpy()


def _make_matrix(
    lengths: np.ndarray, columns: np.ndarray, values: np.ndarray, shape: tuple[int, int]
) -> sparse.csr_matrix:
    """Make a float32 matrix from columns and values; `lengths` has the number of entries in each row."""
    ends = np.concatenate([[0], np.cumsum(lengths)])
    return sparse.csr_matrix((values.astype(np.float32), columns.astype(np.int32), ends), shape)


def _load_vectors(folder: Path, softmax: str) -> np.ndarray:
    """Return the item vectors, (S, M, D). Over candidates only, D = 0, because the parts hold whole scores."""
    vectors_SMD = np.load(folder / remap.VECTORS, mmap_mode="r")
    return vectors_SMD if softmax == "catalog" else np.zeros((1, vectors_SMD.shape[1], 0), np.float32)


# ---- the fit


def _fit(
    compute_range: Callable[..., Sums],
    settings: AdjustSettings,
    writable_M: np.ndarray,
    ranges: list[Range],
    map_ranges: RangeMap,
) -> Fit:
    with Progress(desc="adjust", unit="row") as bar:

        def pass_over(w_M: np.ndarray, b_M: np.ndarray, powers: int) -> Sums:
            weights = _make_weights(w_M, b_M, writable_M)
            parts = map_ranges(partial(compute_range, weights, powers), ranges)
            total = Sums(0.0, np.zeros((powers, len(w_M))), np.zeros((powers, len(w_M))))
            for (start, stop), range_sums in zip(ranges, parts, strict=True):
                total += range_sums
                bar.update(stop - start)
            bar.set_postfix_str(f"log-likelihood {total.log_likelihood:,.1f}")
            return total

        return maximise(pass_over, len(writable_M), settings.penalty, settings.max_epochs)


Weights = tuple[np.ndarray, np.ndarray]  # w and b, float64; b is -inf for items that may not be in any list


def _make_weights(w_M: np.ndarray, b_M: np.ndarray, writable_M: np.ndarray) -> Weights:
    return w_M, np.where(writable_M, b_M, -np.inf)


def sum_range(folder: Path, scratch: Path, softmax: str, weights: Weights, powers: int, start: int, stop: int) -> Sums:
    """Compute the Sums of a range from its Part in `scratch`.

    Args:
        folder: of the stages.
        scratch: with the file of `prepare_range`.
        softmax: "catalog" or "candidates".
        weights: w and b of each item.
        powers: see `compute_sums`.
        start: the first row of the range.
        stop: not used: the file has the whole range.
    """
    w_M, b_M = weights
    return compute_sums(joblib.load(scratch / str(start)), _load_vectors(folder, softmax), w_M, b_M, powers)


# ---- the lists


def _write_lists(
    folder: Path, scratch: Path, softmax: str, weights: Weights, ranges: Sequence[Range], map_ranges: RangeMap
) -> tuple[np.ndarray, np.ndarray]:
    """Write the adjusted candidates; return how often each item is in the first N before and after."""
    record = read_record(folder, "rows")
    assert record is not None
    rewrite = partial(rewrite_range, folder, scratch, softmax, weights, record["settings"]["num_items"])
    before_M = np.zeros(len(weights[0]), np.int64)
    after_M = np.zeros(len(weights[0]), np.int64)
    with (
        open_parquet_writer(folder / ADJUSTED, remap.CANDIDATES_SCHEMA) as writer,
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
    """Compute rows start to stop of ADJUSTED, each with as many items as it has candidates.

    Returns:
        The rows; and the items in the first N before and after.
    """
    names = read_range(folder / ROWS, start, stop, ["sample_id"])["sample_id"]
    candidates = read_range(folder / remap.FILE, start, stop, ["candidates"])["candidates"].to_pylist()
    rated = read_range(folder / reflect.FILE, start, stop, ["scores"])["scores"].to_pylist()
    adjusted: list[np.ndarray] = [np.empty(0, np.int32)] * len(candidates)
    scores: list[np.ndarray] = [np.empty(0, np.float32)] * len(candidates)
    part = joblib.load(scratch / str(start))
    w_M, b_M = weights
    for rows, _, final_BM in iter_final_scores(part, _load_vectors(folder, softmax), w_M, b_M):
        for b, final_M in zip(rows, final_BM, strict=True):
            adjusted[b] = remap.select_top(final_M, len(candidates[b]))
            scores[b] = final_M[adjusted[b]].astype(np.float32)
    table = pa.table([names, adjusted, scores], remap.CANDIDATES_SCHEMA)
    before = [
        np.array(c, int)[np.argsort(-np.array(s), kind="stable")[:num_items]]
        for c, s in zip(candidates, rated, strict=True)
    ]
    return table, np.concatenate(before), np.concatenate([items[:num_items] for items in adjusted]).astype(int)


def _make_weights_table(
    matcher: Matcher, fitted: Fit, truth_M: np.ndarray, before_M: np.ndarray, after_M: np.ndarray
) -> pa.Table:
    return pa.table(
        {
            "title": pa.array(matcher.catalog.titles, pa.string()),
            "year": make_year_column(matcher.catalog),
            "w": fitted.w_M.astype(np.float32),
            "b": fitted.b_M.astype(np.float32),
            "ground_truths": truth_M,
            "lists_before": before_M,
            "lists_after": after_M,
        }
    )
