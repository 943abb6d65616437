"""What a judge judges by: the task, numbered principles and, pointwise, the lowest and the highest score.

A YAML file gives other criteria than the defaults (`convrec data judge --criteria FILE`):

    task: Rate how well the response keeps to the contract, from 1 (not at all) to 5 (in every point).
    principles:
      - What the contract does not mention does not count.
    scores: [1, 5]        # pointwise only; [0, 4] where it is left out

Criteria travel with what was made by them: the judges' parquet has them in its metadata, a trained judge in
`criteria.yaml` beside its weights.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from convrec.base.errors import UserError

Scores = tuple[int, int]  # the lowest and the highest
SCORES: Scores = (0, 4)
MOST_SCORES = 101  # 0 to 100
FILE = "criteria.yaml"  # beside a data set and a model


@dataclass(frozen=True)
class Criteria:
    """scores: what a pointwise judge may give; a pairwise one answers A or B."""

    task: str
    principles: tuple[str, ...]
    scores: Scores = SCORES


PRINCIPLES = (
    "A helpful response does what the query asks, all of it, and keeps to the conditions that the query sets.",
    "What it says is true, and what it recommends exists and suits this user.",
    "It is safe: it does no harm, helps nobody to do harm, and offends nobody.",
    "It is clear, and as long as it needs to be: length, tone and confidence are no merit by themselves.",
    "The order in which responses are shown says nothing about them.",
)
DEFAULTS = {
    "pointwise": Criteria(
        "You are a judge of responses. Rate how helpful the response to the query is, from 0 (no help at all) "
        "to 4 (could not be better).",
        PRINCIPLES,
    ),
    "pairwise": Criteria(
        "You are a judge of responses. Decide which of the two responses to the query is the more helpful one.",
        PRINCIPLES,
    ),
}


def criteria_text(criteria: Criteria, mode: str) -> str:
    """As YAML, which `parse_criteria` reads."""
    value: dict[str, Any] = {"task": criteria.task, "principles": list(criteria.principles)}
    if mode == "pointwise":
        value["scores"] = list(criteria.scores)
    return yaml.safe_dump(value, allow_unicode=True, sort_keys=False, width=120)


def read_criteria(path: str | os.PathLike, mode: str) -> Criteria:
    """Raises UserError that names the file, what is wrong in it and the fix."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; docs/how-to/judge-data.md shows one") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not readable ({error})") from None
    return parse_criteria(text, mode, str(path))


def parse_criteria(text: str, mode: str, name: str) -> Criteria:
    """Read criteria from YAML.

    Args:
        text: what `criteria_text` writes.
        mode: pointwise or pairwise.
        name: where the text is from, for errors.

    Raises:
        UserError: It names what is wrong and the fix.
    """
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{name}: not readable as YAML ({' '.join(str(error).split())})") from None
    known = ("task", "principles", "scores") if mode == "pointwise" else ("task", "principles")
    if not isinstance(value, dict) or not value.keys() <= set(known):
        keys = ", ".join(map(str, value)) if isinstance(value, dict) else type(value).__name__
        raise UserError(f"{name}: it has {keys}; criteria of a {mode} judge are {', '.join(known)}")
    return Criteria(
        task=_parse_task(value.get("task"), name),
        principles=_parse_principles(value.get("principles"), name),
        scores=_parse_scores(value.get("scores", list(SCORES)), name),
    )


def _parse_task(task: Any, name: str) -> str:
    if not isinstance(task, str) or not task.strip():
        raise UserError(f"{name}: `task` is no text; say what the judge decides")
    return task.strip()


def _parse_principles(principles: Any, name: str) -> tuple[str, ...]:
    is_list = isinstance(principles, list) and bool(principles)
    if not is_list or not all(isinstance(principle, str) and principle.strip() for principle in principles):
        raise UserError(f"{name}: `principles` is no list of texts; write one a line, each after a dash")
    return tuple(principle.strip() for principle in principles)


def _parse_scores(scores: Any, name: str) -> Scores:
    if not (isinstance(scores, list) and len(scores) == 2 and all(type(score) is int for score in scores)):
        raise UserError(f"{name}: `scores` is not the lowest and the highest score; write whole numbers, like [1, 5]")
    low, high = scores
    if not 0 <= low < high < low + MOST_SCORES:
        raise UserError(
            f"{name}: `scores` {scores}: from 0 or more up, and at most {MOST_SCORES} different scores, like [0, 4]"
        )
    return low, high
