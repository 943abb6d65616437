"""DuRecDial: alternating utterances, some preceded by the number of their goal."""

import re

from data_prep.own_data.forms.base import Dialog, Form, Record, Speakers, make_turn

_GOAL_MARK = re.compile(r"^\[\d+\]\s*")
_BOT_BEGINS = re.compile(r"^\[1\][^\[]*\(\s*Bot\s*(?:主动|initiative)", re.IGNORECASE)


def read_durecdial(record: Record, speakers: Speakers) -> Dialog:
    """Read the utterances; the bot begins if the first goal says so, otherwise the user."""
    roles = ("assistant", "user") if _BOT_BEGINS.match(str(record["goal"])) else ("user", "assistant")
    texts = [_GOAL_MARK.sub("", text) for text in record["conversation"]]
    return Dialog([make_turn(roles[place % 2], text) for place, text in enumerate(texts)])


def _fits(record: Record) -> bool:
    conversation = record.get("conversation")
    return "goal" in record and isinstance(conversation, list) and all(isinstance(text, str) for text in conversation)


DURECDIAL = Form(
    fits=_fits,
    reads=frozenset({"goal", "conversation"}),
    example='{"goal": "[1] ...", "conversation": ["[1] Something like Heat?", "Collateral (2004)"]}',
    read_record=read_durecdial,
)
