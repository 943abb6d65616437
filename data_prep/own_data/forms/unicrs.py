"""UniCRS and iEvaLM: one record per answer, with the turns before it and the items that it recommends."""

from data_prep.own_data.forms.base import Dialog, Form, Record, Speakers, has_keys, make_turn

_ROLES = ("user", "assistant")  # they alternate; the first text is empty if the recommender begins


def read_unicrs(record: Record, speakers: Speakers) -> Dialog | None:
    """Read an answer with its context; None if it recommends nothing."""
    if not record["rec"]:
        return None
    turns = [make_turn(_ROLES[place % 2], text) for place, text in enumerate(record["context"]) if text.strip()]
    answer = make_turn("assistant", record["resp"], items=[str(item) for item in record["rec"]])
    return Dialog([*turns, answer], record.get("dialog_id"))


UNICRS = Form(
    fits=has_keys("context", "resp", "rec"),
    reads=frozenset({"context", "resp", "rec", "dialog_id"}),
    example='{"dialog_id": "1", "context": ["Like Heat?"], "resp": "Collateral", "rec": ["Collateral (2004)"]}',
    read_record=read_unicrs,
)
