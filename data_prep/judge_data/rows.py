"""Make rows of the judges' parquet: comparisons of rated responses, ties, duplicates, the order of A and B."""

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from convrec.data.chat import Message
from convrec.judges.prompt import format_query
from convrec.judges.schema import get_label, get_responses, make_row, swap_row
from convrec.judges.verdict import TIE
from data_prep.judge_data.formats import Comparison, LoadedRecord, Rating
from data_prep.tables import hash64, split_by_hash

JudgeRow: TypeAlias = dict[str, Any]  # a row of the judges' schema with `place`, the record that it is from


class LeftOut(NamedTuple):
    """A record, or one of its comparisons, that was left out.

    Attributes:
        place: of the record.
        kind: ties, identical or contradictory.
        why: in words.
    """

    place: str
    kind: str
    why: str


def make_placed_row(
    record: LoadedRecord,
    messages: Sequence[Message],
    responses: Sequence[str],
    *,
    label: int | str,
    reason: str | None = None,
) -> JudgeRow:
    """Make a row of the judges' schema with the place of its record.

    Args:
        record: the record, with its place and source.
        messages: the prompt.
        responses: one for a rating, A and B for a comparison.
        label: the score, or "A", "B" or a tie.
        reason: why, if the data set says so; None if not.
    """
    return make_row(messages, responses, label, record.source, reason) | {"place": record.place}


def _copy_row(record: LoadedRecord, item: dict[str, Any], mode: str) -> JudgeRow:
    """Copy a record that already is a row."""
    label = get_label(item, mode)
    return make_placed_row(record, item["input"], get_responses(item), label=label, reason=item["reason"])


def make_pairwise_rows(records: Iterable[LoadedRecord]) -> tuple[list[JudgeRow], list[LeftOut]]:
    """Make pairwise rows from comparisons, and from ratings of one query by comparing them.

    Returns:
        The rows, with the better response as A; and comparisons left out because both responses are the same text.
    """
    rows: list[JudgeRow] = []
    left_out: list[LeftOut] = []
    rated: dict[str, list[tuple[Rating, LoadedRecord]]] = {}

    def add(item: Comparison, record: LoadedRecord) -> None:
        if item.better.strip() == item.worse.strip():
            left_out.append(LeftOut(record.place, "ties", "the two responses are the same text"))
        else:
            label = TIE if item.tie else "A"
            responses = [item.better, item.worse]
            rows.append(make_placed_row(record, item.messages, responses, label=label, reason=item.reason))

    for record in records:
        for item in record.items:
            if isinstance(item, Rating):
                rated.setdefault(format_query(item.messages), []).append((item, record))
            elif isinstance(item, Comparison):
                add(item, record)
            else:
                row = _copy_row(record, item, "pairwise")
                rows.append(swap_row(row) if get_label(row, "pairwise") == "B" else row)
    for ratings in rated.values():
        for (first, record), (second, _) in itertools.combinations(ratings, 2):
            better, worse = (first, second) if first.grade >= second.grade else (second, first)
            item = Comparison(
                first.messages,
                better=better.response,
                worse=worse.response,
                tie=first.grade == second.grade,
                reason=better.reason,
            )
            add(item, record)
    return rows, left_out


def make_pointwise_rows(
    records: Iterable[LoadedRecord], chosen: int, rejected: int
) -> tuple[list[JudgeRow], list[LeftOut]]:
    """Make pointwise rows from ratings, and from comparisons by scoring each response once per record.

    Args:
        records: the records.
        chosen: score of the better response of a comparison.
        rejected: score of the worse one.

    Returns:
        The rows; and the ties, which are left out because they give no score.
    """
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
                scored[item.better, chosen] = item
                scored[item.worse, rejected] = item
        for (response, score), item in scored.items():
            rows.append(make_placed_row(record, item.messages, [response], label=score))
    return rows, left_out


def fold_query(text: str) -> str:
    """Normalise case and white space, which do not make another query."""
    return " ".join(text.casefold().split())


def drop_duplicates(rows: Sequence[JudgeRow], mode: str) -> tuple[list[JudgeRow], list[LeftOut]]:
    """Keep one of the rows about the same query and responses if they agree, none if they contradict each other.

    The order of the two responses does not matter.

    Returns:
        The remaining rows; and the rows that were dropped.
    """
    groups: dict[tuple, list[JudgeRow]] = {}
    for row in rows:
        responses = frozenset(response.strip() for response in get_responses(row))
        groups.setdefault((fold_query(format_query(row["input"])), responses), []).append(row)
    first_ids: set[int] = set()
    left_out: list[LeftOut] = []
    for group in groups.values():
        first, *others = group
        if len({_get_verdict(row, mode) for row in group}) == 1:
            first_ids.add(id(first))
            left_out += [LeftOut(row["place"], "identical", f"repeats {first['place']}") for row in others]
        else:
            places = ", ".join(dict.fromkeys(row["place"] for row in group))
            left_out += [LeftOut(row["place"], "contradictory", f"contradictory verdicts in {places}") for row in group]
    return [row for row in rows if id(row) in first_ids], left_out


def _get_verdict(row: JudgeRow, mode: str) -> Any:
    """Return the score, or the text of the better response, which does not depend on the order of A and B."""
    label = get_label(row, mode)
    return get_responses(row)["AB".index(label)].strip() if label in ("A", "B") else label


def balance_order(rows: Sequence[JudgeRow], seed: int) -> list[JudgeRow]:
    """Swap A and B in a random half of the pairwise rows with a better side, and in a random half of the ties.

    If their number is odd, the larger half stays as it is.

    Args:
        rows: pairwise rows, which are not changed.
        seed: random seed of the choice.

    Returns:
        The rows in the same order, swapped ones as copies.
    """
    draw = random.Random(seed)
    swap = set[int]()
    parts: tuple[list[int], list[int]] = ([], [])
    for index, row in enumerate(rows):
        parts[get_label(row, "pairwise") == TIE].append(index)
    for part in parts:
        swap.update(draw.sample(part, len(part) // 2))
    return [swap_row(row) if index in swap else row for index, row in enumerate(rows)]


def add_swapped_rows(rows: Iterable[JudgeRow]) -> list[JudgeRow]:
    """Return each row followed by the same row with A and B swapped."""
    return [order for row in rows for order in (row, swap_row(row))]


SPLITS = ("train", "validation", "test")
BEGINNING = 200  # characters; queries that share them are about the same text, conversation or template
LARGE_SHARE = 0.2  # if more rows share one beginning, the sizes of the splits depend on luck


def get_beginning(row: JudgeRow) -> str:
    """Return the beginning of a row's query, normalised."""
    return fold_query(format_query(row["input"]))[:BEGINNING]


def split_rows(
    rows: Sequence[JudgeRow], mode: str, shares: Mapping[str, float], seed: int
) -> tuple[dict[str, list[JudgeRow]], list[LeftOut]]:
    """Divide rows into splits by a hash of the seed and the normalised beginning of the query.

    More data never moves a query to another split. Ties are only in test, since no answer to them could be right.

    Returns:
        Rows by split; and the ties that were left out.
    """
    parts: dict[str, list[JudgeRow]] = {name: [] for name in SPLITS}
    left_out = []
    for row in rows:
        name = split_by_hash(hash64(f"{seed}\n{get_beginning(row)}"), shares["validation"], shares["test"])
        if get_label(row, mode) == TIE and name != "test":
            left_out.append(LeftOut(row["place"], "ties", f"no verdict would be right in {name}"))
        else:
            parts[name].append(row)
    return parts, left_out


def find_large_group(rows: Sequence[JudgeRow]) -> tuple[str, int] | None:
    """Find a beginning that so many rows share that a split may stay empty.

    Args:
        rows: at least one.

    Returns:
        The beginning and the number of its rows; None if there is none, or there are fewer than 20 rows.
    """
    ((beginning, count),) = Counter(map(get_beginning, rows)).most_common(1)
    return (beginning, count) if len(rows) >= 20 and count > LARGE_SHARE * len(rows) else None
