"""conversations.json from Claude.ai's export."""

from data_prep.own_data.forms.base import Dialog, Form, Record, Speakers, has_keys, make_turn, sort_by_time


def read_claude(record: Record, speakers: Speakers) -> Dialog:
    """Read `chat_messages`, sorted by time."""
    messages = sort_by_time(record["chat_messages"], lambda message: message.get("created_at"))
    turns = [
        make_turn(speakers.find_role(message["sender"]), message.get("content") or message["text"])
        for message in messages
    ]
    return Dialog(turns, record.get("uuid"), record.get("created_at"))


CLAUDE = Form(
    fits=has_keys("chat_messages"),
    reads=frozenset({"chat_messages", "uuid", "created_at"}),
    example='{"uuid": "1", "chat_messages": [{"sender": "human", "text": "Something like Heat?"}]}',
    read_record=read_claude,
)
