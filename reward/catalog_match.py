"""The reward function that verl calls: response text -> rank returns and the numbers that are logged.

Pure: the result depends on the arguments alone. The matcher (a catalog's index) is built once per process and settings.
"""

import json
import threading
from collections.abc import Iterable, Mapping
from functools import lru_cache

from convrec.errors import UserError
from convrec.lists.catalog import load_catalog
from convrec.lists.matching import Matcher
from convrec.lists.rank_rewards import dcg, ideal_dcg, rank_returns
from convrec.lists.ranks import DEFAULT_DELIMITER, parse_item, split_lines
from convrec.lists.reference import parse_items_reference

_building = threading.Lock()


@lru_cache(maxsize=8)
def _build_matcher(catalog_path: str, matching: str, year_tolerance: int, fuzzy_cutoff: float) -> Matcher:
    return Matcher(load_catalog(catalog_path), matching, year_tolerance, fuzzy_cutoff).meet_catalog()


def get_matcher(catalog_path: str, matching: str, year_tolerance: int, fuzzy_cutoff: float) -> Matcher:
    """The process's one matcher for these settings; two threads never build it twice."""
    with _building:
        return _build_matcher(str(catalog_path), matching, year_tolerance, fuzzy_cutoff)


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Mapping | str,
    extra_info: Mapping | None = None,
    *,
    catalog_path: str,
    num_items: int = 20,
    reward: str = "exp_inf",
    gamma: float | None = None,
    matching: str = "fuzzy",
    year_tolerance: int = 2,
    fuzzy_cutoff: float = 90,
    delimiter: str = DEFAULT_DELIMITER,
    **_: object,
) -> dict[str, float | int | list]:
    """Score one response.

    ground_truth: {"groundtruth": [[title, year], ...], "seen": [title, ...]} or that as JSON; in validation also
    {"rows": [such, ...]}, the rows of one conversation: then every value is their mean, and `num_rows` their number.
    Returns always the same keys. `score` is DCG@N of the relevance: what verl shows and the GRPO and GSPO baselines
    train on. `rank_returns` and `relevance` are lists of N = num_items; they are left out when extra_info["validate"]
    is true, because verl's validation metrics take scalars only. All counts but `num_items` are over the first N lines.
    """
    if isinstance(ground_truth, Mapping) and "rows" in ground_truth:
        settings = {
            "catalog_path": catalog_path,
            "num_items": num_items,
            "matching": matching,
            "year_tolerance": year_tolerance,
            "fuzzy_cutoff": fuzzy_cutoff,
            "delimiter": delimiter,
        }
        rows = [
            compute_score(data_source, solution_str, row, {"validate": True}, **settings)  # type: ignore[arg-type]
            for row in ground_truth["rows"]
        ]
        means: dict[str, float | int | list] = {"num_rows": len(rows)}
        for name in rows[0]:
            means[name] = sum(row[name] for row in rows) / len(rows)  # type: ignore[misc]
        return means
    truth, seen = _read_ground_truth(ground_truth)
    matcher = get_matcher(catalog_path, matching, year_tolerance, fuzzy_cutoff)
    lines = split_lines(solution_str, delimiter)
    asked = lines[:num_items]
    if matching == "reference":
        # The reference drops what it cannot parse and packs the rest to the left, so its ranks are not lines.
        matched = matcher.match(parse_items_reference(solution_str)[:num_items], truth, seen)
        unparsable = [parse_item(line) for line in asked].count(None)
    else:
        matched = matcher.match_lines(asked, truth, seen)
        unparsable = matched.parsed.count(False)

    relevance = matched.relevance + [0] * (num_items - len(matched.relevance))
    gain = dcg(relevance, num_items)
    hits = sum(relevance)
    scored: dict[str, float | int | list] = {
        "score": gain,
        "dcg": gain,
        "recall": hits / len(truth) if truth else 0.0,
        "ndcg": gain / ideal_dcg(min(num_items, len(truth))) if truth else 0.0,
        "hits": hits,
        "catalog_hit_ratio": sum(matched.in_catalog) / len(asked) if asked else 0.0,
        "num_items": len(lines),
        "unparsable": unparsable,
        "duplicates": sum(matched.duplicate),
        "overflow": int(len(lines) > num_items),
        "underflow": int(len(lines) < num_items),
    }
    if not (extra_info and extra_info.get("validate")):
        scored["rank_returns"] = rank_returns(relevance, num_items, reward, gamma)
        scored["relevance"] = relevance
    return scored


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
