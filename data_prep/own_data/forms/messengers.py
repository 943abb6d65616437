"""Channels of Discord (DiscordChatExporter) and chats of Telegram: an object with `messages` per file."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from data_prep.own_data.forms.base import TOOL, Candidate, Form, LocatedRecord, ReadContext, Speakers, has_keys
from data_prep.own_data.forms.channels import Message, make_talk_reader, split_channel
from data_prep.own_data.times import parse_time

_ReadMessage: TypeAlias = Callable[[LocatedRecord, dict[str, Any], Speakers], Message]


def find_discord_dialogs(records: Sequence[LocatedRecord], reading: ReadContext) -> Iterator[Candidate]:
    """Yield the conversations of Discord channels."""
    return _find_dialogs(records, reading, _read_discord)


def find_telegram_dialogs(records: Sequence[LocatedRecord], reading: ReadContext) -> Iterator[Candidate]:
    """Yield the conversations of Telegram chats."""
    return _find_dialogs(records, reading, _read_telegram)


def _find_dialogs(records: Sequence[LocatedRecord], reading: ReadContext, read: _ReadMessage) -> Iterator[Candidate]:
    """Yield the conversations of each record, which is a channel."""
    for located in records:
        messages = [read(located, message, reading.speakers) for message in located.record["messages"]]
        messages.sort(key=lambda message: message.time or 0)
        channel = located.record.get("channel") or located.record
        for number, talk in enumerate(split_channel(messages, reading.left_out)):
            name = f"{channel.get('id', located.row)}-{number}"
            yield Candidate([located], make_talk_reader(talk, reading.left_out, name, talk[0].time))


def _read_discord(located: LocatedRecord, message: dict[str, Any], speakers: Speakers) -> Message:
    author = message["author"]
    names = [author["name"], author.get("nickname"), author["id"]]
    role = speakers.find_role(*names, otherwise="assistant" if author.get("isBot") else "user")
    text = message["content"]
    return Message(
        located,
        speaker=author["id"],
        role=role if message["type"] in ("Default", "Reply") and text else TOOL,
        text=text,
        time=parse_time(message["timestamp"]),
        name=message["id"],
        answers=(message.get("reference") or {}).get("messageId"),
        mentions=frozenset(user["id"] for user in message.get("mentions") or ()),
    )


def _read_telegram(located: LocatedRecord, message: dict[str, Any], speakers: Speakers) -> Message:
    """Read a message, whose text is a list of strings and {type, text} if parts are bold, links, ..."""
    parts = message["text"] if isinstance(message["text"], list) else [message["text"]]
    text = "".join(part if isinstance(part, str) else part["text"] for part in parts)
    is_text = message["type"] == "message" and bool(text)
    return Message(
        located,
        speaker=str(message.get("from_id") or message.get("from")),
        role=speakers.find_role(message.get("from"), message.get("from_id")) if is_text else TOOL,
        text=text,
        time=parse_time(message.get("date_unixtime") or message["date"]),
        name=message["id"],
        answers=message.get("reply_to_message_id"),
    )


DISCORD = Form(
    fits=has_keys("guild", "channel", "messages"),
    reads=frozenset({"guild", "channel", "dateRange", "exportedAt", "messages", "messageCount"}),
    example='{"guild": {...}, "channel": {"id": "1"}, "messages": [{"id": "2", "author": {...}, "content": "..."}]}',
    find_dialogs=find_discord_dialogs,
)
TELEGRAM = Form(
    fits=lambda record: {"name", "type", "id", "messages"} <= record.keys() and "guild" not in record,
    reads=frozenset({"name", "type", "id", "messages"}),
    example='{"name": "Ann", "type": "personal_chat", "id": 1, "messages": [{"type": "message", "from": "Ann", ...}]}',
    find_dialogs=find_telegram_dialogs,
)
