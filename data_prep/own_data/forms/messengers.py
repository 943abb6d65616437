"""Channels of Discord (DiscordChatExporter) and chats of Telegram: an object with `messages` per file."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from data_prep.own_data.forms.base import TOOL, Candidate, Form, Placed, Reading, Speakers, has_keys
from data_prep.own_data.forms.channels import Message, read_talk, split_channel
from data_prep.own_data.times import parse_time

_ReadMessage: TypeAlias = Callable[[Placed, dict[str, Any], Speakers], Message]


def find_discord_dialogs(records: Sequence[Placed], reading: Reading) -> Iterator[Candidate]:
    return _find_dialogs(records, reading, _read_discord)


def find_telegram_dialogs(records: Sequence[Placed], reading: Reading) -> Iterator[Candidate]:
    return _find_dialogs(records, reading, _read_telegram)


def _find_dialogs(records: Sequence[Placed], reading: Reading, read: _ReadMessage) -> Iterator[Candidate]:
    """The conversations of each record, which is a channel."""
    for placed in records:
        messages = [read(placed, said, reading.speakers) for said in placed.record["messages"]]
        messages.sort(key=lambda message: message.time or 0)
        channel = placed.record.get("channel") or placed.record
        for number, talk in enumerate(split_channel(messages, reading.left_out)):
            name = f"{channel.get('id', placed.row)}-{number}"
            yield Candidate([placed], read_talk(talk, reading.left_out, name, talk[0].time))


def _read_discord(placed: Placed, said: dict[str, Any], speakers: Speakers) -> Message:
    author = said["author"]
    names = [author["name"], author.get("nickname"), author["id"]]
    role = speakers.find_role(*names, otherwise="assistant" if author.get("isBot") else "user")
    text = said["content"]
    return Message(
        placed,
        speaker=author["id"],
        role=role if said["type"] in ("Default", "Reply") and text else TOOL,
        text=text,
        time=parse_time(said["timestamp"]),
        name=said["id"],
        answers=(said.get("reference") or {}).get("messageId"),
        mentions=frozenset(user["id"] for user in said.get("mentions") or ()),
    )


def _read_telegram(placed: Placed, said: dict[str, Any], speakers: Speakers) -> Message:
    """Texts are lists of texts and of {type, text} where a part is bold, a link, ..."""
    parts = said["text"] if isinstance(said["text"], list) else [said["text"]]
    text = "".join(part if isinstance(part, str) else part["text"] for part in parts)
    is_said = said["type"] == "message" and bool(text)
    return Message(
        placed,
        speaker=str(said.get("from_id") or said.get("from")),
        role=speakers.find_role(said.get("from"), said.get("from_id")) if is_said else TOOL,
        text=text,
        time=parse_time(said.get("date_unixtime") or said["date"]),
        name=said["id"],
        answers=said.get("reply_to_message_id"),
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
