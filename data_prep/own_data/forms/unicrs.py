"""UniCRS and iEvaLM: a record per answer, with what was said before, the answer and what it recommends."""

from data_prep.own_data.forms.base import Dialog, Form, Record, Speakers, has_keys, turn

_ROLES = ("user", "assistant")  # of the texts by turns; an empty one stands where the recommender begins


def read_unicrs(record: Record, speakers: Speakers) -> Dialog | None:
    if not record["rec"]:
        return None
    turns = [turn(_ROLES[place % 2], text) for place, text in enumerate(record["context"]) if text.strip()]
    answer = turn("assistant", record["resp"], items=[str(item) for item in record["rec"]])
    return Dialog([*turns, answer], record.get("dialog_id"))


UNICRS = Form(
    fits=has_keys("context", "resp", "rec"),
    reads=frozenset({"context", "resp", "rec", "dialog_id"}),
    example='{"dialog_id": "1", "context": ["Like Heat?"], "resp": "Collateral", "rec": ["Collateral (2004)"]}',
    read_record=read_unicrs,
)
