"""Research data with a list of utterances per dialogue: CRSLab, Taskmaster, CCPE, MultiWOZ, PEARL."""

from typing import Any

from convrec.data.records import RECORD_NAME
from data_prep.own_data.forms.base import Dialog, Form, Record, Speakers, has_keys, make_turn
from data_prep.own_data.forms.message_lists import find_key

_CONVERSATION_IDS = ("conversationId", "conversation_id", "conv_id", "dialogue_id", "dialog_id", RECORD_NAME)
_READS = frozenset(_CONVERSATION_IDS)
_ITEMS = ("movies", "movie", "items", "item")  # keys in CRSLab, depending on the data set


def read_utterances(record: Record, speakers: Speakers) -> Dialog:
    """Read Taskmaster, CCPE and MultiWOZ 2.2: speakers and texts."""
    utterances = record["utterances"] if "utterances" in record else record["turns"]
    return Dialog([_read_turn(utterance, speakers) for utterance in utterances], _find_name(record))


def read_multiwoz_log(record: Record, speakers: Speakers) -> Dialog:
    """Read MultiWOZ 2.1: user and system alternate, the user begins."""
    roles = ("user", "assistant")
    return Dialog(
        [make_turn(roles[place % 2], utterance["text"]) for place, utterance in enumerate(record["log"])],
        _find_name(record),
    )


def read_pearl(record: Record, speakers: Speakers) -> Dialog:
    """Read PEARL, where `gt` lists the films that the recommender finally names."""
    turns = []
    for utterance in record["dialogue"]:
        turn = _read_turn(utterance, speakers)
        if turn["role"] == "assistant":
            turn["items"] = [title for title in record["gt"] if _is_named(title, turn["content"])]
        turns.append(turn)
    return Dialog(turns, _find_name(record))


def read_crslab(record: Record, speakers: Speakers) -> Dialog:
    """Read CRSLab, where texts are lists of words, and films are ids or titles."""
    turns = []
    for utterance in record["dialog"]:
        turn = _read_turn(utterance, speakers)
        key = next((name for name in _ITEMS if name in utterance), "")
        text = turn["content"] if isinstance(turn["content"], str) else " ".join(turn["content"])
        turns.append(turn | {"content": text, "items": [str(item) for item in utterance.get(key) or ()]})
    return Dialog(turns, _find_name(record))


def _read_turn(utterance: dict[str, Any], speakers: Speakers) -> dict[str, Any]:
    role = speakers.find_role(utterance[find_key(utterance, "speaker")], otherwise=None)
    return make_turn(role, utterance[find_key(utterance, "text")])


def _find_name(record: Record) -> object:
    return next((record[name] for name in _CONVERSATION_IDS if name in record), None)


def _is_named(title: str, text: str) -> bool:
    return title.partition(" (")[0].casefold() in text.casefold()


def _fits_utterances(record: Record) -> bool:
    utterances = record.get("utterances", record.get("turns"))
    is_list = isinstance(utterances, list) and bool(utterances) and isinstance(utterances[0], dict)
    return is_list and bool(find_key(utterances[0], "speaker")) and bool(find_key(utterances[0], "text"))


UTTERANCES = Form(
    fits=_fits_utterances,
    reads=_READS | {"utterances", "turns"},
    example='{"conversationId": "1", "utterances": [{"speaker": "USER", "text": "Something like Heat?"}]}',
    read_record=read_utterances,
)
MULTIWOZ = Form(
    fits=has_keys("goal", "log"),
    reads=_READS | {"log"},
    example='{"PMUL1.json": {"goal": {}, "log": [{"text": "Something like Heat?"}, {"text": "Collateral (2004)"}]}}',
    read_record=read_multiwoz_log,
)
PEARL = Form(
    fits=lambda record: "gt" in record and isinstance(record.get("dialogue"), list),
    reads=_READS | {"dialogue", "gt"},
    example='{"dialogue_id": "1", "dialogue": [{"speaker": "Seeker", "utterance": "..."}], "gt": ["Heat (1995)"]}',
    read_record=read_pearl,
)
CRSLAB = Form(
    fits=lambda record: isinstance(record.get("dialog"), list) and bool(record["dialog"]),
    reads=_READS | {"dialog"},
    example='{"conv_id": "1", "dialog": [{"role": "Seeker", "text": ["Heat", "?"], "movies": ["Heat (1995)"]}]}',
    read_record=read_crslab,
)
