"""conversations.json from ChatGPT's export: a tree of messages, one branch of which was shown last."""

from typing import Any

from data_prep.own_data.forms.base import TOOL, Dialog, Form, Record, Speakers, has_keys, make_turn


def read_chatgpt(record: Record, speakers: Speakers) -> Dialog:
    """Read the branch that was shown last, from `current_node` up."""
    nodes = dict(record["mapping"])
    name = record["current_node"]
    turns = []
    while name in nodes:
        node = nodes.pop(name)  # a damaged tree can contain a cycle
        if node["message"]:
            turns.append(_read_message(node["message"]))
        name = node["parent"]
    return Dialog(turns[::-1], record.get("conversation_id", record.get("id")), record.get("create_time"))


def _read_message(message: dict[str, Any]) -> dict[str, Any]:
    """Read a turn; messages not meant for the user (tool calls, thoughts, hidden messages) get the role TOOL."""
    role = message["author"]["role"]
    parts = message["content"].get("parts")
    is_hidden = (message.get("metadata") or {}).get("is_visually_hidden_from_conversation")
    is_shown = role in ("user", "assistant") and message.get("recipient", "all") == "all" and not is_hidden
    return make_turn(role if is_shown and parts else TOOL, parts or "")


CHATGPT = Form(
    fits=has_keys("mapping", "current_node"),
    reads=frozenset({"mapping", "current_node", "create_time", "conversation_id", "id"}),
    example='{"mapping": {"n": {"message": {"author": ..., "content": ...}, "parent": ...}}, "current_node": "n"}',
    read_record=read_chatgpt,
)
