"""A judge's criteria: the task, numbered principles and, for pointwise judges, the lowest and the highest score.

A YAML file replaces the defaults (`convrec data judge --criteria FILE`):

    task: Rate how well the response keeps to the contract, from 1 (not at all) to 5 (in every point).
    principles:
      - What the contract does not mention does not count.
    scores: [1, 5]        # pointwise only; default [0, 4]

Data and models keep their criteria: the judges' parquet in its metadata, a trained judge in `criteria.yaml` next to its
weights.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from convrec.base.errors import UserError

Scores = tuple[int, int]  # the lowest and the highest
SCORES: Scores = (0, 4)
MAX_NUM_SCORES = 101  # 0 to 100
FILE = "criteria.yaml"  # next to a data set or a model


@dataclass(frozen=True)
class Criteria:
    """The criteria of a judge.

    Attributes:
        task: what the judge decides.
        principles: what it decides by.
        scores: the range of a pointwise judge's scores; pairwise judges answer A or B.
    """

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


def format_criteria(criteria: Criteria, mode: str) -> str:
    """Return criteria as YAML for `parse_criteria`.

    Args:
        criteria: the criteria of a judge.
        mode: pointwise or pairwise; only pointwise criteria have scores.
    """
    value: dict[str, Any] = {"task": criteria.task, "principles": list(criteria.principles)}
    if mode == "pointwise":
        value["scores"] = list(criteria.scores)
    return yaml.safe_dump(value, allow_unicode=True, sort_keys=False, width=120)


def read_criteria(path: str | os.PathLike, mode: str) -> Criteria:
    """Read criteria from a YAML file.

    Args:
        path: the file.
        mode: pointwise or pairwise.

    Raises:
        UserError: the file is missing, unreadable or invalid.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(
            "criteria.missing-file", f"{path}: no such file. docs/how-to/judge-data.md has an example."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError("criteria.unreadable-file", f"{path}: not readable ({error}).") from None
    return parse_criteria(text, mode, str(path))


def parse_criteria(text: str, mode: str, name: str) -> Criteria:
    """Read criteria from YAML.

    Args:
        text: the YAML.
        mode: pointwise or pairwise.
        name: source of the text, for error messages.

    Raises:
        UserError: the criteria are invalid.
    """
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(
            "criteria.invalid-yaml", f"{name}: not readable as YAML ({' '.join(str(error).split())})."
        ) from None
    expected_keys = ("task", "principles", "scores") if mode == "pointwise" else ("task", "principles")
    if not isinstance(value, dict) or not value.keys() <= set(expected_keys):
        keys = ", ".join(map(str, value)) if isinstance(value, dict) else f"a {type(value).__name__}"
        raise UserError(
            "criteria.unknown-key",
            f"{name}: it has {keys}, but criteria of a {mode} judge have only {', '.join(expected_keys)}.",
        )
    return Criteria(
        task=_parse_task(value.get("task"), name),
        principles=_parse_principles(value.get("principles"), name),
        scores=_parse_scores(value.get("scores", list(SCORES)), name),
    )


def _parse_task(task: Any, name: str) -> str:
    if not isinstance(task, str) or not task.strip():
        raise UserError("criteria.task", f"{name}: `task` is not a text. Describe what the judge decides.")
    return task.strip()


def _parse_principles(principles: Any, name: str) -> tuple[str, ...]:
    is_list = isinstance(principles, list) and bool(principles)
    if not is_list or not all(isinstance(principle, str) and principle.strip() for principle in principles):
        raise UserError(
            "criteria.principles", f"{name}: `principles` is not a list of texts. Write one per line, after a dash."
        )
    return tuple(principle.strip() for principle in principles)


def _parse_scores(scores: Any, name: str) -> Scores:
    if not (isinstance(scores, list) and len(scores) == 2 and all(type(score) is int for score in scores)):
        raise UserError(
            "criteria.scores",
            f"{name}: `scores` {scores!r} is not the lowest and the highest score. Write two whole numbers, like "
            "[1, 5].",
        )
    low, high = scores
    if not 0 <= low < high < low + MAX_NUM_SCORES:
        raise UserError(
            "criteria.scores",
            f"{name}: `scores` {scores}: scores must start at 0 or above, ascend, and be at most {MAX_NUM_SCORES} "
            "different numbers, like [0, 4].",
        )
    return low, high
