"""The reward function that verl calls: response text -> rank returns and logged metrics.

The result depends only on the arguments. The matcher (an index of the catalog) is built once per process and settings.
"""

import json
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from convrec.base.errors import UserError
from convrec.features.rewards.parts import RewardParts, combined, needs_training_mentions
from convrec.lists import user_rewards
from convrec.lists.rank_rewards import DEFAULT_REWARD, dcg, ideal_dcg, rank_returns
from convrec.lists.ranks import split_lines
from convrec.lists.reference import parse_items_reference
from convrec.lists.reward_parts import RELEVANCE
from convrec.lists.settings import ListSettings, make_matcher
from convrec.titles.catalog import load_catalog
from convrec.titles.matching import Matcher

Scores = dict[str, float | int | list]  # of a response: name -> value
_building = threading.Lock()


@lru_cache(maxsize=8)
def _build_matcher(catalog_path: str, settings: ListSettings) -> Matcher:
    return make_matcher(load_catalog(catalog_path), settings)


def get_matcher(catalog_path: str, settings: ListSettings) -> Matcher:
    """Return the matcher of this process for these settings; it is built once, also with several threads.

    Raises:
        UserError: the catalog cannot be loaded, or does not suit the settings.
    """
    with _building:
        return _build_matcher(str(catalog_path), settings)


@lru_cache(maxsize=8)
def _build_parts(
    catalog_path: str, settings: ListSettings, weights: tuple[tuple[str, float], ...], train_files: tuple[str, ...]
) -> RewardParts:
    matcher = _build_matcher(catalog_path, settings)
    mentions_M = None
    if train_files and needs_training_mentions(dict(weights), matcher.catalog):
        mentions_M = count_training_mentions(train_files, matcher)
    return RewardParts(dict(weights), matcher.catalog, catalog_path, mentions_M, matcher.index.items)


def get_parts(
    catalog_path: str, settings: ListSettings, weights: Mapping[str, float], train_files: str | Sequence[str]
) -> RewardParts:
    """Return the RewardParts of this process for these settings; they are built once.

    Args:
        catalog_path: the catalog.
        settings: settings of lists.
        weights: part -> weight.
        train_files: training files in which mentions are counted if the catalog has no such column; () for none.

    Raises:
        UserError: the catalog lacks what a part needs.
    """
    files = (train_files,) if isinstance(train_files, str) else tuple(train_files)
    with _building:
        return _build_parts(str(catalog_path), settings, tuple(weights.items()), files)


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Mapping | str,
    extra_info: Mapping | None = None,
    *,
    catalog_path: str,
    reward: str = DEFAULT_REWARD,
    rewards: Mapping[str, float] | None = None,
    train_files: str | Sequence[str] = (),
    **settings: Any,
) -> Scores:
    """Score one response.

    Args:
        data_source: verl's argument; not used.
        solution_str: the response.
        ground_truth: {"groundtruth": [[title, year], ...], "seen": [title, ...]}, or the same as JSON. In validation
            also {"rows": [...]} with such an element for each row of one conversation: every value is then the mean
            over the rows, and `num_rows` is their number.
        extra_info: in validation {"validate": True}.
        catalog_path: the catalog.
        reward: a name of RANK_REWARDS, or a custom function `package.module:function`.
        rewards: weights of reward_parts.REWARD_PARTS. `rank_returns` is then their weighted sum, and `part_returns` has
            a list of N numbers per part, in the order of the weights. None: only the relevance, scored by `reward`.
        train_files: files in which parts about mentions count them if the catalog has no such column.
        **settings: those of ListSettings and the parameters of the reward; others are ignored.

    Returns:
        Always the same keys. `score` is DCG@N of the relevance, which verl shows and on which the GRPO and GSPO
        baselines train. `rank_returns` and `relevance` are lists of N = num_items; in validation they are missing,
        because verl's validation metrics must be scalars. All counts except `num_items` cover the first N lines.

    Raises:
        UserError: ground_truth has another form.
    """
    if isinstance(ground_truth, Mapping) and "rows" in ground_truth:
        rows = [
            compute_score(data_source, solution_str, row, {"validate": True}, catalog_path=catalog_path, **settings)
            for row in ground_truth["rows"]
        ]
        return _average(rows)
    lists = ListSettings.of(settings)
    num_items = lists.num_items
    truth, seen = _read_ground_truth(ground_truth)
    matcher = get_matcher(catalog_path, lists)
    lines = split_lines(solution_str, lists.delimiter)
    first_lines = lines[:num_items]
    items = [matcher.read_line(line) for line in first_lines]
    unparsable = items.count(None)
    if lists.matching == "reference":
        # The reference drops lines that it cannot parse and closes the gaps, so its ranks are not line numbers.
        items = [*parse_items_reference(solution_str)[:num_items]]
    matched = matcher.match(items, truth, seen)
    relevance = matched.relevance + [0] * (num_items - len(matched.relevance))
    gain = dcg(relevance, num_items)
    hits = sum(relevance)
    num_relevant = len(matcher.truths(truth))
    scores: Scores = {
        "score": gain,
        "dcg": gain,
        "recall": hits / num_relevant if truth else 0.0,
        "ndcg": gain / ideal_dcg(min(num_items, num_relevant)) if truth else 0.0,
        "hits": hits,
        "catalog_hit_ratio": sum(matched.in_catalog) / len(first_lines) if first_lines else 0.0,
        "num_items": len(lines),
        "unparsable": unparsable,
        "duplicates": sum(matched.duplicate),
        "overflow": int(len(lines) > num_items),
        "underflow": int(len(lines) < num_items),
    }
    if extra_info and extra_info.get("validate"):
        return scores
    if user_rewards.is_user_reward(reward):
        returns = user_rewards.load(reward)(relevance, items + [None] * (num_items - len(items)))
    else:
        returns = rank_returns(relevance, num_items, reward, **settings)
    if rewards:
        parts = get_parts(catalog_path, lists, rewards, train_files)
        part_returns = {RELEVANCE: returns}
        part_returns |= parts.returns(matched.catalog_index, matched.duplicate, matched.seen, num_items)
        scores["part_returns"] = [part_returns[name] for name in parts.weights]
        returns = combined(part_returns, parts.weights, num_items)
    scores["rank_returns"] = returns
    scores["relevance"] = relevance
    return scores


def _average(rows: Sequence[Scores]) -> Scores:
    """Return the mean of every value over the rows of one conversation, and their number."""
    means: Scores = {"num_rows": len(rows)}
    for name in rows[0]:
        means[name] = sum(row[name] for row in rows) / len(rows)  # type: ignore[misc]
    return means


def count_training_mentions(files: Iterable[str], matcher: Matcher) -> list[int]:
    """Count the training rows whose ground truth contains each item.

    Args:
        files: training files.
        matcher: finds the items in its catalog.

    Returns:
        mentions_M: the number of rows, at the first catalog row of an item; 0 at its other rows.
    """
    import pyarrow.parquet as pq  # late, because most rewards do not need it

    from convrec.data.schema import TRUTH, Pair

    num_rows: Counter[frozenset[Pair]] = Counter()
    for file in files:
        for batch in pq.ParquetFile(file).iter_batches(columns=[TRUTH]):
            num_rows.update(
                frozenset((title, year) for title, year in truth or ()) for truth in batch.column(0).to_pylist()
            )
    mentions_M = [0] * len(matcher.catalog)
    for truth, count in num_rows.items():
        for item in {matcher.wanted(*pair).index for pair in truth} - {-1}:
            mentions_M[item] += count
    return mentions_M


def _read_ground_truth(ground_truth: Mapping | str) -> tuple[list[tuple[str, object]], list[str]]:
    if isinstance(ground_truth, str):
        ground_truth = json.loads(ground_truth)
    if not isinstance(ground_truth, Mapping) or "groundtruth" not in ground_truth:
        raise UserError(
            "reward.invalid-ground-truth",
            f"ground_truth={str(ground_truth)[:200]!r}: expected "
            '{"groundtruth": [[title, year], ...], "seen": [title, ...]}',
        )
    seen: Iterable[str] | None = ground_truth.get("seen")
    # verl passes parquet lists as numpy arrays, whose truth value is an error, so compare with None.
    return [(title, year) for title, year in ground_truth["groundtruth"]], list(seen) if seen is not None else []
