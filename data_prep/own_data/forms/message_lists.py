"""A list of turns per record, `[{"role": ..., "content": ...}, ...]`; the keys of speaker and text are guessed."""

from convrec.data.records import LIST
from data_prep.own_data.forms.base import NAMES, Dialog, Form, Record, Speakers, make_turn, normalise_name, sort_by_time
from data_prep.own_data.forms.chat import find_time


def _fits(record: Record) -> bool:
    return LIST in record and bool(find_key(record[LIST][0], "speaker")) and bool(find_key(record[LIST][0], "text"))


def find_key(record: Record, what: str) -> str:
    """Return the first key of a record that means something, whatever its case and signs.

    Args:
        record: a message.
        what: a key of `NAMES`, such as "speaker".

    Returns:
        The key as the record has it; "" for none.
    """
    plain_keys = {normalise_name(key): key for key in reversed(list(record))}
    return next((plain_keys[name] for name in NAMES[what] if name in plain_keys), "")


def read_message_list(record: Record, speakers: Speakers) -> Dialog:
    """Read the list of turns, sorted by time if they have times."""
    turns = []
    for message in sort_by_time(record[LIST], find_time):
        role = message[find_key(message, "speaker")]
        turns.append(
            make_turn(role if role == "system" else speakers.find_role(role), message[find_key(message, "text")])
        )
    return Dialog(turns)


MESSAGE_LIST = Form(
    fits=_fits,
    reads=frozenset({LIST}),
    example='[{"role": "user", "content": "Something like Heat?"}, {"role": "assistant", "content": "..."}]',
    read_record=read_message_list,
)
