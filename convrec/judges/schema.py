"""The judges' parquet: its columns, validation with row numbers, and the prompts and labels of its rows.

input    the query: messages {role, content}, ending with the user's
output   {answer: {role, content, label}}: one with {"helpfulness": 0-4} (pointwise), or two with
         {"preference": "A" | "B"}, the same on both (pairwise); "tie" only in test data
source   the data set that the row comes from
reason   optional: the reason for the label, for demonstrations

The file's metadata holds the criteria of the labels (convrec.judges.criteria); a file without them has the defaults.
`read_judge_table` adds them to each row as `criteria`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from convrec.data.chat import Message
from convrec.data.damage import BadRecord, Damage
from convrec.data.records import parquet_batches
from convrec.data.validation import TableReport, check_parquet_columns
from convrec.judges.criteria import DEFAULTS, SCORES, Criteria, Scores, format_criteria, parse_criteria
from convrec.judges.prompt import MODES, build_judge_prompt
from convrec.judges.verdict import TIE

COLUMNS = ("input", "output", "source")
CRITERIA = b"convrec.judge_criteria"  # key of the metadata
SWAPPED = {"A": "B", "B": "A", TIE: TIE}


def judge_schema(mode: str, criteria: Criteria | None = None) -> pa.Schema:
    """Return the schema of a judge table.

    Args:
        mode: pointwise or pairwise.
        criteria: the criteria of the labels, for the metadata; None for a table without criteria.
    """
    label = ("helpfulness", pa.int32()) if mode == "pointwise" else ("preference", pa.string())
    answer = pa.struct([("role", pa.string()), ("content", pa.string()), ("label", pa.struct([label]))])
    return pa.schema(
        [
            ("input", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
            ("output", pa.list_(pa.struct([("answer", answer)]))),
            ("source", pa.string()),
            ("reason", pa.string()),
        ],
        {CRITERIA: format_criteria(criteria, mode).encode()} if criteria else None,
    )


def make_row(
    messages: Sequence[Message], responses: Sequence[str], label: int | str, source: str, reason: str | None = None
) -> dict[str, Any]:
    """Make a row of `judge_schema`.

    Args:
        messages: the query, which ends with the user's message.
        responses: one response (pointwise), or responses A and B (pairwise).
        label: a whole number makes the row pointwise, a text ("A", "B" or "tie") pairwise.
        source: the data set that the row comes from.
        reason: the reason for the label; None if there is none.
    """
    answer_label = {"helpfulness": label} if isinstance(label, int) else {"preference": label}
    output = [{"answer": {"role": "assistant", "content": text, "label": answer_label}} for text in responses]
    return {"input": list(messages), "output": output, "source": source, "reason": reason}


def get_responses(row: Mapping[str, Any]) -> list[str]:
    """Return the texts of a row's responses."""
    return [output["answer"]["content"] for output in row["output"]]


def get_label(row: Mapping[str, Any], mode: str) -> Any:
    """Return the label of a valid row: a score (pointwise), or "A", "B" or "tie" (pairwise)."""
    return row["output"][0]["answer"]["label"]["helpfulness" if mode == "pointwise" else "preference"]


def get_score_range(row: Mapping[str, Any]) -> Scores:
    """Return the lowest and the highest score for a row."""
    return row["criteria"].scores if row.get("criteria") else SCORES


def build_prompt(row: Mapping[str, Any], mode: str, *, swapped: bool = False) -> list[Message]:
    """Build the judge's prompt for a row.

    Args:
        row: a valid row of `judge_schema`; without `criteria`, the defaults apply.
        mode: pointwise or pairwise.
        swapped: whether to show B before A.
    """
    responses = get_responses(row)
    return build_judge_prompt(mode, row["input"], responses[::-1] if swapped else responses, row.get("criteria"))


def swap_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same comparison with A and B in the other order."""
    label = SWAPPED[get_label(row, "pairwise")]
    swapped = make_row(row["input"], get_responses(row)[::-1], label, source=row["source"], reason=row.get("reason"))
    return {**row, **swapped}


def describe_row_problem(
    row: Mapping[str, Any], mode: str, scores: Scores = SCORES, *, ties: bool = False
) -> str | None:
    """Describe what is wrong with a row, and the fix.

    Args:
        row: any JSON object.
        mode: pointwise or pairwise.
        scores: the lowest and the highest score.
        ties: whether ties are valid.

    Returns:
        A sentence; None for a valid row.
    """
    messages = row.get("input")
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        return '`input` is not a list of messages; write [{"role": "user", "content": ...}]'
    if not all(map(_is_message, messages)):
        return "`input` contains something other than {role, content} messages with text; fix or drop these rows"
    if messages[-1]["role"] != "user":
        return "the last message of `input` is not the user's; cut `input` before the response to be judged"
    num_answers = 1 if mode == "pointwise" else 2
    outputs = row.get("output")
    if not isinstance(outputs, Sequence) or isinstance(outputs, str) or len(outputs) != num_answers:
        plural = "s" if num_answers > 1 else ""
        return f"`output` does not hold exactly {num_answers} answer{plural}; a {mode} row has {num_answers}"
    answers = [output.get("answer") if isinstance(output, Mapping) else None for output in outputs]
    if not all(map(_is_message, answers)):
        return "`output` contains something other than {answer: {role, content, label}} texts; fix or drop these rows"
    labels = [answer.get("label") for answer in answers]  # type: ignore[union-attr]
    mappings = [label if isinstance(label, Mapping) else {} for label in labels]
    if mode == "pointwise":
        return _describe_score_problem(mappings[0], scores)
    return _describe_preference_problem(mappings, ties)


def _is_message(message: object) -> bool:
    return (
        isinstance(message, Mapping)
        and isinstance(message.get("role"), str)
        and isinstance(message.get("content"), str)
        and bool(message["content"].strip())
    )


def _describe_score_problem(label: Mapping[str, Any], scores: Scores) -> str | None:
    score = label.get("helpfulness")
    low, high = scores
    if isinstance(score, bool) or not isinstance(score, int) or not low <= score <= high:
        expected = f"{{helpfulness: a whole number from {low} to {high}}}"
        return f"the label is not {expected}; map the scale to {low}-{high}, or drop these rows"
    return None


def _describe_preference_problem(labels: Sequence[Mapping[str, Any]], ties: bool) -> str | None:
    preferences = [label.get("preference") for label in labels]
    if TIE in preferences and not ties:
        return "the preference is a tie; `convrec data judge` keeps ties only in test.parquet: train on another file"
    if preferences[0] not in SWAPPED or preferences[0] != preferences[1]:
        return 'the labels are not {preference: "A" or "B"}, the same on both answers; fix or drop these rows'
    return None


def read_judge_table(path: str | Path, mode: str, *, ties: bool = False) -> list[dict[str, Any]]:
    """Read and validate a judge table; each row gets its `criteria`.

    Args:
        path: the parquet file.
        mode: pointwise or pairwise.
        ties: whether ties are valid.

    Returns:
        The rows of the file, in order.

    Raises:
        UserError: the file is not a judge table, or rows are invalid; the message has their numbers from 0.
    """
    assert mode in MODES
    hint = "make it with convrec data judge or convrec data judge-sample"
    schema, _ = check_parquet_columns(Path(path), COLUMNS, hint, "convrec data judge writes them")
    metadata = (schema.metadata or {}).get(CRITERIA)
    criteria = parse_criteria(metadata.decode(), mode, f"{path}, its criteria") if metadata else DEFAULTS[mode]
    damage = Damage()
    rows = []
    for batch, numbers in parquet_batches(Path(path), damage, [*COLUMNS, *{"reason"}.intersection(schema.names)]):
        for number, row in zip(numbers.to_pylist(), batch.to_pylist(), strict=True):
            rows.append({**row, "criteria": criteria})
            if problem := describe_row_problem(row, mode, criteria.scores, ties=ties):
                damage.add(path, number, BadRecord("judges.invalid-row", problem))
    damage.check()
    return rows


def validate_judge_table(path: str | Path, mode: str) -> TableReport:
    """Check a judge table, with a warning if one label dominates: a judge that always gives it would be as right.

    Args:
        path: the parquet file.
        mode: pointwise or pairwise.

    Raises:
        UserError: see `read_judge_table`. Ties are invalid.
    """
    rows = read_judge_table(path, mode)
    labels = [get_label(row, mode) for row in rows]
    most_common = max(set(labels), key=labels.count)
    share = labels.count(most_common) / len(labels)
    warnings = []
    if share > (0.6 if mode == "pairwise" else 0.8) and len(rows) >= 20:
        warnings.append(
            f"{path}: the label is {most_common} in {share:.0%} of the rows, so a judge that always gives it is right "
            "as often"
        )
    return TableReport(len(rows), warnings)
