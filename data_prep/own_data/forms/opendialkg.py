"""OpenDialKG: CSV with a dialogue's messages as JSON in one cell."""

import json

from data_prep.own_data.forms.base import TOOL, Dialog, Form, Record, Speakers, has_keys, make_turn


def read_opendialkg(record: Record, speakers: Speakers) -> Dialog:
    """Read the messages; steps in the knowledge graph between them get the role TOOL."""
    messages = json.loads(record["Messages"])
    turns = []
    for message in messages:
        is_chat = message["type"] == "chat"
        role = speakers.find_role(message["sender"]) if is_chat else TOOL
        turns.append(make_turn(role, message["message"] if is_chat else ""))
    return Dialog(turns)


OPENDIALKG = Form(
    fits=has_keys("Messages"),
    reads=frozenset({"Messages"}),
    example='Messages\n"[{""type"": ""chat"", ""message"": ""Something like Heat?"", ""sender"": ""user""}]"',
    read_record=read_opendialkg,
)
