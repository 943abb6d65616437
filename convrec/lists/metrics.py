"""Recall and NDCG with standard errors over conversations, paired comparison, and the popularity baseline.

Three protocols for one row:
paper      seen and out-of-catalog items are removed and ranks close up; a ground truth is hit by the first item with
           the same title and |year difference| <= the tolerance; the ideal has min(k, |ground truth|) hits.
reference  as in paper, but the ideal is at most as long as the remaining list, which inflates short lists.
strict     items keep their positions; relevance as in training (matching.Matcher.match), ideal as in paper.
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
    """Compute Recall@k: the hits in the first k ranks over the number of relevant items.

    Args:
        relevance: 1 for a hit, else 0, from rank 1 on; it may have fewer than k entries.
        num_truth: the number of relevant items.
        k: the cutoff, from 1.

    Returns:
        A number from 0 to 1; NaN if there are no relevant items.
    """
    return sum(relevance[:k]) / num_truth if num_truth else math.nan


def ndcg_at_k(relevance: Sequence[float], num_truth: int, k: int) -> float:
    """Compute NDCG@k: DCG@k over the DCG@k of a list with all relevant items at the top.

    Args:
        relevance: 1 for a hit, else 0, from rank 1 on; it may have fewer than k entries.
        num_truth: the number of relevant items.
        k: the cutoff, from 1, which also bounds the ideal list.

    Returns:
        A number from 0 to 1; NaN if there are no relevant items.
    """
    return dcg(relevance, k) / ideal_dcg(min(k, num_truth)) if num_truth else math.nan


def evaluate_row(
    items: Sequence[Item | None],
    ground_truth: Iterable[tuple[str, object]],
    seen: Iterable[str] | None,
    matcher: Matcher,
    protocol: str = "paper",
    ks: Sequence[int] = KS,
) -> dict:
    """Evaluate the list of one row.

    Args:
        items: the item of each line; None for a line that is not an item.
        ground_truth: (title, year) pairs.
        seen: titles that the conversation names; None for none.
        matcher: matches titles with the catalog.
        protocol: one of PROTOCOLS.
        ks: the cutoffs, from 1.

    Returns:
        recall@k and ndcg@k (NaN without ground truth); num_truth, num_items (all lines), num_in_catalog and
        catalog_rows (the recommended catalog rows) for `summarise`; and catalog_index, the catalog row of each line, -1
        for none.

    Raises:
        UserError: a ground-truth year is not a number. A model's output may be wrong, evaluation data may not.
        ValueError: the protocol is unknown.
    """
    pairs = [(title, _parse_required_year(title, year, matcher.catalog)) for title, year in ground_truth]
    matched = matcher.match(items, pairs, seen)
    truth = matcher.truths(pairs)
    if protocol == "strict":
        relevance = matched.relevance
        ideal = len(truth)
    elif protocol in PROTOCOLS:
        relevance = _compute_compacted_relevance(items, truth, matched, matcher)
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
        # under `reference`, an empty remaining list has an empty ideal: 0, like any list without a hit
        row[f"ndcg@{k}"] = ndcg_at_k(relevance, ideal, k) if ideal or not truth else 0.0
    return row


def summarise(
    rows: Sequence[Mapping],
    ks: Sequence[int],
    contexts: Sequence[Hashable],
    seed: int = 3407,
    num_items: int = ListSettings.num_items,
) -> dict:
    """Compute means over rows, with bootstrap standard errors over contexts.

    Args:
        rows: results of `evaluate_row`. Rows without ground truth are counted in `without_ground_truth` and otherwise
            ignored.
        ks: the cutoffs.
        contexts: each row's conversation (its prompt). Rows of one conversation share a response and are not
            independent, so whole conversations are resampled.
        seed: random seed of the bootstrap.
        num_items: the expected number of lines.

    Returns:
        {"recall@5": {"mean", "se"}, ..., "n", "num_contexts", "without_ground_truth", "catalog_hit_ratio" (catalog
        items over lines; NaN without lines), "distinct_items" (catalog items recommended at least once),
        "list_length_errors" (rows with a number of lines other than `num_items`)}. "mean" is NaN without rows, "se"
        with fewer than two conversations.
    """
    pairs = [(row, label) for row, label in zip(rows, contexts, strict=True) if row["num_truth"]]
    scored = [row for row, _ in pairs]
    labels = [label for _, label in pairs]
    names = list_metric_names(ks)
    values = np.array([[row[name] for name in names] for row in scored], dtype=float).reshape(len(scored), len(names))
    means, errors = bootstrap(values, labels, seed)
    num_in_catalog = sum(row["num_in_catalog"] for row in scored)
    num_lines = sum(row["num_items"] for row in scored)
    return {name: {"mean": float(m), "se": float(e)} for name, m, e in zip(names, means, errors, strict=True)} | {
        "n": len(scored),
        "num_contexts": len(set(labels)),
        "without_ground_truth": len(rows) - len(scored),
        "catalog_hit_ratio": num_in_catalog / num_lines if num_lines else math.nan,
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
    """Compare two models on the same rows: b minus a.

    Args:
        rows_a: results of `evaluate_row` for model a.
        rows_b: for model b, in the same order.
        names: the metrics; rows without one (without ground truth) are ignored.
        contexts: each row's conversation.
        seed: random seed of the bootstrap and the test.

    Returns:
        {"recall@5": {"mean", "se", "p"}, ...}. The standard error of the difference (bootstrap over contexts) is far
        smaller than that of two separate means; it is NaN with fewer than two conversations. p is two-sided: the
        probability of a mean this far from 0 if, in every context, chance decided which model is better.

    Raises:
        ValueError: the rows of the two models, or the contexts, differ in number.
    """
    difference = np.array([[b[name] - a[name] for name in names] for a, b in zip(rows_a, rows_b, strict=True)], float)
    difference = difference.reshape(len(rows_a), len(names))
    keep = ~np.isnan(difference).any(axis=1)
    paired_contexts = [context for context, is_complete in zip(contexts, keep, strict=True) if is_complete]
    means, errors = bootstrap(difference[keep], paired_contexts, seed)
    chances = sign_flip(difference[keep], paired_contexts, seed)
    results = zip(names, means, errors, chances, strict=True)
    return {name: {"mean": float(mean), "se": float(error), "p": float(p)} for name, mean, error, p in results}


def popularity_baseline(
    truths: Iterable[Sequence[tuple[str, str]]], matcher: Matcher, n: int = ListSettings.num_items
) -> list[Item]:
    """Return the n catalog items that are ground truth most often; ties in the catalog's order.

    Args:
        truths: the (title, year) pairs of each training row.
        matcher: the matcher that will score the list. Spellings that it counts as one item are counted together and
            listed once.
        n: the length of the list.
    """
    catalog = matcher.catalog
    rows = (matcher.wanted(*pair).index for truth in truths for pair in truth)
    counts = Counter(index for index in rows if index >= 0)
    top = sorted(counts, key=lambda index: (-counts[index], index))[:n]
    return [Item(catalog.titles[index], catalog.years[index]) for index in top]  # type: ignore[arg-type]


def _compute_compacted_relevance(
    items: Sequence[Item | None], truth: Sequence[Truth], matched: MatchResult, matcher: Matcher
) -> list[int]:
    """Compute the relevance of the items that remain without seen and out-of-catalog ones."""
    remaining = [
        (matcher.identify_line(*item).key, item.year or matcher.catalog.years[row])
        for item, row, seen in zip(items, matched.catalog_index, matched.seen, strict=True)
        if item is not None and row >= 0 and not seen
    ]
    relevance = [0] * len(remaining)
    for relevant in truth:
        for index, (key, year) in enumerate(remaining):
            if key == relevant.key and abs(year - relevant.year) <= matcher.year_tolerance:  # type: ignore[operator]
                relevance[index] = 1  # only the first such item; two equal ground truths make one hit
                break
    return relevance


def list_metric_names(ks: Sequence[int]) -> list[str]:
    """Return the names of Recall and NDCG at these cutoffs."""
    return [f"{metric}@{k}" for metric in ("recall", "ndcg") for k in ks]


def _parse_required_year(title: str, value: object, catalog: Catalog) -> int:
    year = catalog.normalise_year(value)
    if year is None:
        raise UserError(
            "ground-truth.invalid-year",
            f"ground truth {title!r} has the year {value!r}. Use a whole number such as 1999.",
        )
    return year
