"""Tickets from support desks: Zendesk and Intercom."""

import html
import re
from typing import Any

from data_prep.own_data.forms.base import TOOL, Dialog, Form, Record, Speakers, has_keys, make_turn, sort_by_time

_TAG = re.compile(r"<[^<>]+>")
_BREAK = re.compile(r"<br\s*/?>|</(?:p|div|li)>", re.IGNORECASE)


def read_zendesk(record: Record, speakers: Speakers) -> Dialog:
    """Read a ticket; the requester is the user, everybody else who comments publicly is the recommender."""
    turns = []
    for comment in sort_by_time(record["comments"], lambda comment: comment.get("created_at")):
        role = "user" if comment["author_id"] == record["requester_id"] else "assistant"
        text = html.unescape(comment.get("plain_body") or comment["body"])
        turns.append(make_turn(role if comment.get("public", True) else TOOL, text))
    return Dialog(turns, record.get("id"), record.get("created_at"))


def read_intercom(record: Record, speakers: Speakers) -> Dialog:
    """Read a conversation; its first message is from the user or lead, admins and bots recommend."""
    parts = record["conversation_parts"]
    parts = parts["conversation_parts"] if isinstance(parts, dict) else parts
    in_order = sort_by_time(parts, lambda part: part.get("created_at"))
    return Dialog(
        [_read_part(part, speakers) for part in (record["source"], *in_order)],
        record.get("id"),
        record.get("created_at"),
    )


def _read_part(part: dict[str, Any], speakers: Speakers) -> dict[str, Any]:
    is_comment = part.get("part_type", "comment") in ("comment", "open", "quick_reply") and part.get("body")
    author = part["author"]
    role = speakers.find_role(author.get("id"), author.get("name"), author["type"])
    return make_turn(role if is_comment else TOOL, read_html(part.get("body") or ""))


def read_html(text: str) -> str:
    """Strip HTML tags from a text, with one line per paragraph."""
    return html.unescape(_TAG.sub("", _BREAK.sub("\n", text))).strip()


ZENDESK = Form(
    fits=has_keys("comments", "requester_id"),
    reads=frozenset({"comments", "requester_id", "id", "created_at"}),
    example='{"id": 1, "requester_id": 2, "comments": [{"author_id": 2, "public": true, "body": "Like Heat?"}]}',
    read_record=read_zendesk,
)
INTERCOM = Form(
    fits=has_keys("source", "conversation_parts"),
    reads=frozenset({"source", "conversation_parts", "id", "created_at"}),
    example='{"id": "1", "source": {"body": "...", "author": {"type": "user"}}, "conversation_parts": {...}}',
    read_record=read_intercom,
)
