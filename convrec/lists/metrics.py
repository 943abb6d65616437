"""Recall, NDCG and what is reported beside them: standard errors over conversations, popularity, paired comparison.

Three protocols for one row:
paper      seen and out-of-catalog items are removed and ranks close up; a ground truth is hit by the first item with
           the same title and |year difference| <= the tolerance; the ideal has min(k, |ground truth|) hits.
reference  the same, but the ideal is also no longer than the surviving list, which inflates short lists.
strict     positions are kept; relevance as in training (matching.Matcher.match), ideal as in paper.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np

from convrec.base.errors import UserError
from convrec.base.statistics import bootstrap, sign_flip
from convrec.lists.rank_rewards import dcg, ideal_dcg
from convrec.lists.settings import ListSettings
from convrec.titles.catalog import Catalog
from convrec.titles.item import Item
from convrec.titles.matching import Matcher, MatchResult, Truth

PROTOCOLS = ("paper", "strict", "reference")
KS = (5, 10, 15, 20)


def recall_at_k(relevance: Sequence[float], num_truth: int, k: int) -> float:
    """Hits in the first k over |ground truth|; NaN without ground truth."""
    return sum(relevance[:k]) / num_truth if num_truth else math.nan


def ndcg_at_k(relevance: Sequence[float], num_truth: int, k: int) -> float:
    """DCG@k over that of min(k, |ground truth|) hits at the top; NaN without ground truth."""
    return dcg(relevance, k) / ideal_dcg(min(k, num_truth)) if num_truth else math.nan


def evaluate_row(
    items: Sequence[Item | None],
    ground_truth: Iterable[tuple[str, object]],
    seen: Iterable[str] | None,
    matcher: Matcher,
    protocol: str = "paper",
    ks: Sequence[int] = KS,
) -> dict:
    """One row's recall@k and ndcg@k (NaN without ground truth), with num_truth, num_items (lines, parsed or not),
    num_in_catalog and catalog_rows (the catalog rows recommended) for `summarise`, and catalog_index, the catalog row
    of each line (-1: none).

    Raises UserError when a ground-truth year is no number: evaluation data must be right, unlike what a model writes.
    """
    pairs = [(title, _required_year(title, year, matcher.catalog)) for title, year in ground_truth]
    matched = matcher.match(items, pairs, seen)
    truth = matcher.truths(pairs)
    if protocol == "strict":
        relevance = matched.relevance
        ideal = len(truth)
    elif protocol in PROTOCOLS:
        relevance = _closed_up_relevance(items, truth, matched, matcher)
        ideal = min(len(truth), len(relevance)) if protocol == "reference" else len(truth)
    else:
        raise ValueError(f"unknown protocol {protocol!r}: one of {', '.join(PROTOCOLS)}")
    row: dict = {
        "num_truth": len(truth),
        "num_items": len(items),
        "num_in_catalog": sum(matched.in_catalog),
        "catalog_rows": [index for index in matched.catalog_index if index >= 0],
        "catalog_index": matched.catalog_index,
    }
    for k in ks:
        row[f"recall@{k}"] = recall_at_k(relevance, len(truth), k)
        # An empty surviving list under `reference` has an empty ideal: 0 like every list without a hit.
        row[f"ndcg@{k}"] = ndcg_at_k(relevance, ideal, k) if ideal or not truth else 0.0
    return row


def summarise(
    rows: Sequence[Mapping],
    ks: Sequence[int],
    contexts: Sequence[Hashable],
    seed: int = 3407,
    num_items: int = ListSettings.num_items,
) -> dict:
    """Means over rows with bootstrap standard errors over contexts.

    contexts[i] identifies row i's conversation (its prompt); rows of one conversation share one response and are not
    independent, so whole conversations are resampled. Rows without ground truth are counted in `without_ground_truth`
    and left out of everything else.
    Returns {"recall@5": {"mean", "se"}, ..., "n", "num_contexts", "without_ground_truth", "catalog_hit_ratio" (items of
    the catalog over lines; NaN when no line was written), "distinct_items" (catalog items recommended at least once),
    "list_length_errors" (rows not of `num_items` lines)}.
    """
    kept = [(row, label) for row, label in zip(rows, contexts, strict=True) if row["num_truth"]]
    scored = [row for row, _ in kept]
    labels = [label for _, label in kept]
    names = metric_names(ks)
    values = np.array([[row[name] for name in names] for row in scored], dtype=float).reshape(len(scored), len(names))
    means, errors = bootstrap(values, labels, seed)
    known, lines = (sum(row[name] for row in scored) for name in ("num_in_catalog", "num_items"))
    return {name: {"mean": float(m), "se": float(e)} for name, m, e in zip(names, means, errors, strict=True)} | {
        "n": len(scored),
        "num_contexts": len(set(labels)),
        "without_ground_truth": len(rows) - len(scored),
        "catalog_hit_ratio": known / lines if lines else math.nan,
        "distinct_items": len({index for row in scored for index in row["catalog_rows"]}),
        "list_length_errors": sum(row["num_items"] != num_items for row in scored),
    }


def paired(
    rows_a: Sequence[Mapping],
    rows_b: Sequence[Mapping],
    names: Sequence[str],
    contexts: Sequence[Hashable],
    seed: int = 3407,
) -> dict:
    """b minus a of these metrics, on the same rows, of those that have them (with ground truth): {"recall@5": {"mean",
    "se", "p"}, ...}.

    The standard error is of the difference (bootstrap over contexts), far smaller than of two separate means. p is
    two-sided: how often the mean would be this far from 0 if in every context either model were the better by chance.
    """
    difference = np.array([[b[name] - a[name] for name in names] for a, b in zip(rows_a, rows_b, strict=True)], float)
    difference = difference.reshape(len(rows_a), len(names))
    keep = ~np.isnan(difference).any(axis=1)
    kept = [context for context, ok in zip(contexts, keep, strict=True) if ok]
    means, errors = bootstrap(difference[keep], kept, seed)
    chances = sign_flip(difference[keep], kept, seed)
    found = zip(names, means, errors, chances, strict=True)
    return {name: {"mean": float(mean), "se": float(error), "p": float(p)} for name, mean, error, p in found}


def popularity_baseline(
    truths: Iterable[Sequence[tuple[str, str]]], matcher: Matcher, n: int = ListSettings.num_items
) -> list[Item]:
    """The n catalog items that are ground truth most often; ties in the catalog's order.

    truths: the (title, year) pairs of each training row. The list is scored as a model's would be, by this matcher: two
    spellings that it takes for one item are counted together and listed once.
    """
    catalog = matcher.catalog
    wanted = (matcher.wanted(*pair).index for truth in truths for pair in truth)
    counts = Counter(index for index in wanted if index >= 0)
    top = sorted(counts, key=lambda index: (-counts[index], index))[:n]
    return [Item(catalog.titles[index], catalog.years[index]) for index in top]  # type: ignore[arg-type]


def _closed_up_relevance(
    items: Sequence[Item | None], truth: Sequence[Truth], matched: MatchResult, matcher: Matcher
) -> list[int]:
    """Relevance of the items that are left when seen and out-of-catalog ones are taken out."""
    left = [
        (matcher.identify_line(*item).key, item.year or matcher.catalog.years[row])
        for item, row, seen in zip(items, matched.catalog_index, matched.seen, strict=True)
        if item is not None and row >= 0 and not seen
    ]
    relevance = [0] * len(left)
    for wanted in truth:
        for index, (key, year) in enumerate(left):
            if key == wanted.key and abs(year - wanted.year) <= matcher.year_tolerance:  # type: ignore[operator]
                relevance[index] = 1  # by the first such item; two equal ground truths make one hit
                break
    return relevance


def metric_names(ks: Sequence[int]) -> list[str]:
    return [f"{metric}@{k}" for metric in ("recall", "ndcg") for k in ks]


def _required_year(title: str, value: object, catalog: Catalog) -> int:
    year = catalog.normalise_year(value)
    if year is None:
        raise UserError(f"ground truth {title!r} has the year {value!r}: a whole number such as 1999 is needed")
    return year
