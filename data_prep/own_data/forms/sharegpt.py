"""ShareGPT as written by LLaMA-Factory and others: `conversations` of {from, value}."""

from data_prep.own_data.forms.base import (
    INSTRUCTION,
    TOOL,
    Dialog,
    Form,
    Record,
    Speakers,
    has_keys,
    make_turn,
    normalise_name,
)

TOOL_SPEAKERS = frozenset({"tool", "function", "functioncall", "functionresponse", "observation", "toolcall"})
TOOL_SPEAKERS |= {"toolresponse", "toolresult", "ipython"}


def read_sharegpt(record: Record, speakers: Speakers) -> Dialog:
    """Read `conversations`, also with the keys role and content."""
    turns = []
    for message in record["conversations"]:
        speaker = message["from"] if "from" in message else message["role"]
        text = message["value"] if "from" in message else message["content"]
        if normalise_name(speaker) in TOOL_SPEAKERS:
            role = TOOL
        elif speaker == INSTRUCTION:
            role = INSTRUCTION
        else:
            role = speakers.find_role(speaker)
        turns.append(make_turn(role, text))
    return Dialog(turns, record.get("id"))


SHAREGPT = Form(
    fits=has_keys("conversations"),
    reads=frozenset({"conversations", "id", "system", "tools"}),
    example='{"conversations": [{"from": "human", "value": "Something like Heat?"}, {"from": "gpt", "value": "..."}]}',
    read_record=read_sharegpt,
)
