"""Records -> rows of the judges' parquet: comparisons of rated responses, ties, duplicates, the order of A and B."""

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from convrec.data.chat import Message
from convrec.judges.prompt import query_text
from convrec.judges.schema import get_label, get_responses, make_row, swapped_row
from convrec.judges.verdict import TIE
from data_prep.judge_data.formats import Comparison, Loaded, Rating
from data_prep.tables import hash64, split_by_hash

JudgeRow: TypeAlias = dict[str, Any]  # of the judges' schema, and `place`: the record that it is from


class LeftOut(NamedTuple):
    """A record, or one of its comparisons, that is in no split. kind: ties, identical or contradictory."""

    place: str
    kind: str
    why: str


def make_placed_row(
    record: Loaded,
    messages: Sequence[Message],
    responses: Sequence[str],
    *,
    label: int | str,
    reason: str | None = None,
) -> JudgeRow:
    return make_row(messages, responses, label, record.source, reason) | {"place": record.place}


def _copy_row(record: Loaded, item: dict[str, Any], mode: str) -> JudgeRow:
    """The row of a record that is one already."""
    label = get_label(item, mode)
    return make_placed_row(record, item["input"], get_responses(item), label=label, reason=item["reason"])


def pairwise_rows(records: Iterable[Loaded]) -> tuple[list[JudgeRow], list[LeftOut]]:
    """Comparisons as they are, ratings of one query compared with each other; the better response is still A.

    Responses that are equal letter by letter are left out.
    """
    rows: list[JudgeRow] = []
    left_out: list[LeftOut] = []
    rated: dict[str, list[tuple[Rating, Loaded]]] = {}

    def add(item: Comparison, record: Loaded) -> None:
        if item.better.strip() == item.worse.strip():
            left_out.append(LeftOut(record.place, "ties", "the two responses are the same text"))
        else:
            label = TIE if item.tie else "A"
            responses = [item.better, item.worse]
            rows.append(make_placed_row(record, item.messages, responses, label=label, reason=item.reason))

    for record in records:
        for item in record.items:
            if isinstance(item, Rating):
                rated.setdefault(query_text(item.messages), []).append((item, record))
            elif isinstance(item, Comparison):
                add(item, record)
            else:
                row = _copy_row(record, item, "pairwise")
                rows.append(swapped_row(row) if get_label(row, "pairwise") == "B" else row)
    for ratings in rated.values():
        for (one, record), (other, _) in itertools.combinations(ratings, 2):
            better, worse = (one, other) if one.grade >= other.grade else (other, one)
            item = Comparison(
                one.messages,
                better=better.response,
                worse=worse.response,
                tie=one.grade == other.grade,
                reason=better.reason,
            )
            add(item, record)
    return rows, left_out


def pointwise_rows(records: Iterable[Loaded], chosen: int, rejected: int) -> tuple[list[JudgeRow], list[LeftOut]]:
    """Ratings as they are; of comparisons each response once a record, the better with the score `chosen`, the worse
    with `rejected`. A tie says nothing about either and is left out."""
    rows: list[JudgeRow] = []
    left_out: list[LeftOut] = []
    for record in records:
        scored: dict[tuple[str, int], Comparison] = {}
        for item in record.items:
            if isinstance(item, Rating):
                rows.append(
                    make_placed_row(record, item.messages, [item.response], label=item.score, reason=item.reason)
                )
            elif isinstance(item, dict):
                rows.append(_copy_row(record, item, "pointwise"))
            elif item.tie or item.better.strip() == item.worse.strip():
                left_out.append(LeftOut(record.place, "ties", "a tie gives no score"))
            else:
                scored[item.better, chosen] = scored[item.worse, rejected] = item
        for (response, score), item in scored.items():
            rows.append(make_placed_row(record, item.messages, [response], label=score))
    return rows, left_out


def folded(text: str) -> str:
    """Case and white space do not make another query."""
    return " ".join(text.casefold().split())


def without_duplicates(rows: Sequence[JudgeRow], mode: str) -> tuple[list[JudgeRow], list[LeftOut]]:
    """Of rows about the same query and responses, in whatever order: the first where all say the same, else none."""
    groups: dict[tuple, list[JudgeRow]] = {}
    for row in rows:
        responses = frozenset(response.strip() for response in get_responses(row))
        groups.setdefault((folded(query_text(row["input"])), responses), []).append(row)
    kept: set[int] = set()
    left_out: list[LeftOut] = []
    for group in groups.values():
        first, *others = group
        if len({_said(row, mode) for row in group}) == 1:
            kept.add(id(first))
            left_out += [LeftOut(row["place"], "identical", f"says what {first['place']} says") for row in others]
        else:
            places = ", ".join(dict.fromkeys(row["place"] for row in group))
            left_out += [LeftOut(row["place"], "contradictory", f"not the same in {places}") for row in group]
    return [row for row in rows if id(row) in kept], left_out


def _said(row: JudgeRow, mode: str) -> Any:
    """A score, or the better response: B of a row is A of the row with its responses swapped."""
    label = get_label(row, mode)
    return get_responses(row)["AB".index(label)].strip() if label in ("A", "B") else label


def balance_order(rows: Sequence[JudgeRow], seed: int) -> list[JudgeRow]:
    """Swap A and B in half of the pairwise rows that have a better side, and in half of the ties, drawn with the seed
    (of an odd number, the larger half keeps A)."""
    draw = random.Random(seed)
    swap = set[int]()
    parts: tuple[list[int], list[int]] = ([], [])
    for index, row in enumerate(rows):
        parts[get_label(row, "pairwise") == TIE].append(index)
    for part in parts:
        swap.update(draw.sample(part, len(part) // 2))
    return [swapped_row(row) if index in swap else row for index, row in enumerate(rows)]


def both_orders(rows: Iterable[JudgeRow]) -> list[JudgeRow]:
    return [order for row in rows for order in (row, swapped_row(row))]


SPLITS = ("train", "validation", "test")
BEGINNING = 200  # characters; queries that have them in common are about the same text, conversation or template
LARGE_SHARE = 0.2  # of the rows with one beginning, above which shares of splits are a matter of luck


def get_beginning(row: JudgeRow) -> str:
    return folded(query_text(row["input"]))[:BEGINNING]


def split_rows(
    rows: Sequence[JudgeRow], mode: str, shares: Mapping[str, float], seed: int
) -> tuple[dict[str, list[JudgeRow]], list[LeftOut]]:
    """(rows by split, ties left out). A hash of the seed and the query's beginning decides, without case and white
    space, so that more data never moves a query to another split. Ties are in test alone: no answer could be right."""
    parts: dict[str, list[JudgeRow]] = {name: [] for name in SPLITS}
    left_out = []
    for row in rows:
        name = split_by_hash(hash64(f"{seed}\n{get_beginning(row)}"), shares["validation"], shares["test"])
        if get_label(row, mode) == TIE and name != "test":
            left_out.append(LeftOut(row["place"], "ties", f"no verdict of {name} would be right"))
        else:
            parts[name].append(row)
    return parts, left_out


def large_group(rows: Sequence[JudgeRow]) -> tuple[str, int] | None:
    """(beginning, rows) where so many rows begin alike that they may leave a split empty."""
    ((beginning, count),) = Counter(map(get_beginning, rows)).most_common(1)
    return (beginning, count) if len(rows) >= 20 and count > LARGE_SHARE * len(rows) else None
