"""The reward function that verl calls: response text -> rank returns and the numbers that are logged.

Pure: the result depends on the arguments alone. The matcher (a catalog's index) is built once per process and settings.
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

_building = threading.Lock()


@lru_cache(maxsize=8)
def _build_matcher(catalog_path: str, settings: ListSettings) -> Matcher:
    return make_matcher(load_catalog(catalog_path), settings)


def get_matcher(catalog_path: str, settings: ListSettings) -> Matcher:
    """The process's one matcher for these settings; two threads never build it twice."""
    with _building:
        return _build_matcher(str(catalog_path), settings)


@lru_cache(maxsize=8)
def _build_parts(
    catalog_path: str, settings: ListSettings, weights: tuple[tuple[str, float], ...], train_files: tuple[str, ...]
) -> RewardParts:
    matcher = _build_matcher(catalog_path, settings)
    mentions_M = None
    if train_files and needs_training_mentions(dict(weights), matcher.catalog):
        mentions_M = training_mentions(train_files, matcher)
    return RewardParts(dict(weights), matcher.catalog, catalog_path, mentions_M, matcher.index.items)


def get_parts(
    catalog_path: str, settings: ListSettings, weights: Mapping[str, float], train_files: str | Sequence[str]
) -> RewardParts:
    """The process's one RewardParts for these settings; see RewardParts."""
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
) -> dict[str, float | int | list]:
    """Score one response.

    ground_truth: {"groundtruth": [[title, year], ...], "seen": [title, ...]} or that as JSON; in validation also
    {"rows": [such, ...]}, the rows of one conversation: then every value is their mean, and `num_rows` their number.
    reward: a name of RANK_REWARDS, or a function of the user's own as `package.module:function`.
    rewards: weights of reward_parts.REWARD_PARTS; then `rank_returns` is their weighted sum, and `part_returns` has a
    list of N for each part, in their order. None: the relevance alone, which `reward` is about.
    train_files: where parts of mentions count them, if the catalog does not say.
    settings: those of ListSettings and the parameters of the reward; others are left alone.
    Returns always the same keys. `score` is DCG@N of the relevance: what verl shows and the GRPO and GSPO baselines
    train on. `rank_returns` and `relevance` are lists of N = num_items; they are left out when extra_info["validate"]
    is true, because verl's validation metrics take scalars only. All counts but `num_items` are over the first N lines.
    """
    if isinstance(ground_truth, Mapping) and "rows" in ground_truth:
        rows = [
            compute_score(data_source, solution_str, row, {"validate": True}, catalog_path=catalog_path, **settings)
            for row in ground_truth["rows"]
        ]
        means: dict[str, float | int | list] = {"num_rows": len(rows)}
        for name in rows[0]:
            means[name] = sum(row[name] for row in rows) / len(rows)  # type: ignore[misc]
        return means
    lists = ListSettings.of(settings)
    num_items = lists.num_items
    truth, seen = _read_ground_truth(ground_truth)
    matcher = get_matcher(catalog_path, lists)
    lines = split_lines(solution_str, lists.delimiter)
    asked = lines[:num_items]
    items = [matcher.read_line(line) for line in asked]
    unparsable = items.count(None)
    if lists.matching == "reference":
        # The reference drops what it cannot parse and packs the rest to the left, so its ranks are not lines.
        items = [*parse_items_reference(solution_str)[:num_items]]
    matched = matcher.match(items, truth, seen)
    relevance = matched.relevance + [0] * (num_items - len(matched.relevance))
    gain = dcg(relevance, num_items)
    hits = sum(relevance)
    wanted = len(matcher.truths(truth))
    scored: dict[str, float | int | list] = {
        "score": gain,
        "dcg": gain,
        "recall": hits / wanted if truth else 0.0,
        "ndcg": gain / ideal_dcg(min(num_items, wanted)) if truth else 0.0,
        "hits": hits,
        "catalog_hit_ratio": sum(matched.in_catalog) / len(asked) if asked else 0.0,
        "num_items": len(lines),
        "unparsable": unparsable,
        "duplicates": sum(matched.duplicate),
        "overflow": int(len(lines) > num_items),
        "underflow": int(len(lines) < num_items),
    }
    if not (extra_info and extra_info.get("validate")):
        if user_rewards.is_user_reward(reward):
            returns = user_rewards.load(reward)(relevance, items + [None] * (num_items - len(items)))
        else:
            returns = rank_returns(relevance, num_items, reward, **settings)
        if rewards:
            parts = get_parts(catalog_path, lists, rewards, train_files)
            item_returns = parts.returns(matched.catalog_index, matched.duplicate, matched.seen, num_items)
            by_part = {RELEVANCE: returns} | item_returns
            scored["part_returns"] = [by_part[name] for name in parts.weights]
            returns = combined(by_part, parts.weights, num_items)
        scored["rank_returns"] = returns
        scored["relevance"] = relevance
    return scored


def training_mentions(files: Iterable[str], matcher: Matcher) -> list[int]:
    """(M,) How many training rows want the item, at the first of its catalog rows; 0 at its other rows."""
    import pyarrow.parquet as pq  # here: other rewards need not import it

    from convrec.data.schema import TRUTH, Pair

    wanted: Counter[frozenset[Pair]] = Counter()
    for file in files:
        for batch in pq.ParquetFile(file).iter_batches(columns=[TRUTH]):
            wanted.update(
                frozenset((title, year) for title, year in truth or ()) for truth in batch.column(0).to_pylist()
            )
    mentions_M = [0] * len(matcher.catalog)
    for truth, rows in wanted.items():
        for item in {matcher.wanted(*pair).index for pair in truth} - {-1}:
            mentions_M[item] += rows
    return mentions_M


def _read_ground_truth(ground_truth: Mapping | str) -> tuple[list[tuple[str, object]], list[str]]:
    if isinstance(ground_truth, str):
        ground_truth = json.loads(ground_truth)
    if not isinstance(ground_truth, Mapping) or "groundtruth" not in ground_truth:
        raise UserError(
            'ground_truth must be {"groundtruth": [[title, year], ...], "seen": [title, ...]}, '
            f"got {str(ground_truth)[:200]!r}"
        )
    seen: Iterable[str] | None = ground_truth.get("seen")
    # verl hands parquet lists over as numpy arrays, whose truth value is an error: compare with None.
    return [(title, year) for title, year in ground_truth["groundtruth"]], list(seen) if seen is not None else []
