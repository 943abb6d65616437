"""Reflect: a judge rates the candidates on -2..2 and s += gamma * rating; unrated: 0 (docs/explanation/method.md 6).

list           one question a conversation, answered with `title (year)####rating` lines, as in the paper
pointwise      one question a candidate to a judge that this project trained, in the words of its training;
               rating = score - 2 (on another scale: its middle is 0, its ends -2 and 2); asked for the `judged` best
               candidates only
cooccurrence   no model: how often the candidate was recommended in training conversations that name the same titles,
               against what its popularity explains. A counting rule, not a judgement of the conversation
none           all ratings 0
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
from convrec.judges.prompt import form_of_answer, judge_prompt
from convrec.judges.verdict import score_verdict
from convrec.lists.ranks import split_lines
from convrec.retrieval.retriever import make_multi_hot
from convrec.titles.forms import fold
from convrec.titles.item import parse_item
from convrec.titles.matching import Matcher
from data_prep.stages import remap
from data_prep.stages.asking import BLOCK, PROMPTS, Asker
from data_prep.stages.record import Summary, by_rows, count_rows, read_blocks
from data_prep.stages.rows import ROWS, catalog_matcher, train_file
from data_prep.tables import catalog_pairs, parquet_writer

FILE = "reflect.parquet"
SCHEMA = pa.schema(
    [
        ("sample_id", pa.string()),
        ("ratings", pa.list_(pa.float32())),  # of remap's candidates, in their order
        ("scores", pa.list_(pa.float32())),  # s + gamma * rating, in the same order
    ]
)
LOWEST = -2.0
HIGHEST = 2.0
SHRINKAGE = 5.0  # pairs added to what is observed and to what is expected: a few of them say little

_RATING = re.compile(r"[^\d+\-−–]*([+\-−–]?)\s?(\d+(?:\.\d+)?)(?![\d%])")


def parse_ratings(text: str, candidates: Sequence[int], matcher: Matcher) -> dict[int, float]:
    """{catalog row: rating} for the candidates that the text rates; of two ratings of one the first counts.

    Lenient: numbering, bold, other dashes, a plus sign, words before the number, halves, a title without its year (when
    only one candidate has it). A number outside -2..2, a title that is no candidate and any other line are passed over.
    """
    wanted = set(candidates)
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
        if row not in wanted:
            same = by_title.get(fold(item.title if item else name.strip("*_ \t")), [])
            row = same[0] if len(same) == 1 else -1
        if row >= 0:
            ratings.setdefault(row, rating)
    return ratings


def pointwise_rating(text: str, scores: Scores = SCORES) -> float | None:
    """-2..2 from a verdict 0-4, or of another range; None where the answer has none."""
    score = score_verdict(text, scores)
    low, high = scores
    return None if score is None else 4 * (score - low) / (high - low) - 2


# ---- the judges: blocks of rows with their candidates -> ratings of each row, aligned with the candidates

Block = list[tuple[dict, list[int]]]
Judge = Callable[[Block], list[list[float]]]


def list_judge(matcher: Matcher, asker: Asker) -> Judge:
    lines = matcher.catalog.lines
    words = PROMPTS["list_dated" if matcher.catalog.dated else "list_undated"]

    def rate(block: Block) -> list[list[float]]:
        prompts = []
        for row, candidates in block:
            listed = "\n".join(lines[m] for m in candidates)
            text = PROMPTS["list"].format(conversation=conversation_text(row), candidates=listed, **words)
            prompts.append([{"role": "user", "content": text}])

        def is_good(index: int, text: str) -> bool:
            candidates = block[index][1]
            return 2 * len(parse_ratings(text, candidates, matcher)) >= len(candidates)

        ratings = []
        names = [row["sample_id"] for row, _ in block]
        answers = asker.ask(prompts, is_good, PROMPTS["list_again"].format(**words), "judge", names=names)
        for (_, candidates), texts in zip(block, answers, strict=True):
            found: dict[int, float] = {}
            for text in texts:  # what the second answer says counts more; what only the first rated stays
                found |= parse_ratings(text, candidates, matcher)
            ratings.append([found.get(m, 0.0) for m in candidates])
        return ratings

    return rate


def pointwise_judge(matcher: Matcher, asker: Asker, judged: int, criteria: Criteria) -> Judge:
    lines = matcher.catalog.lines

    def rate(block: Block) -> list[list[float]]:
        questions = [(row, lines[m]) for row, candidates in block for m in candidates[:judged]]
        prompts = [
            judge_prompt("pointwise", [{"role": "user", "content": conversation_text(row)}], [shown], criteria)
            for row, shown in questions
        ]
        answers = asker.ask(
            prompts,
            lambda _, text: pointwise_rating(text, criteria.scores) is not None,
            PROMPTS["pointwise_again"].format(form=form_of_answer("pointwise", criteria.scores)),
            "judge",
            thinks=True,
            names=[f"{row['sample_id']}: {shown}" for row, shown in questions],
        )
        ratings = iter([pointwise_rating(texts[-1], criteria.scores) or 0.0 for texts in answers])
        return [[next(ratings) if k < judged else 0.0 for k in range(len(candidates))] for _, candidates in block]

    return rate


def cooccurrence_judge(matcher: Matcher, train_rows: list[dict]) -> Judge:
    """rating(m) from lift = (observed + SHRINKAGE) / (expected + SHRINKAGE): 2 from 2, 1 from 1.25, -1 below 0.95, -2
    below 0.85, else 0. observed: (conversation, title) pairs of other training conversations in which one of the titles
    named here is named and m recommended; expected: as many as if m were recommended there as often as anywhere.
    A conversation that names no title known from training gets 0 everywhere."""
    item_of = {pair: m for m, pair in enumerate(catalog_pairs(matcher.catalog))}
    # both by conversation, in the same order
    named = defaultdict[str, set[str]](set)
    wanted = defaultdict[str, set[int]](set)
    for row in train_rows:
        named[get_group_id(row)].update(row["seen_titles"], (title for title, _ in get_truth(row)))
        wanted[get_group_id(row)].update(item_of[pair] for pair in get_truth(row) if pair in item_of)
    index_by_group = {name: c for c, name in enumerate(named)}
    number_by_title = {title: t for t, title in enumerate(sorted(set().union(*named.values())))}
    named_CT = make_multi_hot(
        ([number_by_title[title] for title in titles] for titles in named.values()), len(number_by_title)
    )
    wanted_CM = make_multi_hot(wanted.values(), len(item_of))
    together_TM = (named_CT.T @ wanted_CM).tocsr()
    named_T = named_CT.sum(axis=0).A1
    wanted_M = wanted_CM.sum(axis=0).A1

    def rate(block: Block) -> list[list[float]]:
        ratings = []
        for row, candidates in block:
            titles = [number_by_title[title] for title in row["seen_titles"] if title in number_by_title]
            own = index_by_group.get(get_group_id(row))  # its own conversation counts for nothing
            own_M = np.zeros(len(item_of)) if own is None else wanted_CM[own].toarray().ravel()
            own_named = 0.0 if own is None else named_CT[own, titles].sum()
            observed_M = together_TM[titles].sum(axis=0).A1 - own_named * own_M
            expected_M = (wanted_M - own_M) * (named_T[titles].sum() - own_named) / max(len(named), 1)
            lift = (observed_M[candidates] + SHRINKAGE) / (expected_M[candidates] + SHRINKAGE)
            ratings.append(
                np.select([lift >= 2, lift >= 1.25, lift < 0.85, lift < 0.95], [2.0, 1.0, -2.0, -1.0]).tolist()
            )
        return ratings

    return rate


def no_judge(block: Block) -> list[list[float]]:
    return [[0.0] * len(candidates) for _, candidates in block]


@dataclass(frozen=True)
class ReflectSettings:
    """What the ratings depend on.

    Attributes:
        judge: list, pointwise, cooccurrence or none.
        gamma: the weight of a rating beside the score of remap.
        judged: candidates of a conversation that are rated, at most.
        model: that judges, where one does.
        sampling: of its answers.
        criteria: of a pointwise judge, as YAML; None: the defaults.
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
        asker: of the judges `list` and `pointwise`.
    """
    matcher = catalog_matcher(folder)
    judge = _make_judge(folder, settings, matcher, asker)
    counts: Counter[float] = Counter()  # rating -> how often
    questions = settings.judged if settings.judge == "pointwise" else 1  # a conversation
    size = max(1, BLOCK // questions)  # conversations, of about BLOCK questions
    with parquet_writer(folder / FILE, SCHEMA) as writer:
        kept_blocks = read_blocks(folder / remap.FILE, size, ["candidates", "scores"])
        blocks = by_rows(read_blocks(folder / ROWS, size, RL_SCHEMA.names), count_rows(folder / ROWS), "reflect")
        for rows, kept in zip(blocks, kept_blocks, strict=True):
            block = [(row, entry["candidates"]) for row, entry in zip(rows, kept, strict=True)]
            rated = iter(judge([(row, candidates) for row, candidates in block if candidates]))
            ratings = [next(rated) if candidates else [] for _, candidates in block]
            scores = [
                [score + settings.gamma * rating for score, rating in zip(entry["scores"], given, strict=True)]
                for entry, given in zip(kept, ratings, strict=True)
            ]
            writer.write_table(pa.table([[row["sample_id"] for row in rows], ratings, scores], SCHEMA))
            for given in ratings:
                counts.update(given)
    total = counts.total()
    summary = {
        "not_zero": round((total - counts[0.0]) / max(total, 1), 4),
        "ratings": {f"{rating:g}": count for rating, count in sorted(counts.items()) if count},
    }
    return summary | (asker.summary() if asker else {})


def _make_judge(folder: Path, settings: ReflectSettings, matcher: Matcher, asker: Asker | None) -> Judge:
    if settings.judge == "none":
        return no_judge
    if settings.judge == "cooccurrence":
        return cooccurrence_judge(matcher, pq.read_table(train_file(folder), columns=RL_SCHEMA.names).to_pylist())
    assert asker is not None
    if settings.judge == "list":
        return list_judge(matcher, asker)
    criteria = DEFAULTS["pointwise"]
    if settings.criteria:
        criteria = parse_criteria(settings.criteria, "pointwise", "--criteria")
    return pointwise_judge(matcher, asker, settings.judged, criteria)
