"""Which split a judge's row belongs to: rows of one query stay together, and so do queries that differ in little."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence

from convrec.judges.prompt import query_text
from convrec.judges.verdict import TIE
from data_prep.judge_data.rows import LeftOut, Placed, folded

SPLITS = ("train", "validation", "test")
BEGINNING = 200  # characters; queries that have them in common are about the same text, conversation or template
LARGE_SHARE = 0.2  # of the rows with one beginning, above which shares of splits are a matter of luck


def beginning_of(placed: Placed) -> str:
    return folded(query_text(placed.row["input"]))[:BEGINNING]


def split_rows(
    rows: Sequence[Placed], shares: Mapping[str, float], seed: int
) -> tuple[dict[str, list[dict]], list[LeftOut]]:
    """(rows by split, ties left out). A hash of the seed and the query's beginning decides, without case and white
    space, so that more data never moves a query to another split. Ties are in test alone: no answer could be right."""
    parts: dict[str, list[dict]] = {name: [] for name in SPLITS}
    left_out = []
    for placed in rows:
        digest = hashlib.sha256(f"{seed}\n{beginning_of(placed)}".encode()).digest()
        place = int.from_bytes(digest[:8], "big") / 2**64
        test, validation = shares["test"], shares["validation"]
        name = "test" if place < test else "validation" if place < test + validation else "train"
        label = placed.row["output"][0]["answer"]["label"]
        if label.get("preference") == TIE and name != "test":
            left_out.append(LeftOut(placed.place, "ties", f"no verdict of {name} would be right"))
        else:
            parts[name].append(placed.row)
    return parts, left_out


def large_group(rows: Sequence[Placed]) -> tuple[str, int] | None:
    """(beginning, rows) where so many rows begin alike that they may leave a split empty."""
    ((beginning, count),) = Counter(map(beginning_of, rows)).most_common(1)
    return (beginning, count) if len(rows) >= 20 and count > LARGE_SHARE * len(rows) else None
