"""Slack's export of a channel, one file per day: threads, and messages outside of threads."""

import html
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from data_prep.own_data.forms.base import (
    TOOL,
    Candidate,
    Dialog,
    Form,
    LocatedRecord,
    ReadContext,
    Speakers,
    has_keys,
    make_turn,
)
from data_prep.own_data.forms.channels import NOBODY_RECOMMENDS, Message, split_channel

NO_BEGINNING = "threads whose first message is missing"
_MESSAGE_SUBTYPES = (None, "bot_message", "thread_broadcast", "me_message")  # the others are joins, leaves, pins
_MENTION = re.compile(r"<@(\w+)(?:\|[^>]*)?>")


def find_slack_dialogs(records: Sequence[LocatedRecord], reading: ReadContext) -> Iterator[Candidate]:
    """Yield the conversations of channels; a thread can continue in the files of later days.

    The recommender is a bot, or named by --recommender.
    """
    threads: dict[tuple[Path, Any], list[LocatedRecord]] = {}
    channels: dict[Path, list[LocatedRecord]] = {}
    for located in sorted(records, key=_parse_timestamp):
        folder = located.path.parent
        if thread := located.record.get("thread_ts"):
            threads.setdefault((folder, thread), []).append(located)
        else:
            channels.setdefault(folder, []).append(located)
    for (_, name), thread_records in threads.items():
        yield Candidate(thread_records, _make_reader(thread_records, reading, name))
    for channel in channels.values():
        messages = [_read_message(located, reading.speakers) for located in channel]
        for talk in split_channel(messages, reading.left_out):
            talk_records = [message.located for message in talk]
            yield Candidate(talk_records, _make_reader(talk_records, reading))


def _make_reader(records: Sequence[LocatedRecord], reading: ReadContext, name: object = None) -> Any:
    def read() -> Dialog | None:
        messages = [_read_message(located, reading.speakers) for located in records]
        if name is not None and records[0].record["ts"] != name:
            reading.left_out[NO_BEGINNING] += 1
            return None
        turns = [make_turn(message.role, message.text) for message in messages]
        if all(turn["role"] != "assistant" for turn in turns):
            reading.left_out[NOBODY_RECOMMENDS] += 1
            return None
        return Dialog(turns, name, records[0].record["ts"])

    return read


def _read_message(located: LocatedRecord, speakers: Speakers) -> Message:
    record = located.record
    profile = record.get("user_profile") or {}
    names = [record.get("user"), record.get("username"), record.get("bot_id"), profile.get("real_name")]
    role = speakers.find_role(*names, profile.get("name"), otherwise="assistant" if record.get("bot_id") else "user")
    text = html.unescape(record.get("text") or "")
    return Message(
        located,
        speaker=str(record.get("user") or record.get("username") or record.get("bot_id")),
        role=role if record.get("subtype") in _MESSAGE_SUBTYPES and text else TOOL,
        text=text,
        time=_parse_timestamp(located),
        mentions=frozenset(_MENTION.findall(text)),
    )


def _parse_timestamp(located: LocatedRecord) -> float:
    try:
        return float(located.record["ts"])
    except (KeyError, TypeError, ValueError):
        return 0.0


SLACK = Form(
    fits=has_keys("type", "ts", "text"),
    reads=frozenset({"type", "subtype", "ts", "thread_ts", "text", "user", "username", "bot_id", "user_profile"}),
    example='{"type": "message", "user": "U1", "text": "Like Heat?", "ts": "1700000000.1", "thread_ts": "..."}',
    find_dialogs=find_slack_dialogs,
    spans_files=True,
)
