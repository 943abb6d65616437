"""OpenDialKG: CSV with the messages of a dialogue as JSON in one cell."""

import json

from data_prep.own_data.forms.base import TOOL, Dialog, Form, Record, Speakers, has_keys, turn


def read_opendialkg(record: Record, speakers: Speakers) -> Dialog:
    """Steps in the knowledge graph stand between the messages."""
    messages = json.loads(record["Messages"])
    turns = []
    for said in messages:
        is_said = said["type"] == "chat"
        role = speakers.find_role(said["sender"]) if is_said else TOOL
        turns.append(turn(role, said["message"] if is_said else ""))
    return Dialog(turns)


OPENDIALKG = Form(
    fits=has_keys("Messages"),
    reads=frozenset({"Messages"}),
    example='Messages\n"[{""type"": ""chat"", ""message"": ""Something like Heat?"", ""sender"": ""user""}]"',
    read_record=read_opendialkg,
)
