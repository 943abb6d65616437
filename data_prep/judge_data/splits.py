"""Which split a judge's row belongs to: rows of one query stay together, and so do queries that differ in little."""

from collections import Counter
from collections.abc import Mapping, Sequence

from convrec.judges.prompt import query_text
from convrec.judges.schema import label_of
from convrec.judges.verdict import TIE
from data_prep.judge_data.rows import JudgeRow, LeftOut, folded
from data_prep.tables import hash64, split_by_hash

SPLITS = ("train", "validation", "test")
BEGINNING = 200  # characters; queries that have them in common are about the same text, conversation or template
LARGE_SHARE = 0.2  # of the rows with one beginning, above which shares of splits are a matter of luck


def beginning_of(row: JudgeRow) -> str:
    return folded(query_text(row["input"]))[:BEGINNING]


def split_rows(
    rows: Sequence[JudgeRow], mode: str, shares: Mapping[str, float], seed: int
) -> tuple[dict[str, list[JudgeRow]], list[LeftOut]]:
    """(rows by split, ties left out). A hash of the seed and the query's beginning decides, without case and white
    space, so that more data never moves a query to another split. Ties are in test alone: no answer could be right."""
    parts: dict[str, list[JudgeRow]] = {name: [] for name in SPLITS}
    left_out = []
    for row in rows:
        name = split_by_hash(hash64(f"{seed}\n{beginning_of(row)}"), shares["validation"], shares["test"])
        if label_of(row, mode) == TIE and name != "test":
            left_out.append(LeftOut(row["place"], "ties", f"no verdict of {name} would be right"))
        else:
            parts[name].append(row)
    return parts, left_out


def large_group(rows: Sequence[JudgeRow]) -> tuple[str, int] | None:
    """(beginning, rows) where so many rows begin alike that they may leave a split empty."""
    ((beginning, count),) = Counter(map(beginning_of, rows)).most_common(1)
    return (beginning, count) if len(rows) >= 20 and count > LARGE_SHARE * len(rows) else None
