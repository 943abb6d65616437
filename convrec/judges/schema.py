"""The judges' parquet: its columns, validation with row numbers, and the prompts and labels of its rows.

input    the query: messages {role, content}, the last one the user's
output   {answer: {role, content, label}}: one with {"helpfulness": 0-4} (pointwise), or two with
         {"preference": "A" | "B"}, the same on both (pairwise); "tie" in test data alone
source   where the row comes from
reason   optional: why the label is what it is, for demonstrations

The file's metadata holds the criteria that the labels were given by (convrec.judges.criteria); the defaults hold for a
file without them. A row that was read has them as `criteria`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from convrec.data.chat import Message
from convrec.data.damage import Damage
from convrec.data.records import parquet_batches
from convrec.data.validation import TableReport, check_parquet_columns
from convrec.judges.criteria import DEFAULTS, SCORES, Criteria, Scores, criteria_text, parse_criteria
from convrec.judges.prompt import MODES, judge_prompt
from convrec.judges.verdict import TIE

COLUMNS = ("input", "output", "source")
CRITERIA = b"convrec.judge_criteria"  # in the metadata
SWAPPED = {"A": "B", "B": "A", TIE: TIE}


def judge_schema(mode: str, criteria: Criteria | None = None) -> pa.Schema:
    """criteria: to be written into the metadata."""
    label = ("helpfulness", pa.int32()) if mode == "pointwise" else ("preference", pa.string())
    answer = pa.struct([("role", pa.string()), ("content", pa.string()), ("label", pa.struct([label]))])
    return pa.schema(
        [
            ("input", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
            ("output", pa.list_(pa.struct([("answer", answer)]))),
            ("source", pa.string()),
            ("reason", pa.string()),
        ],
        {CRITERIA: criteria_text(criteria, mode).encode()} if criteria else None,
    )


def make_row(
    messages: Sequence[Message], responses: Sequence[str], label: int | str, source: str, reason: str | None = None
) -> dict[str, Any]:
    """A row of `judge_schema`; the label's type says which mode."""
    named = {"helpfulness": label} if isinstance(label, int) else {"preference": label}
    output = [{"answer": {"role": "assistant", "content": text, "label": named}} for text in responses]
    return {"input": list(messages), "output": output, "source": source, "reason": reason}


def get_responses(row: Mapping[str, Any]) -> list[str]:
    return [output["answer"]["content"] for output in row["output"]]


def get_label(row: Mapping[str, Any], mode: str) -> Any:
    """The score (pointwise) or "A", "B" or "tie" (pairwise) of a valid row."""
    return row["output"][0]["answer"]["label"]["helpfulness" if mode == "pointwise" else "preference"]


def get_score_range(row: Mapping[str, Any]) -> Scores:
    """The lowest and the highest score that a judge may give it."""
    return row["criteria"].scores if row.get("criteria") else SCORES


def build_prompt(row: Mapping[str, Any], mode: str, *, swapped: bool = False) -> list[Message]:
    """The judge's prompt; swapped: with the responses in the other order."""
    responses = get_responses(row)
    return judge_prompt(mode, row["input"], responses[::-1] if swapped else responses, row.get("criteria"))


def swapped_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The same comparison with A and B in the other order."""
    label = SWAPPED[get_label(row, "pairwise")]
    swapped = make_row(row["input"], get_responses(row)[::-1], label, source=row["source"], reason=row.get("reason"))
    return {**row, **swapped}


def row_problem(row: Mapping[str, Any], mode: str, scores: Scores = SCORES, *, ties: bool = False) -> str | None:
    """What is wrong with a row, and the fix; None for a valid one. Any JSON value is taken. ties: they are valid."""
    messages = row.get("input")
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        return '`input` is no list of messages; write [{"role": "user", "content": ...}]'
    if not all(map(_is_message, messages)):
        return "`input` holds something else than {role, content} messages with text; fix or drop these rows"
    if messages[-1]["role"] != "user":
        return "the last message of `input` is not the user's; cut `input` before the response to be judged"
    wanted = 1 if mode == "pointwise" else 2
    outputs = row.get("output")
    if not isinstance(outputs, Sequence) or isinstance(outputs, str) or len(outputs) != wanted:
        return f"`output` does not hold exactly {wanted} answer{'s' * (wanted > 1)}; a {mode} row has {wanted}"
    answers = [output.get("answer") if isinstance(output, Mapping) else None for output in outputs]
    if not all(map(_is_message, answers)):
        return "`output` holds something else than {answer: {role, content, label}} with text; fix or drop these rows"
    labels = [answer.get("label") for answer in answers]  # type: ignore[union-attr]
    mappings = [label if isinstance(label, Mapping) else {} for label in labels]
    return _score_problem(mappings[0], scores) if mode == "pointwise" else _preference_problem(mappings, ties)


def _is_message(message: object) -> bool:
    return (
        isinstance(message, Mapping)
        and isinstance(message.get("role"), str)
        and isinstance(message.get("content"), str)
        and bool(message["content"].strip())
    )


def _score_problem(label: Mapping[str, Any], scores: Scores) -> str | None:
    score = label.get("helpfulness")
    low, high = scores
    if isinstance(score, bool) or not isinstance(score, int) or not low <= score <= high:
        wanted = f"{{helpfulness: a whole number from {low} to {high}}}"
        return f"the label is not {wanted}; map the scale to {low}-{high}, or drop these rows"
    return None


def _preference_problem(labels: Sequence[Mapping[str, Any]], ties: bool) -> str | None:
    preferences = [label.get("preference") for label in labels]
    if TIE in preferences and not ties:
        return "the preference is a tie; convrec data judge keeps ties in test.parquet alone: train on others"
    if preferences[0] not in SWAPPED or preferences[0] != preferences[1]:
        return 'the labels are not {preference: "A" or "B"}, the same on both answers; fix or drop these rows'
    return None


def read_judge_table(path: str | Path, mode: str, *, ties: bool = False) -> list[dict[str, Any]]:
    """The rows of a judge table, valid, each with its `criteria`. Rows are numbered from 0. ties: they are valid.

    Raises UserError naming file, rows and the fix.
    """
    assert mode in MODES
    made_by = "make it with convrec data judge or convrec data judge-sample"
    present, _ = check_parquet_columns(Path(path), COLUMNS, made_by, "convrec data judge writes them")
    written = (present.metadata or {}).get(CRITERIA)
    criteria = parse_criteria(written.decode(), mode, f"{path}, its criteria") if written else DEFAULTS[mode]
    damage = Damage()
    rows = []
    for batch, numbers in parquet_batches(Path(path), damage, [*COLUMNS, *{"reason"}.intersection(present.names)]):
        for number, row in zip(numbers.to_pylist(), batch.to_pylist(), strict=True):
            rows.append({**row, "criteria": criteria})
            if problem := row_problem(row, mode, criteria.scores, ties=ties):
                damage.add(path, number, problem)
    damage.check()
    return rows


def validate_judge_table(path: str | Path, mode: str) -> TableReport:
    """Check a judge table. Warns when one label is most of it: a judge that never looks would be right as often."""
    rows = read_judge_table(path, mode)
    labels = [get_label(row, mode) for row in rows]
    common = max(set(labels), key=labels.count)
    share = labels.count(common) / len(labels)
    warnings = []
    if share > (0.6 if mode == "pairwise" else 0.8) and len(rows) >= 20:
        warnings.append(f"{path}: the label is {common} in {share:.0%} of the rows: always saying so earns as much")
    return TableReport(len(rows), warnings)
