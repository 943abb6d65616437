"""The original files of ReDial and TG-ReDial."""

import re

from data_prep.own_data.forms.base import Dialog, Form, Record, Speakers, has_keys, make_turn

_MENTION = re.compile(r"@(\d+)")


def read_redial(record: Record, speakers: Speakers) -> Dialog:
    """Read the messages, replacing `@ID` by the title of the film."""
    titles = record["movieMentions"] or {}  # written as a list if empty
    turns = []
    for message in record["messages"]:
        names = _MENTION.findall(message["text"])
        text = _MENTION.sub(lambda name: titles.get(name[1]) or name[0], message["text"])
        speaker = "assistant" if message["senderWorkerId"] == record["respondentWorkerId"] else "user"
        turns.append(make_turn(speaker, text, items=[titles[name] for name in names if titles.get(name)]))
    return Dialog(turns, record["conversationId"])


def read_tg_redial(record: Record, speakers: Speakers) -> Dialog:
    """Read the messages; `mentionMovies` maps a message's `local_id` to the id and title of the film it recommends."""
    movies = {str(place): movie for place, movie in record["mentionMovies"].items()}
    turns = []
    for message in sorted(record["messages"], key=lambda message: message["local_id"]):
        role = speakers.find_role(message["role"])
        movie = movies.get(str(message["local_id"]))
        named = [movie[-1]] if movie else [] if role == "assistant" else None
        turns.append(make_turn(role, message["content"], items=named))
    return Dialog(turns, record["conv_id"])


REDIAL = Form(
    fits=has_keys("movieMentions", "messages"),
    reads=frozenset({"movieMentions", "messages", "conversationId", "respondentWorkerId"}),
    example='{"conversationId": "1", "movieMentions": {"7": "Heat (1995)"}, "messages": [{"text": "@7?", ...}]}',
    read_record=read_redial,
)
TG_REDIAL = Form(
    fits=has_keys("mentionMovies", "messages", "conv_id"),
    reads=frozenset({"mentionMovies", "messages", "conv_id"}),
    example='{"conv_id": 1, "messages": [{"local_id": 1, "role": "Seeker", "content": "..."}], "mentionMovies": {...}}',
    read_record=read_tg_redial,
)
