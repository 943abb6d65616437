"""Slack's export of a channel, a file per day: threads, and what is outside of threads."""

import html
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from data_prep.own_data.forms.base import TOOL, Candidate, Dialog, Form, Placed, Reading, Speakers, has_keys, turn
from data_prep.own_data.forms.channels import NOBODY_RECOMMENDS, Message, split_channel

NO_BEGINNING = "threads whose first message is in no file"
_SAID = (None, "bot_message", "thread_broadcast", "me_message")  # subtypes; others join, leave, pin
_MENTION = re.compile(r"<@(\w+)(?:\|[^>]*)?>")


def find_slack_dialogs(records: Sequence[Placed], reading: Reading) -> Iterator[Candidate]:
    """A thread can go on in the files of later days. The recommender is a bot, or one of --recommender."""
    threads: dict[tuple[Path, Any], list[Placed]] = {}
    channels: dict[Path, list[Placed]] = {}
    for placed in sorted(records, key=_parse_timestamp):
        folder = placed.path.parent
        if thread := placed.record.get("thread_ts"):
            threads.setdefault((folder, thread), []).append(placed)
        else:
            channels.setdefault(folder, []).append(placed)
    for (_, name), thread_records in threads.items():
        yield Candidate(thread_records, _reader(thread_records, reading, name))
    for channel in channels.values():
        messages = [_read_message(placed, reading.speakers) for placed in channel]
        for talk in split_channel(messages, reading.left_out):
            talk_records = [message.placed for message in talk]
            yield Candidate(talk_records, _reader(talk_records, reading))


def _reader(records: Sequence[Placed], reading: Reading, name: object = None) -> Any:
    def read() -> Dialog | None:
        messages = [_read_message(placed, reading.speakers) for placed in records]
        if name is not None and records[0].record["ts"] != name:
            reading.left_out[NO_BEGINNING] += 1
            return None
        turns = [turn(message.role, message.text) for message in messages]
        if all(said["role"] != "assistant" for said in turns):
            reading.left_out[NOBODY_RECOMMENDS] += 1
            return None
        return Dialog(turns, name, records[0].record["ts"])

    return read


def _read_message(placed: Placed, speakers: Speakers) -> Message:
    record = placed.record
    profile = record.get("user_profile") or {}
    names = [record.get("user"), record.get("username"), record.get("bot_id"), profile.get("real_name")]
    role = speakers.find_role(*names, profile.get("name"), otherwise="assistant" if record.get("bot_id") else "user")
    text = html.unescape(record.get("text") or "")
    return Message(
        placed,
        speaker=str(record.get("user") or record.get("username") or record.get("bot_id")),
        role=role if record.get("subtype") in _SAID and text else TOOL,
        text=text,
        time=_parse_timestamp(placed),
        mentions=frozenset(_MENTION.findall(text)),
    )


def _parse_timestamp(placed: Placed) -> float:
    try:
        return float(placed.record["ts"])
    except (KeyError, TypeError, ValueError):
        return 0.0


SLACK = Form(
    fits=has_keys("type", "ts", "text"),
    reads=frozenset({"type", "subtype", "ts", "thread_ts", "text", "user", "username", "bot_id", "user_profile"}),
    example='{"type": "message", "user": "U1", "text": "Like Heat?", "ts": "1700000000.1", "thread_ts": "..."}',
    find_dialogs=find_slack_dialogs,
    spans_files=True,
)
