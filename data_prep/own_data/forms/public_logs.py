"""Public logs of chats with models: LMSYS-Chat-1M, WildChat and the trees of OpenAssistant."""

from typing import Any

from data_prep.own_data.forms.base import Dialog, Form, Record, Speakers, make_turn


def read_public_log(record: Record, speakers: Speakers) -> Dialog:
    """Read `conversation`, with the names that LMSYS and WildChat use for id and time."""
    name = record.get("conversation_id", record.get("conversation_hash"))
    return Dialog(record["conversation"], name, record.get("timestamp", record.get("tstamp")))


def read_oasst(record: Record, speakers: Speakers) -> Dialog:
    """Read the tree's best branch: at each step the reply with the best rank, or the first without ranks."""
    turns = []
    message: Any = record["prompt"]
    while message:
        turns.append(make_turn(speakers.find_role(message["role"]), message["text"]))
        replies = [reply for reply in message.get("replies") or () if not reply.get("deleted")]
        message = min(replies, key=_get_rank, default=None)
    return Dialog(turns, record["message_tree_id"])


def _get_rank(reply: dict[str, Any]) -> float:
    rank = reply.get("rank")
    return float("inf") if rank is None else rank


def _fits_public_log(record: Record) -> bool:
    is_log = isinstance(record.get("conversation"), list) and {"model", "turn"} <= record.keys()
    return is_log and not {"ground_truth", "demonstration"} & record.keys()


PUBLIC_LOG = Form(
    fits=_fits_public_log,
    reads=frozenset({"conversation", "conversation_id", "conversation_hash", "timestamp", "tstamp"}),
    example='{"conversation_id": "1", "model": "...", "turn": 1, "conversation": [{"role": "user", "content": "..."}]}',
    read_record=read_public_log,
)
OASST = Form(
    fits=lambda record: "message_tree_id" in record and isinstance(record.get("prompt"), dict),
    reads=frozenset({"message_tree_id", "prompt"}),
    example='{"message_tree_id": "1", "prompt": {"role": "prompter", "text": "...", "replies": [...]}}',
    read_record=read_oasst,
)
