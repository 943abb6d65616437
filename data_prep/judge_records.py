"""Records of preferences and ratings, in the forms that data_prep.judge lists, read from JSONL or parquet."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.data.chat import Message
from convrec.errors import UserError
from convrec.judges.schema import make_row, raise_for_problems, row_problem


class Comparison(NamedTuple):
    """Two responses, the better one first; `tie` when neither is."""

    messages: list[Message]
    better: str
    worse: str
    tie: bool
    reason: str | None


class Rating(NamedTuple):
    messages: list[Message]
    response: str
    score: int
    reason: str | None


Record = Comparison | Rating | dict[str, Any]  # a dict is a row of the schema


class Broken(ValueError):
    """A record that cannot be read: (problem, fix)."""


def read_records(path: str | os.PathLike) -> tuple[str, Iterator[tuple[int, Any]]]:
    """("line" from 1 | "row" from 0, (number, record) pairs) of a JSONL or parquet file. A broken line is an error."""
    file = Path(path)
    if not file.is_file():
        raise UserError(f"--input {file}: no such file")
    if file.suffix == ".parquet":
        try:
            return "row", iter(enumerate(pq.read_table(file).to_pylist()))
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(f"--input {file}: not readable as parquet ({error}); write it again") from error
    return "line", _json_lines(file)


def _json_lines(file: Path) -> Iterator[tuple[int, Any]]:
    with open(file, "rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                yield number, json.loads(line)
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                raise UserError(f"--input {file}: line {number} is no JSON ({error}); fix or drop that line") from None


def parse_record(record: Any, mode: str) -> Record:
    """What a record says. Raises Broken."""
    if not isinstance(record, Mapping):
        raise Broken("not an object with columns", "write one record a line")
    reason = record.get("reason") if isinstance(record.get("reason"), str) else None
    if "input" in record and "output" in record:
        return {"source": None, "reason": reason} | dict(record)
    if "chosen" in record and "rejected" in record:
        messages, better, worse = _chosen_and_rejected(record)
        return Comparison(messages, better, worse, better.strip() == worse.strip(), reason)
    if "response_a" in record and "response_b" in record:
        first, second = (_text(record[name], name) for name in ("response_a", "response_b"))
        preferred = record.get("preferred")
        if preferred not in ("A", "B", "tie"):
            raise Broken('`preferred` is not "A", "B" or "tie"', "write one of them")
        better, worse = (second, first) if preferred == "B" else (first, second)
        return Comparison(_messages(record.get("prompt"), "prompt"), better, worse, preferred == "tie", reason)
    if "response" in record and mode == "pointwise":
        score = record.get("helpfulness")
        if isinstance(score, bool) or not isinstance(score, int) or not 0 <= score <= 4:
            raise Broken("`helpfulness` is not a whole number from 0 to 4", "map the scale to 0-4")
        return Rating(_messages(record.get("prompt"), "prompt"), _text(record["response"], "response"), score, reason)
    wanted = "chosen and rejected, or response_a, response_b and preferred"
    wanted += ", or response and helpfulness" * (mode == "pointwise")
    raise Broken("it has none of the known forms", f"give prompt with {wanted}")


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise Broken(f"`{name}` has no text", "fix or drop these records")
    return value


def _messages(value: Any, name: str) -> list[Message]:
    """A prompt: a text, or messages of which the last is the user's."""
    if isinstance(value, str):
        return [{"role": "user", "content": _text(value, name)}]
    problem = f"`{name}` is neither a text nor messages {{role, content}}"
    if not isinstance(value, Sequence) or not value:
        raise Broken(problem, "fix or drop these records")
    for message in value:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise Broken(problem, "fix or drop these records")
    return [{"role": message["role"], "content": _text(message.get("content"), name)} for message in value]


def _chosen_and_rejected(record: Mapping[str, Any]) -> tuple[list[Message], str, str]:
    """Both as texts, or both as whole conversations that end in the response (the prompt may be in them alone)."""
    chosen, rejected, prompt = record["chosen"], record["rejected"], record.get("prompt")
    if isinstance(chosen, str) or isinstance(rejected, str):
        return _messages(prompt, "prompt"), _text(chosen, "chosen"), _text(rejected, "rejected")
    talks = [_messages(chosen, "chosen"), _messages(rejected, "rejected")]
    if any(talk[-1]["role"] != "assistant" for talk in talks):
        raise Broken("`chosen` or `rejected` does not end in the assistant's message", "cut what follows it")
    before = [talk[:-1] for talk in talks]
    if before[0] != before[1]:
        raise Broken("`chosen` and `rejected` differ before the response", "compare two responses to one prompt")
    messages = before[0] or _messages(prompt, "prompt")
    return messages, talks[0][-1]["content"], talks[1][-1]["content"]


def load(path: str | os.PathLike, mode: str) -> list[tuple[Record, str]]:
    """(parsed record, source) of a file. Raises UserError that names the broken records and the fix."""
    kind, records = read_records(path)
    parsed: list[tuple[Record, str]] = []
    problems: list[tuple[int, tuple[str, str] | None]] = []
    for number, record in records:
        try:
            item = parse_record(record, mode)
            problem = _problem(item, mode)
        except Broken as broken:
            problem = (broken.args[0], broken.args[1])
        problems.append((number, problem))
        if problem is None:
            source = record.get("source")
            parsed.append((item, source if isinstance(source, str) and source else Path(path).stem))
    raise_for_problems(f"--input {path}", problems, kind)
    return parsed


def _problem(item: Record, mode: str) -> tuple[str, str] | None:
    if isinstance(item, dict):
        return None if mode == "pairwise" and is_tie(item) else row_problem(item, mode)
    if item.messages[-1]["role"] != "user":
        return "the prompt does not end in the user's message", "cut it before the response"
    return None


def is_tie(row: Mapping[str, Any]) -> bool:
    """Whether a row of the schema would be valid with a winner in place of its tie."""
    try:
        labels = [output["answer"]["label"]["preference"] for output in row["output"]]
        texts = [output["answer"]["content"] for output in row["output"]]
        return labels == ["tie", "tie"] and row_problem(make_row(row["input"], texts, "A", ""), "pairwise") is None
    except (KeyError, TypeError):
        return False
