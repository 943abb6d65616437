"""ShareGPT, as LLaMA-Factory and others write it: `conversations` of {from, value}."""

from data_prep.own_data.forms.base import INSTRUCTION, TOOL, Dialog, Form, Record, Speakers, has_keys, plain_name, turn

TOOL_SPEAKERS = frozenset({"tool", "function", "functioncall", "functionresponse", "observation", "toolcall"})
TOOL_SPEAKERS |= {"toolresponse", "toolresult", "ipython"}


def read_sharegpt(record: Record, speakers: Speakers) -> Dialog:
    turns = []
    for said in record["conversations"]:
        speaker, text = (said["from"], said["value"]) if "from" in said else (said["role"], said["content"])
        if plain_name(speaker) in TOOL_SPEAKERS:
            role = TOOL
        elif speaker == INSTRUCTION:
            role = INSTRUCTION
        else:
            role = speakers.find_role(speaker)
        turns.append(turn(role, text))
    return Dialog(turns, record.get("id"))


SHAREGPT = Form(
    fits=has_keys("conversations"),
    reads=frozenset({"conversations", "id", "system", "tools"}),
    example='{"conversations": [{"from": "human", "value": "Something like Heat?"}, {"from": "gpt", "value": "..."}]}',
    read_record=read_sharegpt,
)
