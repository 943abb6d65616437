"""The forms of records that are known, one reader a function, and the table by which files are read.

To add one: a reader (record -> what it says, BadRecord where it cannot be read) and a line of FORMATS. A record has the
first form of the table whose columns it has, all of them.
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
from convrec.judges.schema import row_problem

DROP = "fix or drop these records"


class Comparison(NamedTuple):
    """Two responses, the better one first; `tie` when neither is."""

    messages: list[Message]
    better: str
    worse: str
    tie: bool = False
    reason: str | None = None


class Rating(NamedTuple):
    """A response with what somebody gave it: `score` on the judge's scale; by `grade` it is compared with others."""

    messages: list[Message]
    response: str
    score: int
    grade: float
    reason: str | None = None


Item = Comparison | Rating | dict[str, Any]  # a dict is a row of the schema


def text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise BadRecord(f"`{name}` has no text; {DROP}")
    return value


def prompt_messages(value: Any, name: str = "prompt") -> list[Message]:
    """A prompt: a text, or messages of which the last is the user's. Raises BadRecord."""
    if isinstance(value, str):
        return [{"role": "user", "content": text(value, name)}]
    messages = talk(value, name)
    if messages[-1]["role"] != "user":
        raise BadRecord("the prompt does not end in the user's message; cut it before the response")
    return messages


def talk(value: Any, name: str) -> list[Message]:
    """Messages, whoever has the last word. Raises BadRecord."""
    problem = BadRecord(f"`{name}` is neither a text nor messages {{role, content}}; {DROP}")
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise problem
    for message in value:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise problem
    return [{"role": message["role"], "content": text(message.get("content"), name)} for message in value]


def parse_number(record: Mapping[str, Any], name: str, low: float, high: float, *, whole: bool = False) -> float:
    """A number from low to high; parquet and JSON of other programs have it as text, too. Raises BadRecord."""
    try:
        value = float(record[name]) if not isinstance(record[name], bool) else None
    except (KeyError, TypeError, ValueError):
        value = None
    if value is None or not low <= value <= high or (whole and value != int(value)):
        kind = "whole number" if whole else "number"
        raise BadRecord(f"`{name}` is no {kind} from {low:g} to {high:g}; map the scale to {low:g}-{high:g}")
    return value


def compare(messages: list[Message], first: str, second: str, *, better: str | None, reason: str | None) -> Comparison:
    """Two responses as a Comparison. better: "A" for the first, "B" for the second, None for a tie."""
    if better == "B":
        return Comparison(messages, better=second, worse=first, reason=reason)
    return Comparison(messages, better=first, worse=second, tie=better is None, reason=reason)


Record = Mapping[str, Any]


class Format(NamedTuple):
    """columns: what a record of this form has."""

    columns: tuple[str, ...]
    read: Callable[[Record, Scores], Iterator[Item]]
    fits: Callable[[Record], bool] = lambda record: True


def read_rows(record: Record, scores: Scores) -> Iterator[Item]:
    yield {"source": None, "reason": None, **record}


def read_chosen_rejected(record: Record, scores: Scores) -> Iterator[Item]:
    """`chosen` and `rejected` as texts, or as whole conversations that end in the response (the prompt may be in them
    alone). Where both have a score, equal ones are a tie."""
    given = record.get("score_chosen"), record.get("score_rejected")
    better = None if given[0] is not None and given[0] == given[1] else "A"
    if isinstance(record["chosen"], str) or isinstance(record["rejected"], str):
        messages = prompt_messages(record.get("prompt"))
        chosen, rejected = (text(record[name], name) for name in ("chosen", "rejected"))
    else:
        messages, chosen, rejected = _two_conversations(record)
    yield compare(messages, chosen, rejected, better=better, reason=_reason(record))


def _two_conversations(record: Record) -> tuple[list[Message], str, str]:
    talks = [talk(record[name], name) for name in ("chosen", "rejected")]
    if any(talk[-1]["role"] != "assistant" for talk in talks):
        raise BadRecord("`chosen` or `rejected` does not end in the assistant's message; cut what follows it")
    before = [talk[:-1] for talk in talks]
    if before[0] != before[1]:
        raise BadRecord("`chosen` and `rejected` differ before the response; compare two responses to one prompt")
    messages = prompt_messages(before[0] or record.get("prompt"))
    return messages, talks[0][-1]["content"], talks[1][-1]["content"]


def read_reward_bench_2(record: Record, scores: Scores) -> Iterator[Item]:
    """Every response of the shorter list against one of the other, until each has been compared: 1 x 3 as a rule. In
    the subset Ties all of `chosen` are as good: there each is a tie with the next one too."""
    messages = prompt_messages(record.get("prompt"))
    chosen, rejected = ([text(one, name) for one in record[name]] for name in ("chosen", "rejected"))
    if not chosen or not rejected:
        raise BadRecord(f"`chosen` or `rejected` is an empty list; {DROP}")
    count = max(len(chosen), len(rejected))
    for better, worse in itertools.islice(zip(itertools.cycle(chosen), itertools.cycle(rejected)), count):
        yield Comparison(messages, better, worse)
    if str(record.get("subset")).lower() == "ties":
        for one, other in itertools.pairwise(chosen):
            yield Comparison(messages, one, other, tie=True)


def _two_responses(columns: tuple[str, str, str, str], better: Callable[[Record, str], str | None]) -> Format:
    """The form of records with prompt, two responses and a verdict in these columns. better(record, its column): "A",
    "B", None for a tie."""
    prompt, one, other, verdict = columns

    def read(record: Record, scores: Scores) -> Iterator[Item]:
        first = text(record[one], one)
        second = text(record[other], other)
        messages = _turns(prompt_messages(record[prompt], prompt))
        yield compare(messages, first, second, better=better(record, verdict), reason=_reason(record))

    return Format(columns, read)


def _label(meanings: Mapping[Any, str | None]) -> Callable[[Record, str], str | None]:
    def better(record: Record, column: str) -> str | None:
        value = record[column]
        key = value.strip() if isinstance(value, str) else value
        if isinstance(key, bool) or not isinstance(key, str | int | float) or key not in meanings:
            wanted = ", ".join(repr(meaning) for meaning in meanings)
            raise BadRecord(f"`{column}` is none of {wanted}; write one of them")
        return meanings[key]

    return better


def _strength(record: Record, column: str) -> str | None:
    """HelpSteer's: -3 (the first is much better) to 3 (the second), 0 a tie."""
    strength = parse_number(record, column, -3, 3)
    return None if strength == 0 else "A" if strength < 0 else "B"


_TURN = re.compile(r"\n?<extra_id_1>(User|Assistant)\n")  # HelpSteer's way to write a conversation into a text


def _turns(messages: list[Message]) -> list[Message]:
    if len(messages) > 1:
        return messages
    parts = ["User", *_TURN.split(messages[0]["content"])]
    turns = zip(parts[::2], parts[1::2], strict=True)
    return prompt_messages([{"role": role.lower(), "content": said} for role, said in turns if said.strip()])


def read_ratings(record: Record, scores: Scores) -> Iterator[Item]:
    low, high = scores
    score = int(parse_number(record, "helpfulness", low, high, whole=True))
    messages = _turns(prompt_messages(record.get("prompt")))
    response = text(record["response"], "response")
    yield Rating(messages, response, score=score, grade=score, reason=_reason(record))


def read_ultra_feedback(record: Record, scores: Scores) -> Iterator[Item]:
    """Completions with an overall score of 1 to 10, which is mapped to the judge's scale."""
    messages = prompt_messages(record["instruction"], "instruction")
    low, high = scores
    completions = record["completions"]
    if not isinstance(completions, list) or not all(isinstance(one, Mapping) for one in completions):
        raise BadRecord(f"`completions` is no list of {{response, overall_score}}; {DROP}")
    for one in completions:
        grade = parse_number(one, "overall_score", 1, 10)
        score = low + round((grade - 1) / 9 * (high - low))
        yield Rating(messages, text(one.get("response"), "response"), score=score, grade=grade)


def _reason(record: Record) -> str | None:
    return record["reason"] if isinstance(record.get("reason"), str) else None


def _has_lists(record: Record) -> bool:
    values = (record["chosen"], record["rejected"])
    return all(isinstance(value, list) and (not value or isinstance(value[0], str)) for value in values)


_A_OR_B = _label({"A": "A", "B": "B", "tie": None})
_A_OVER_B = _label({"A>B": "A", "B>A": "B", "A=B": None})
_1_OR_2 = _label({1: "A", 2: "B", "1": "A", "2": "B"})
FORMATS: Mapping[str, Format] = {  # docs/how-to/judge-data.md says which data sets have them
    "rows": Format(("input", "output"), read_rows),
    "reward_bench_2": Format(("prompt", "chosen", "rejected"), read_reward_bench_2, _has_lists),
    "chosen_rejected": Format(("chosen", "rejected"), read_chosen_rejected),
    "response_a_b": _two_responses(("prompt", "response_a", "response_b", "preferred"), _A_OR_B),
    "judge_bench": _two_responses(("question", "response_A", "response_B", "label"), _A_OVER_B),
    "llmbar": _two_responses(("input", "output_1", "output_2", "label"), _1_OR_2),
    "helpsteer2_preference": _two_responses(("prompt", "response_1", "response_2", "preference_strength"), _strength),
    "helpsteer3": _two_responses(("context", "response1", "response2", "overall_preference"), _strength),
    "ratings": Format(("prompt", "response", "helpfulness"), read_ratings),
    "ultra_feedback": Format(("instruction", "completions"), read_ultra_feedback),
}


def parse_record(record: Record, name: str | None = None, scores: Scores = SCORES) -> list[Item]:
    """What a record says. name: the form it has; None: it shows in its columns. Raises BadRecord."""
    if name is None:
        known = (form for form in FORMATS.values() if record.keys() >= set(form.columns) and form.fits(record))
        form = next(known, None)
        if form is None:
            raise BadRecord(
                f"it has {', '.join(map(str, record)) or 'no columns'}: none of the known forms; give prompt with "
                "chosen and rejected, or another form of docs/how-to/judge-data.md"
            )
    else:
        form = FORMATS[name]
        if missing := [column for column in form.columns if column not in record]:
            lacking = "`, `".join(missing)
            raise BadRecord(f"no `{lacking}`, which --format {name} has; give the format that it has")
    return list(form.read(record, scores))


def find_source(record: Record, default: str) -> str:
    """Where a record says it is from: its `source`, a benchmark's subset, HelpSteer3's domain."""
    for name in ("source", "subset", "domain"):
        if isinstance(value := record.get(name), str) and value.strip():
            return value
    return default


class Loaded(NamedTuple):
    """A record. place: like `ratings.jsonl: line 3`."""

    items: list[Item]
    source: str
    place: str


def load(paths: Sequence[str | Path], mode: str, scores: Scores, form: str | None = None) -> list[Loaded]:
    """The records of files. form: a key of FORMATS; None: each record's columns tell.

    Raises UserError that names the broken records and the fix.
    """
    loaded = []
    damage = Damage()
    for path in map(Path, paths):
        for row, record in read_records(path, damage):
            with damage.of(path, row):
                items = parse_record(record, form, scores)
                for item in items:
                    problem = row_problem(item, mode, scores, ties=True) if isinstance(item, dict) else None
                    if problem:
                        raise BadRecord(problem)
                source = find_source(record, path.name.partition(".")[0])
                loaded.append(Loaded(items, source, format_place(path.name, row)))
    damage.check()
    return loaded
