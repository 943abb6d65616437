"""Turn judge rows into SFT demonstrations: the judge's prompt and an answer with the right verdict.

The thinking in an answer is the row's `reason`, or empty. With --answers, the right answers of another model are used
instead (rejection sampling). docs/how-to/judge-data.md
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.base.errors import UserError
from convrec.base.files import write_table
from convrec.base.options import command
from convrec.data.schema import DEMONSTRATION_SCHEMA
from convrec.judges.prompt import format_query, format_verdict
from convrec.judges.schema import build_prompt, get_label, get_score_range, read_judge_table
from convrec.judges.verdict import parse_preference_verdict, parse_score_verdict
from data_prep.options.judge import JudgeDemonstrationsOptions
from data_prep.tables import check_out, message


def demonstrations(
    rows: Sequence[Mapping[str, Any]], mode: str, answers: Mapping[int, str] | None = None
) -> list[dict[str, Any]]:
    """Make demonstrations.

    Args:
        rows: judge rows.
        mode: "pairwise" or "pointwise".
        answers: row number -> answer of another model, used if its verdict is right; None: answers are made.

    Returns:
        Rows of DEMONSTRATION_SCHEMA.
    """
    demonstrated = []
    for number, row in enumerate(rows):
        label = get_label(row, mode)
        if answers is None:
            text = format_verdict(mode, label, row.get("reason") or "")
        else:
            text = answers.get(number, "")
            if label != (
                parse_score_verdict(text, get_score_range(row))
                if mode == "pointwise"
                else parse_preference_verdict(text)
            ):
                continue
        entry = {"prompt": build_prompt(row, mode), "completion": message("assistant", text)}
        demonstrated.append(entry | {"sample_id": f"{row['source'] or 'judge'}-{number}"})
    return demonstrated


def read_answers(path: str | Path, rows: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Read the answers of a judge's evaluation.

    Args:
        path: its rows.parquet.
        rows: the judge rows of --data.

    Returns:
        Row number -> answer.

    Raises:
        UserError: The file is not such a table, or belongs to other rows.
    """
    try:
        table = pq.read_table(path, columns=["row", "query", "text"])
    except (FileNotFoundError, pa.ArrowInvalid, OSError, KeyError) as error:
        raise UserError(
            "preferences.unreadable-answers",
            f"--answers {path}: not the rows.parquet of a judge's evaluation ({error})",
        ) from error
    answers = {}
    columns = (table[name].to_pylist() for name in ("row", "query", "text"))
    for row, query, text in zip(*columns, strict=True):
        if not isinstance(row, int) or not 0 <= row < len(rows) or format_query(rows[row]["input"]) != query:
            raise UserError(
                "preferences.answers-to-other-rows",
                f"--answers {path}: row {row!r} has another query than in --data; evaluate on the same file",
            )
        answers[row] = text or ""
    return answers


def build(mode: str, data: str | Path, out: str | Path, answers: str | Path | None = None) -> tuple[int, int]:
    """Write the demonstrations.

    Args:
        mode: "pairwise" or "pointwise".
        data: judge rows (parquet).
        out: parquet to write.
        answers: rows.parquet of another judge's evaluation on `data`; None: answers are made.

    Returns:
        The numbers of demonstrations and of rows in `data`.

    Raises:
        UserError: The input cannot be used, or `out` exists.
    """
    out = Path(out)
    check_out(out)
    rows = read_judge_table(data, mode)
    demonstrated = demonstrations(rows, mode, read_answers(answers, rows) if answers else None)
    if not demonstrated:
        raise UserError(
            "preferences.no-right-verdict",
            f"--answers {answers}: no verdict is right, so there is nothing to demonstrate",
        )
    write_table(out, pa.Table.from_pylist(demonstrated, DEMONSTRATION_SCHEMA))
    return len(demonstrated), len(rows)


@command(JudgeDemonstrationsOptions)
def main(options: JudgeDemonstrationsOptions) -> int:
    """Write demonstrations of a judge; return the exit status."""
    written, rows = build(options.mode, options.data, options.out, options.answers)
    print(f"{written} demonstrations from {rows} rows")
    return 0
