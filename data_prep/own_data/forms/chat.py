"""Messages of {role, content}: requests and fine-tuning files of OpenAI and Anthropic, logs of assistants."""

from typing import Any

from data_prep.own_data.forms.base import NAMES, Dialog, Form, Record, Speakers, has_keys, normalise_name, sort_by_time


def read_chat(record: Record, speakers: Speakers) -> Dialog:
    """Read `messages`, sorted by time if they have times."""
    messages = record["messages"]
    return Dialog(sort_by_time(messages, find_time) if isinstance(messages, list) else messages)


def find_time(message: Any) -> Any:
    """Return the time of a message; None if it has none."""
    if not isinstance(message, dict):
        return None
    return next((value for key, value in message.items() if normalise_name(key) in NAMES["time"]), None)


CHAT = Form(
    fits=has_keys("messages"),
    reads=frozenset({"messages"}),
    example='{"messages": [{"role": "user", "content": "Like Heat?"}, {"role": "assistant", "content": "..."}]}',
    read_record=read_chat,
)
