"""ReDial's own files, and TG-ReDial's."""

import re

from data_prep.own_data.forms.base import Dialog, Form, Record, Speakers, has_keys, turn

_MENTION = re.compile(r"@(\d+)")


def read_redial(record: Record, speakers: Speakers) -> Dialog:
    titles = record["movieMentions"] or {}  # an empty one is written as a list
    turns = []
    for said in record["messages"]:
        names = _MENTION.findall(said["text"])
        text = _MENTION.sub(lambda name: titles.get(name[1]) or name[0], said["text"])
        speaker = "assistant" if said["senderWorkerId"] == record["respondentWorkerId"] else "user"
        turns.append(turn(speaker, text, items=[titles[name] for name in names if titles.get(name)]))
    return Dialog(turns, record["conversationId"])


def read_tg_redial(record: Record, speakers: Speakers) -> Dialog:
    """`mentionMovies` has the id and title of the film that a message, by its `local_id`, recommends."""
    movies = {str(place): movie for place, movie in record["mentionMovies"].items()}
    turns = []
    for said in sorted(record["messages"], key=lambda said: said["local_id"]):
        role = speakers.find_role(said["role"])
        movie = movies.get(str(said["local_id"]))
        named = [movie[-1]] if movie else [] if role == "assistant" else None
        turns.append(turn(role, said["content"], items=named))
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
