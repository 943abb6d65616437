"""Reflect: a judge rates candidates from -2 to 2 and s += gamma * rating; unrated: 0 (docs/explanation/method.md 6).

list           one question per conversation, answered with lines `title (year)####rating`, as in the paper
pointwise      one question per candidate to a judge trained with this project, with the prompt of its training;
               rating = score - 2 (another scale is mapped: its middle to 0, its ends to -2 and 2); only the `judged`
               best candidates are rated
cooccurrence   no model: how often the candidate was recommended in training conversations that name the same titles,
               compared with what its popularity explains. A counting rule, not a judgement of the conversation
none           all ratings are 0
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from convrec.data.schema import RL_SCHEMA, conversation_text, get_group_id, get_truth
from convrec.judges.criteria import DEFAULTS, SCORES, Criteria, Scores, parse_criteria
from convrec.judges.prompt import build_judge_prompt, format_answer_request
from convrec.judges.verdict import parse_score_verdict
from convrec.lists.ranks import split_lines
from convrec.retrieval.retriever import make_multi_hot
from convrec.titles.forms import fold
from convrec.titles.item import parse_item
from convrec.titles.matching import Matcher
from data_prep.stages import remap
from data_prep.stages.asking import BLOCK, PROMPTS, Asker
from data_prep.stages.record import Summary, count_rows, iter_with_progress, read_blocks
from data_prep.stages.rows import ROWS, find_train_file, load_matcher
from data_prep.tables import list_catalog_pairs, open_parquet_writer

FILE = "reflect.parquet"
SCHEMA = pa.schema(
    [
        ("sample_id", pa.string()),
        ("ratings", pa.list_(pa.float32())),  # for the candidates of remap, in their order
        ("scores", pa.list_(pa.float32())),  # s + gamma * rating, in the same order
    ]
)
LOWEST = -2.0
HIGHEST = 2.0
SHRINKAGE = 5.0  # pairs added to observed and expected counts: small counts are unreliable

_RATING = re.compile(r"[^\d+\-−–]*([+\-−–]?)\s?(\d+(?:\.\d+)?)(?![\d%])")


def parse_ratings(text: str, candidates: Sequence[int], matcher: Matcher) -> dict[int, float]:
    """Parse a judge's ratings leniently.

    Numbering, bold, other dashes, a plus sign, words before the number, halves and a title without its year (if only
    one candidate has it) are accepted. Numbers outside of -2..2, titles that are not candidates and other lines are
    ignored.

    Args:
        text: the answer, with a line `title (year)####rating` per candidate.
        candidates: rows of the catalog.
        matcher: of the catalog.

    Returns:
        Catalog row -> rating. If a candidate is rated more than once, the first rating counts.
    """
    candidate_rows = set(candidates)
    by_title: dict[str, list[int]] = {}
    for row in candidates:
        by_title.setdefault(fold(matcher.catalog.titles[row]), []).append(row)
    ratings: dict[int, float] = {}
    for line in split_lines(text):
        name, separator, rest = line.rpartition("####")
        number = _RATING.match(rest) if separator else None
        if number is None:
            continue
        rating = float(number[2]) * (-1.0 if number[1] in ("-", "−", "–") else 1.0)
        if not LOWEST <= rating <= HIGHEST:
            continue
        item = parse_item(name, matcher.catalog.dated)
        row = matcher.identify(*item).index if item else -1
        if row not in candidate_rows:
            same = by_title.get(fold(item.title if item else name.strip("*_ \t")), [])
            row = same[0] if len(same) == 1 else -1
        if row >= 0:
            ratings.setdefault(row, rating)
    return ratings


def parse_pointwise_rating(text: str, scores: Scores = SCORES) -> float | None:
    """Map the verdict of an answer to the scale of ratings.

    Args:
        text: the judge's answer.
        scores: the lowest and the highest score of its scale.

    Returns:
        The rating, from -2 to 2; None if there is no verdict.
    """
    score = parse_score_verdict(text, scores)
    low, high = scores
    return None if score is None else 4 * (score - low) / (high - low) - 2


# ---- judges: functions from blocks of rows with candidates to the ratings of each row's candidates

Block = list[tuple[dict, list[int]]]
Judge = Callable[[Block], list[list[float]]]


def make_list_judge(matcher: Matcher, asker: Asker) -> Judge:
    """Make the judge `list`: one question per conversation.

    Args:
        matcher: of the catalog, which reads the answers.
        asker: asks again if an answer rates fewer than half of the candidates.

    Returns:
        A function that rates the candidates of a block; unrated ones get 0.
    """
    lines = matcher.catalog.lines
    words = PROMPTS["list_dated" if matcher.catalog.dated else "list_undated"]

    def rate(block: Block) -> list[list[float]]:
        prompts = []
        for row, candidates in block:
            candidate_lines = "\n".join(lines[m] for m in candidates)
            text = PROMPTS["list"].format(conversation=conversation_text(row), candidates=candidate_lines, **words)
            prompts.append([{"role": "user", "content": text}])

        def is_good(index: int, text: str) -> bool:
            candidates = block[index][1]
            return 2 * len(parse_ratings(text, candidates, matcher)) >= len(candidates)

        ratings = []
        names = [row["sample_id"] for row, _ in block]
        answers = asker.ask(prompts, is_good, PROMPTS["list_again"].format(**words), "judge", names=names)
        for (_, candidates), texts in zip(block, answers, strict=True):
            ratings_by_row: dict[int, float] = {}
            for text in texts:  # the second answer overrides the first
                ratings_by_row |= parse_ratings(text, candidates, matcher)
            ratings.append([ratings_by_row.get(m, 0.0) for m in candidates])
        return ratings

    return rate


def make_pointwise_judge(matcher: Matcher, asker: Asker, judged: int, criteria: Criteria) -> Judge:
    """Make the judge `pointwise`: one question for each of the best candidates.

    Args:
        matcher: of the catalog.
        asker: asks again if an answer has no verdict.
        judged: number of candidates to rate per conversation; the others get 0.
        criteria: of the judge's training, with its scale.

    Returns:
        A function that rates the candidates of a block; unrated ones get 0.
    """
    lines = matcher.catalog.lines

    def rate(block: Block) -> list[list[float]]:
        questions = [(row, lines[m]) for row, candidates in block for m in candidates[:judged]]
        prompts = [
            build_judge_prompt("pointwise", [{"role": "user", "content": conversation_text(row)}], [line], criteria)
            for row, line in questions
        ]
        answers = asker.ask(
            prompts,
            lambda _, text: parse_pointwise_rating(text, criteria.scores) is not None,
            PROMPTS["pointwise_again"].format(form=format_answer_request("pointwise", criteria.scores)),
            "judge",
            thinks=True,
            names=[f"{row['sample_id']}: {line}" for row, line in questions],
        )
        ratings = iter([parse_pointwise_rating(texts[-1], criteria.scores) or 0.0 for texts in answers])
        return [[next(ratings) if k < judged else 0.0 for k in range(len(candidates))] for _, candidates in block]

    return rate


def make_cooccurrence_judge(matcher: Matcher, train_rows: list[dict]) -> Judge:
    """Make the judge `cooccurrence`, which rates by counting.

    lift = (observed + SHRINKAGE) / (expected + SHRINKAGE) gives the rating of item m: 2 from 2 up, 1 from 1.25 up, -2
    below 0.85, -1 below 0.95, otherwise 0. observed: (conversation, title) pairs of other training conversations that
    name a title of this conversation and recommend m. expected: the same number if m were recommended there as often as
    everywhere. A conversation that names no title known from training gets 0 for all candidates.

    Args:
        matcher: of the catalog.
        train_rows: of the whole training split.

    Returns:
        A function that rates the candidates of a block.
    """
    row_by_pair = {pair: m for m, pair in enumerate(list_catalog_pairs(matcher.catalog))}
    # conversation -> titles and items, in the same order
    named = defaultdict[str, set[str]](set)
    recommended = defaultdict[str, set[int]](set)
    for row in train_rows:
        named[get_group_id(row)].update(row["seen_titles"], (title for title, _ in get_truth(row)))
        recommended[get_group_id(row)].update(row_by_pair[pair] for pair in get_truth(row) if pair in row_by_pair)
    index_by_group = {name: c for c, name in enumerate(named)}
    number_by_title = {title: t for t, title in enumerate(sorted(set().union(*named.values())))}
    named_CT = make_multi_hot(
        ([number_by_title[title] for title in titles] for titles in named.values()), len(number_by_title)
    )
    recommended_CM = make_multi_hot(recommended.values(), len(row_by_pair))
    together_TM = (named_CT.T @ recommended_CM).tocsr()
    named_T = named_CT.sum(axis=0).A1
    recommended_M = recommended_CM.sum(axis=0).A1

    def rate(block: Block) -> list[list[float]]:
        ratings = []
        for row, candidates in block:
            titles = [number_by_title[title] for title in row["seen_titles"] if title in number_by_title]
            own = index_by_group.get(get_group_id(row))  # its own conversation does not count
            own_M = np.zeros(len(row_by_pair)) if own is None else recommended_CM[own].toarray().ravel()
            own_named = 0.0 if own is None else named_CT[own, titles].sum()
            observed_M = together_TM[titles].sum(axis=0).A1 - own_named * own_M
            expected_M = (recommended_M - own_M) * (named_T[titles].sum() - own_named) / max(len(named), 1)
            lift = (observed_M[candidates] + SHRINKAGE) / (expected_M[candidates] + SHRINKAGE)
            ratings.append(
                np.select([lift >= 2, lift >= 1.25, lift < 0.85, lift < 0.95], [2.0, 1.0, -2.0, -1.0]).tolist()
            )
        return ratings

    return rate


def rate_zero(block: Block) -> list[list[float]]:
    """Rate every candidate 0: the judge `none`."""
    return [[0.0] * len(candidates) for _, candidates in block]


@dataclass(frozen=True)
class ReflectSettings:
    """Settings that the ratings depend on.

    Attributes:
        judge: list, pointwise, cooccurrence or none.
        gamma: weight of a rating relative to the score of remap.
        judged: maximum number of candidates rated per conversation.
        model: name of the model that judges; None: none.
        sampling: sampling parameters of its answers.
        criteria: criteria of a pointwise judge, as YAML; None: the defaults.
    """

    judge: str
    gamma: float
    judged: int
    model: str | None = None
    sampling: Mapping[str, Any] | None = None
    criteria: str | None = None


def run(folder: Path, settings: ReflectSettings, asker: Asker | None) -> Summary:
    """Rate the candidates, and add gamma times the rating to their scores.

    Args:
        folder: of the stages.
        settings: what the result depends on.
        asker: asks the model of the judges `list` and `pointwise`; None for the others.
    """
    matcher = load_matcher(folder)
    judge = _make_judge(folder, settings, matcher, asker)
    counts: Counter[float] = Counter()  # rating -> how often
    questions = settings.judged if settings.judge == "pointwise" else 1  # per conversation
    size = max(1, BLOCK // questions)  # conversations with about BLOCK questions
    with open_parquet_writer(folder / FILE, SCHEMA) as writer:
        remap_blocks = read_blocks(folder / remap.FILE, size, ["candidates", "scores"])
        blocks = iter_with_progress(
            read_blocks(folder / ROWS, size, RL_SCHEMA.names), count_rows(folder / ROWS), "reflect"
        )
        for rows, remapped in zip(blocks, remap_blocks, strict=True):
            block = [(row, entry["candidates"]) for row, entry in zip(rows, remapped, strict=True)]
            rated = iter(judge([(row, candidates) for row, candidates in block if candidates]))
            ratings = [next(rated) if candidates else [] for _, candidates in block]
            scores = [
                [score + settings.gamma * rating for score, rating in zip(entry["scores"], row_ratings, strict=True)]
                for entry, row_ratings in zip(remapped, ratings, strict=True)
            ]
            writer.write_table(pa.table([[row["sample_id"] for row in rows], ratings, scores], SCHEMA))
            for row_ratings in ratings:
                counts.update(row_ratings)
    total = counts.total()
    summary = {
        "not_zero": round((total - counts[0.0]) / max(total, 1), 4),
        "ratings": {f"{rating:g}": count for rating, count in sorted(counts.items()) if count},
    }
    return summary | (asker.summary() if asker else {})


def _make_judge(folder: Path, settings: ReflectSettings, matcher: Matcher, asker: Asker | None) -> Judge:
    if settings.judge == "none":
        return rate_zero
    if settings.judge == "cooccurrence":
        return make_cooccurrence_judge(
            matcher, pq.read_table(find_train_file(folder), columns=RL_SCHEMA.names).to_pylist()
        )
    assert asker is not None
    if settings.judge == "list":
        return make_list_judge(matcher, asker)
    criteria = DEFAULTS["pointwise"]
    if settings.criteria:
        criteria = parse_criteria(settings.criteria, "pointwise", "--criteria")
    return make_pointwise_judge(matcher, asker, settings.judged, criteria)
