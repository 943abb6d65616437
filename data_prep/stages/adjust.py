"""Adjust: s_final = w s + b per catalog item, fitted to what was really recommended (docs/explanation/method.md 6).

maximise  sum over training conversations of sum over their ground truths g of log softmax over candidates (w s + b)[g]
          - penalty (|w - 1|^2 + |b|^2)

Only the candidates of a conversation enter its softmax (the rest have no score); ground truths that are no candidate
have no term and are counted. Fitted in minibatches with Adam; stopped when the held-out conversations' likelihood no
longer rises, and the best w and b so far are kept: at worst the start, w = 1 and b = 0.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from convrec.data.schema import TRUTH, truth_of
from convrec.errors import UserError
from convrec.lists.matching import Matcher
from convrec.progress import Progress
from data_prep.stages import reflect, remap
from data_prep.stages.record import Summary, read_blocks, read_record
from data_prep.stages.rows import ADJUST_WEIGHTS, ADJUSTED, ROWS, catalog_matcher, item_name, year_column
from data_prep.tables import parquet_writer

SCHEMA = remap.SCHEMA  # candidates now in the order of s_final
BLOCK = 4096
MOVED = 5  # items shown that gained places, and that lost some


class Ragged(NamedTuple):
    """B conversations of at most K candidates; padding has item 0, score 0 and is_candidate False."""

    items_BK: torch.Tensor  # int64
    scores_BK: torch.Tensor  # float32
    is_candidate_BK: torch.Tensor
    truth_BK: torch.Tensor  # float32, 1 where the candidate is a ground truth

    def rows(self, index: torch.Tensor) -> "Ragged":
        return Ragged(*(tensor[index] for tensor in self))


def pad(items: Sequence[Sequence[int]], scores: Sequence[Sequence[float]], truths: Sequence[set[int]]) -> Ragged:
    shape = len(items), max(map(len, items), default=0)
    items_BK, scores_BK = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
    is_candidate_BK, truth_BK = np.zeros(shape, bool), np.zeros(shape, np.float32)
    for b, (some, values, truth) in enumerate(zip(items, scores, truths, strict=True)):
        items_BK[b, : len(some)], scores_BK[b, : len(some)] = some, values
        is_candidate_BK[b, : len(some)] = True
        truth_BK[b, : len(some)] = [item in truth for item in some]
    return Ragged(*map(torch.from_numpy, (items_BK, scores_BK, is_candidate_BK, truth_BK)))


def log_likelihood(data: Ragged, w_M: torch.Tensor, b_M: torch.Tensor) -> torch.Tensor:
    """Sum over the conversations."""
    final_BK = w_M[data.items_BK] * data.scores_BK + b_M[data.items_BK]
    final_BK = final_BK.masked_fill(~data.is_candidate_BK, -torch.inf)
    log_p_BK = torch.log_softmax(final_BK, dim=1)
    return log_p_BK[data.truth_BK > 0].sum()


def penalty_of(w_M: torch.Tensor, b_M: torch.Tensor, penalty: float) -> torch.Tensor:
    return penalty * ((w_M - 1).square().sum() + b_M.square().sum())


class Fit(NamedTuple):
    w_M: torch.Tensor
    b_M: torch.Tensor
    history: list[float]  # held-out log-likelihood a ground truth, before the first epoch and after each
    best_epoch: int


def fit(
    train: Ragged,
    held_out: Ragged,
    num_items: int,
    *,
    penalty: float,
    learning_rate: float,
    batch_size: int,
    max_epochs: int,
    patience: int,
    seed: int,
) -> Fit:
    """Every conversation must have a ground truth among its candidates. Without `held_out` all epochs are run."""
    generator = torch.Generator().manual_seed(seed)
    w_M, b_M = torch.ones(num_items, requires_grad=True), torch.zeros(num_items, requires_grad=True)
    optimizer = torch.optim.Adam([w_M, b_M], lr=learning_rate)
    size, truths = len(train.items_BK), max(held_out.truth_BK.sum().item(), 1.0)

    def on_held_out() -> float:
        with torch.no_grad():
            parts = torch.arange(len(held_out.items_BK)).split(BLOCK)
            return sum(log_likelihood(held_out.rows(part), w_M, b_M).item() for part in parts) / truths

    best = w_M.detach().clone(), b_M.detach().clone()
    history, best_epoch = [on_held_out()], 0
    for epoch in Progress(range(1, max_epochs + 1), desc="adjust", unit="epoch"):
        for batch in torch.randperm(size, generator=generator).split(batch_size):
            loss = -log_likelihood(train.rows(batch), w_M, b_M) + len(batch) / size * penalty_of(w_M, b_M, penalty)
            optimizer.zero_grad()
            (loss / len(batch)).backward()  # Adam's steps then hardly depend on the batch size
            optimizer.step()
        history.append(on_held_out())
        if not len(held_out.items_BK) or history[-1] > history[best_epoch]:
            best, best_epoch = (w_M.detach().clone(), b_M.detach().clone()), epoch
        elif epoch - best_epoch >= patience:
            break
    return Fit(*best, history, best_epoch)


def run(folder: Path, settings: dict[str, Any]) -> Summary:
    """settings: penalty, learning_rate, batch_size, max_epochs, patience, held_out (share of groups), seed."""
    matcher = catalog_matcher(folder)
    candidates, scores, truths, groups, missed, total = _training_rows(folder, matcher)
    if not candidates:
        raise UserError(
            f"{folder}: no training conversation has a ground truth among its candidates; raise --candidates"
        )
    names = sorted(set(groups))
    order = np.random.default_rng(settings["seed"]).permutation(len(names))
    out = {names[index] for index in order[: round(settings["held_out"] * len(names))]}
    if len(out) == len(names):
        raise UserError(
            f"--held-out {settings['held_out']} leaves none of the {len(names)} conversations with a ground truth "
            "among their candidates to fit on: give less"
        )
    is_out = np.array([group in out for group in groups], bool)
    data = pad(candidates, scores, truths)
    train, held_out = (data.rows(torch.from_numpy(np.flatnonzero(mask))) for mask in (~is_out, is_out))
    options = {k: settings[k] for k in ("penalty", "learning_rate", "batch_size", "max_epochs", "patience", "seed")}
    fitted = fit(train, held_out, len(matcher.catalog), **options)
    w_M, b_M = fitted.w_M.numpy(), fitted.b_M.numpy()
    top = _rewrite(folder, w_M, b_M)
    truth_M = np.bincount([item for truth in truths for item in truth], minlength=len(matcher.catalog))
    _write_weights(folder, matcher, w_M, b_M, truth_M, *top)
    return {
        "conversations": len(train.items_BK),
        "held_out": len(held_out.items_BK),
        "ground_truths": total,
        "ground_truths_not_candidates": missed,
        "epoch": fitted.best_epoch,
        "held_out_log_likelihood": [round(fitted.history[0], 4), round(fitted.history[fitted.best_epoch], 4)],
        "moved": moved(folder),
    }


def _training_rows(folder: Path, matcher: Matcher) -> tuple[list, list, list[set[int]], list[str], int, int]:
    """Candidates, scores, ground-truth rows and group of each training row with a ground truth among its candidates;
    how many ground truths are no candidate, and of how many."""
    candidates, scores, truths, groups = [], [], [], []
    missed = total = 0
    columns = ["split", "group", TRUTH]
    for row, kept, rated in _zipped(folder, columns):
        if row["split"] != "train":
            continue
        pairs = [(title, matcher.catalog.year_of(year)) for title, year in truth_of(row)]
        known = {matcher.identify(title, year).index for title, year in pairs if year is not None}
        hits = known & set(kept["candidates"])
        total += len(pairs)
        missed += len(pairs) - len(hits)
        if hits:
            candidates.append(kept["candidates"])
            scores.append(rated["scores"])
            truths.append(hits)
            groups.append(row["group"])
    return candidates, scores, truths, groups, missed, total


def _rewrite(folder: Path, w_M: np.ndarray, b_M: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Write the adjusted candidates; how often each item is in the first N before and after, on all rows."""
    record = read_record(folder, "rows")
    assert record is not None
    n = record["settings"]["num_items"]
    before_M, after_M = np.zeros(len(w_M), np.int64), np.zeros(len(w_M), np.int64)
    with parquet_writer(folder / ADJUSTED, SCHEMA) as writer:
        batch: list[dict] = []
        for row, kept, rated in _zipped(folder, ["sample_id"]):
            items, scores = np.array(kept["candidates"], np.int64), np.array(rated["scores"], np.float32)
            final = w_M[items] * scores + b_M[items]
            order = np.argsort(-final, kind="stable")
            before_M[items[np.argsort(-scores, kind="stable")[:n]]] += 1
            after_M[items[order[:n]]] += 1
            batch.append({"sample_id": row["sample_id"], "candidates": items[order], "scores": final[order]})
            if len(batch) == BLOCK:
                writer.write_table(pa.Table.from_pylist(batch, SCHEMA))
                batch = []
        writer.write_table(pa.Table.from_pylist(batch, SCHEMA))
    return before_M, after_M


def _zipped(folder: Path, columns: list[str]) -> Any:
    """(row, remap's entry, reflect's entry) of every row."""
    files = ((ROWS, columns), (remap.FILE, ["candidates"]), (reflect.FILE, ["scores"]))
    for blocks in zip(*(read_blocks(folder / file, BLOCK, names) for file, names in files), strict=True):
        yield from zip(*blocks, strict=True)


def _write_weights(
    folder: Path,
    matcher: Matcher,
    w_M: np.ndarray,
    b_M: np.ndarray,
    truth_M: np.ndarray,
    before_M: np.ndarray,
    after_M: np.ndarray,
) -> None:
    columns = {
        "title": pa.array(matcher.catalog.titles, pa.string()),
        "year": year_column(matcher.catalog),
        "w": w_M,
        "b": b_M,
        "ground_truths": truth_M,
        "lists_before": before_M,
        "lists_after": after_M,
    }
    table = pa.table(columns)
    with parquet_writer(folder / ADJUST_WEIGHTS, table.schema) as writer:
        writer.write_table(table)


def moved(folder: Path) -> dict[str, list[str]]:
    """The items that gained and lost most places in the lists: `title (year) before -> after, w, b`."""
    table = pq.read_table(folder / ADJUST_WEIGHTS).to_pylist()
    change = [row["lists_after"] - row["lists_before"] for row in table]
    order = sorted(range(len(table)), key=lambda m: (-change[m], m))

    def lines(rows: list[int]) -> list[str]:
        return [
            f"{item_name(row['title'], row['year'])}: in {row['lists_before']} -> {row['lists_after']} lists, "
            f"w {row['w']:.2f}, b {row['b']:+.2f}"
            for row in (table[m] for m in rows)
        ]

    rising = [m for m in order[:MOVED] if change[m] > 0]
    return {"up": lines(rising), "down": lines([m for m in order[::-1][:MOVED] if change[m] < 0])}
