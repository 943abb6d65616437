"""The supported formats of preferences and ratings, with one reader function each.

To add a format, write a reader (record -> items; BadRecord if it cannot be read) and add it to FORMATS. A record has
the first format of the table all of whose columns it has.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from convrec.data.chat import Message
from convrec.data.damage import BadRecord, Damage, format_place
from convrec.data.records import read_records
from convrec.judges.criteria import SCORES, Scores
from convrec.judges.schema import describe_row_problem

FIX = "fix or drop these records"


class Comparison(NamedTuple):
    """Two responses to a prompt.

    Attributes:
        messages: the prompt.
        better: the better response, or the first one of a tie.
        worse: the other response.
        tie: whether neither is better.
        reason: why, if the data set says so; None if not.
    """

    messages: list[Message]
    better: str
    worse: str
    tie: bool = False
    reason: str | None = None


class Rating(NamedTuple):
    """A rated response.

    Attributes:
        messages: the prompt.
        response: its text.
        score: on the judge's scale.
        grade: on the data set's own scale, for comparisons with other responses.
        reason: why, if the data set says so.
    """

    messages: list[Message]
    response: str
    score: int
    grade: float
    reason: str | None = None


Item = Comparison | Rating | dict[str, Any]  # a dict is a row of the judges' schema


def check_text(value: Any, name: str) -> str:
    """Return a text unchanged.

    Args:
        value: a cell.
        name: of its column, for the message.

    Raises:
        BadRecord: it is missing, not a text, or blank.
    """
    if not isinstance(value, str) or not value.strip():
        raise BadRecord("preferences.no-text", f"`{name}` has no text; {FIX}")
    return value


def parse_prompt(value: Any, name: str = "prompt") -> list[Message]:
    """Parse a prompt: text, or messages that end with the user.

    Args:
        value: a cell.
        name: of its column, for the message.

    Raises:
        BadRecord: it is neither, a message has no text, or the last one is not the user's.
    """
    if isinstance(value, str):
        return [{"role": "user", "content": check_text(value, name)}]
    messages = parse_messages(value, name)
    if messages[-1]["role"] != "user":
        raise BadRecord(
            "preferences.last-of-prompt",
            "the prompt does not end with the user's message; cut it off before the response",
        )
    return messages


def parse_messages(value: Any, name: str) -> list[Message]:
    """Parse messages, whoever speaks last.

    Args:
        value: a cell.
        name: of its column, for the message.

    Raises:
        BadRecord: it is not a list of messages, is empty, or a message has no text.
    """
    problem = BadRecord("preferences.not-messages", f"`{name}` is neither text nor messages {{role, content}}; {FIX}")
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise problem
    for message in value:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise problem
    return [{"role": message["role"], "content": check_text(message.get("content"), name)} for message in value]


def parse_number(record: Mapping[str, Any], name: str, low: float, high: float, *, whole: bool = False) -> float:
    """Parse a number, also if it is stored as text.

    Args:
        record: the record.
        name: of its column.
        low: the lowest valid number.
        high: the highest valid number.
        whole: whether it must be a whole number.

    Raises:
        BadRecord: it is missing, not a number, or outside of the scale.
    """
    try:
        value = float(record[name]) if not isinstance(record[name], bool) else None
    except (KeyError, TypeError, ValueError):
        value = None
    if value is None or not low <= value <= high or (whole and value != int(value)):
        kind = "whole number" if whole else "number"
        raise BadRecord(
            "preferences.not-on-the-scale",
            f"`{name}` is not a {kind} from {low:g} to {high:g}; map the scale to {low:g}-{high:g}",
        )
    return value


def compare(messages: list[Message], first: str, second: str, *, better: str | None, reason: str | None) -> Comparison:
    """Make a Comparison.

    Args:
        messages: the prompt.
        first: a response.
        second: the other response.
        better: "A" for the first response, "B" for the second, None for a tie.
        reason: why, if the data set says so; None if not.
    """
    if better == "B":
        return Comparison(messages, better=second, worse=first, reason=reason)
    return Comparison(messages, better=first, worse=second, tie=better is None, reason=reason)


Record = Mapping[str, Any]


class Format(NamedTuple):
    """A format of records.

    Attributes:
        columns: columns that every record has.
        read: yields the items of a record.
        fits: further condition on a record with these columns.
    """

    columns: tuple[str, ...]
    read: Callable[[Record, Scores], Iterator[Item]]
    fits: Callable[[Record], bool] = lambda record: True


def read_rows(record: Record, scores: Scores) -> Iterator[Item]:
    """Read a record that is a row of the judges' schema."""
    yield {"source": None, "reason": None, **record}


def read_chosen_rejected(record: Record, scores: Scores) -> Iterator[Item]:
    """Read `chosen` and `rejected`: texts, or conversations that end with the response and may contain the prompt.

    If both have a score, equal scores are a tie.
    """
    score = record.get("score_chosen")
    better = None if score is not None and score == record.get("score_rejected") else "A"
    if isinstance(record["chosen"], str) or isinstance(record["rejected"], str):
        messages = parse_prompt(record.get("prompt"))
        chosen, rejected = (check_text(record[name], name) for name in ("chosen", "rejected"))
    else:
        messages, chosen, rejected = _read_two_conversations(record)
    yield compare(messages, chosen, rejected, better=better, reason=_get_reason(record))


def _read_two_conversations(record: Record) -> tuple[list[Message], str, str]:
    chosen, rejected = (parse_messages(record[name], name) for name in ("chosen", "rejected"))
    if chosen[-1]["role"] != "assistant" or rejected[-1]["role"] != "assistant":
        raise BadRecord(
            "preferences.last-of-response",
            "`chosen` or `rejected` does not end with the assistant's message; cut off what follows it",
        )
    if chosen[:-1] != rejected[:-1]:
        raise BadRecord(
            "preferences.two-prompts",
            "`chosen` and `rejected` differ before the response; compare two responses to one prompt",
        )
    messages = parse_prompt(chosen[:-1] or record.get("prompt"))
    return messages, chosen[-1]["content"], rejected[-1]["content"]


def read_reward_bench_2(record: Record, scores: Scores) -> Iterator[Item]:
    """Read RewardBench 2: compare chosen with rejected responses until each has been compared, usually 1 x 3.

    In the subset Ties all chosen responses are equally good, so each is also a tie with the next.
    """
    messages = parse_prompt(record.get("prompt"))
    chosen, rejected = ([check_text(response, name) for response in record[name]] for name in ("chosen", "rejected"))
    if not chosen or not rejected:
        raise BadRecord("preferences.no-responses", f"`chosen` or `rejected` is an empty list; {FIX}")
    count = max(len(chosen), len(rejected))
    for better, worse in itertools.islice(zip(itertools.cycle(chosen), itertools.cycle(rejected)), count):
        yield Comparison(messages, better, worse)
    if str(record.get("subset")).lower() == "ties":
        for first, second in itertools.pairwise(chosen):
            yield Comparison(messages, first, second, tie=True)


def _make_two_response_format(
    columns: tuple[str, str, str, str], better: Callable[[Record, str], str | None]
) -> Format:
    """Make the format of records with prompt, two responses and a verdict in these columns.

    better: returns "A", "B" or None (a tie) for a record and its column of verdicts.
    """
    prompt_column, first_column, second_column, verdict_column = columns

    def read(record: Record, scores: Scores) -> Iterator[Item]:
        first = check_text(record[first_column], first_column)
        second = check_text(record[second_column], second_column)
        messages = _split_turns(parse_prompt(record[prompt_column], prompt_column))
        yield compare(messages, first, second, better=better(record, verdict_column), reason=_get_reason(record))

    return Format(columns, read)


def _make_label_reader(meanings: Mapping[Any, str | None]) -> Callable[[Record, str], str | None]:
    def read_label(record: Record, column: str) -> str | None:
        value = record[column]
        key = value.strip() if isinstance(value, str) else value
        if isinstance(key, bool) or not isinstance(key, str | int | float) or key not in meanings:
            labels = ", ".join(map(repr, meanings))
            raise BadRecord("preferences.unknown-label", f"`{column}` is none of {labels}; write one of them")
        return meanings[key]

    return read_label


def _read_strength(record: Record, column: str) -> str | None:
    """Read HelpSteer's preference: -3 (the first is much better) to 3 (the second), 0 for a tie."""
    strength = parse_number(record, column, -3, 3)
    return None if strength == 0 else "A" if strength < 0 else "B"


_TURN = re.compile(r"\n?<extra_id_1>(User|Assistant)\n")  # how HelpSteer writes a conversation as text


def _split_turns(messages: list[Message]) -> list[Message]:
    """Split a prompt that holds a conversation as HelpSteer writes it."""
    if len(messages) > 1:
        return messages
    parts = ["User", *_TURN.split(messages[0]["content"])]
    turns = zip(parts[::2], parts[1::2], strict=True)
    return parse_prompt([{"role": role.lower(), "content": content} for role, content in turns if content.strip()])


def read_ratings(record: Record, scores: Scores) -> Iterator[Item]:
    """Read a response rated by `helpfulness` on the judge's scale."""
    low, high = scores
    score = int(parse_number(record, "helpfulness", low, high, whole=True))
    messages = _split_turns(parse_prompt(record.get("prompt")))
    response = check_text(record["response"], "response")
    yield Rating(messages, response, score=score, grade=score, reason=_get_reason(record))


def read_ultra_feedback(record: Record, scores: Scores) -> Iterator[Item]:
    """Read completions with an overall score from 1 to 10, mapped to the judge's scale."""
    messages = parse_prompt(record["instruction"], "instruction")
    low, high = scores
    completions = record["completions"]
    if not isinstance(completions, list) or not all(isinstance(completion, Mapping) for completion in completions):
        raise BadRecord(
            "preferences.not-completions", f"`completions` is not a list of {{response, overall_score}}; {FIX}"
        )
    for completion in completions:
        grade = parse_number(completion, "overall_score", 1, 10)
        score = low + round((grade - 1) / 9 * (high - low))
        yield Rating(messages, check_text(completion.get("response"), "response"), score=score, grade=grade)


def _get_reason(record: Record) -> str | None:
    return record["reason"] if isinstance(record.get("reason"), str) else None


def _has_lists(record: Record) -> bool:
    values = (record["chosen"], record["rejected"])
    return all(isinstance(value, list) and (not value or isinstance(value[0], str)) for value in values)


_A_OR_B = _make_label_reader({"A": "A", "B": "B", "tie": None})
_A_OVER_B = _make_label_reader({"A>B": "A", "B>A": "B", "A=B": None})
_1_OR_2 = _make_label_reader({1: "A", 2: "B", "1": "A", "2": "B"})
FORMATS: Mapping[str, Format] = {  # docs/how-to/judge-data.md lists the data sets in each format
    "rows": Format(("input", "output"), read_rows),
    "reward_bench_2": Format(("prompt", "chosen", "rejected"), read_reward_bench_2, _has_lists),
    "chosen_rejected": Format(("chosen", "rejected"), read_chosen_rejected),
    "response_a_b": _make_two_response_format(("prompt", "response_a", "response_b", "preferred"), _A_OR_B),
    "judge_bench": _make_two_response_format(("question", "response_A", "response_B", "label"), _A_OVER_B),
    "llmbar": _make_two_response_format(("input", "output_1", "output_2", "label"), _1_OR_2),
    "helpsteer2_preference": _make_two_response_format(
        ("prompt", "response_1", "response_2", "preference_strength"), _read_strength
    ),
    "helpsteer3": _make_two_response_format(
        ("context", "response1", "response2", "overall_preference"), _read_strength
    ),
    "ratings": Format(("prompt", "response", "helpfulness"), read_ratings),
    "ultra_feedback": Format(("instruction", "completions"), read_ultra_feedback),
}


def parse_record(record: Record, name: str | None = None, scores: Scores = SCORES) -> list[Item]:
    """Read the items of a record.

    Args:
        record: the record.
        name: its format, a key of FORMATS; None: found by its columns.
        scores: lowest and highest score of the judge's scale.

    Raises:
        BadRecord: The record cannot be read, or its format is unknown.
    """
    if name is None:
        fitting = (form for form in FORMATS.values() if record.keys() >= set(form.columns) and form.fits(record))
        form = next(fitting, None)
        if form is None:
            raise BadRecord(
                "preferences.unknown-format",
                f"unknown format with the columns {', '.join(map(str, record)) or '(none)'}; give prompt with chosen "
                "and rejected, or another format of docs/how-to/judge-data.md",
            )
    else:
        form = FORMATS[name]
        missing = [column for column in form.columns if column not in record]
        if missing:
            names = "`, `".join(missing)
            raise BadRecord(
                "preferences.missing-column", f"no `{names}`, which --format {name} needs; give the right format"
            )
    return list(form.read(record, scores))


def find_source(record: Record, default: str) -> str:
    """Return a record's source: its `source`, the subset of a benchmark, or the domain of HelpSteer3.

    Args:
        record: the record.
        default: the source of a record that has none of them.
    """
    for name in ("source", "subset", "domain"):
        value = record.get(name)
        if isinstance(value, str) and value.strip():
            return value
    return default


class LoadedRecord(NamedTuple):
    """A record that was read.

    Attributes:
        items: the comparisons, ratings or rows in it.
        source: the data set or subset that it is from.
        place: its file and row, like `ratings.jsonl: line 3`.
    """

    items: list[Item]
    source: str
    place: str


def load_records(paths: Sequence[str | Path], mode: str, scores: Scores, form: str | None = None) -> list[LoadedRecord]:
    """Read the records of files.

    Args:
        paths: the files.
        mode: "pairwise" or "pointwise".
        scores: lowest and highest score of the judge's scale.
        form: a key of FORMATS; None: found by the columns of each record.

    Raises:
        UserError: With all damaged records.
    """
    loaded = []
    damage = Damage()
    for path in map(Path, paths):
        for row, record in read_records(path, damage):
            with damage.of(path, row):
                items = parse_record(record, form, scores)
                for item in items:
                    problem = describe_row_problem(item, mode, scores, ties=True) if isinstance(item, dict) else None
                    if problem:
                        raise BadRecord("preferences.invalid-row", problem)
                source = find_source(record, path.name.partition(".")[0])
                loaded.append(LoadedRecord(items, source, format_place(path.name, row)))
    damage.check()
    return loaded
