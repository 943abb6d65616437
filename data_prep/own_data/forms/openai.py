"""OpenAI batches, logs of the Responses API, and pairs of a preferred and a rejected answer (also TRL's)."""

from typing import Any

from convrec.data.damage import BadRecord
from data_prep.own_data.forms.base import Dialog, Form, Record, Speakers, has_keys, make_turn


def read_batch(record: Record, speakers: Speakers) -> Dialog:
    """Read a request of a batch, with its response if there is one."""
    if "body" not in record:
        raise BadRecord(
            "openai.no-request", "a response without its request; give the file from which the batch was made"
        )
    request = record["body"]
    answer = record["response"]["body"] if record.get("response") else {}
    if "messages" in request:
        turns = [*request["messages"], *(choice["message"] for choice in answer.get("choices", [])[:1])]
    else:
        turns = [*_read_input(request["input"]), *_read_output(answer.get("output", []))]
    return Dialog(turns, record["custom_id"])


def read_response(record: Record, speakers: Speakers) -> Dialog:
    """Read a response of the Responses API, stored with its input."""
    if "input" not in record:
        raise BadRecord(
            "openai.no-input",
            "a response without its input; store both (a response only has the id of the previous one)",
        )
    turns = [*_read_input(record["input"]), *_read_output(record["output"])]
    return Dialog(turns, record.get("conversation") or record.get("id"), record.get("created_at"))


def read_preference(record: Record, speakers: Speakers) -> Dialog:
    """Read the conversation with the preferred answer."""
    if "chosen" not in record:
        return Dialog([*record["input"]["messages"], *record["preferred_output"]])
    if "prompt" not in record:  # both answers include the conversation
        return Dialog(record["chosen"])
    prompt = record["prompt"]
    chosen = record["chosen"]
    question = [make_turn("user", prompt)] if isinstance(prompt, str) else prompt
    answer = [make_turn("assistant", chosen)] if isinstance(chosen, str) else chosen
    return Dialog([*question, *answer])


def _read_input(said: Any) -> list[Any]:
    if isinstance(said, str):
        return [make_turn("user", said)]
    return [part for part in said if part.get("type", "message") == "message"]


def _read_output(parts: Any) -> list[Any]:
    return [part for part in parts if part["type"] == "message"]


OPENAI_BATCH = Form(
    fits=has_keys("custom_id"),
    reads=frozenset({"custom_id", "body", "response"}),
    example='{"custom_id": "1", "body": {"messages": [...]}, "response": {"body": {"choices": [...]}}}',
    read_record=read_batch,
)
OPENAI_RESPONSES = Form(
    fits=lambda record: record.get("object") == "response" and "output" in record,
    reads=frozenset({"object", "input", "output", "id", "conversation", "created_at"}),
    example='{"object": "response", "input": [...], "output": [{"type": "message", ...}]}',
    read_record=read_response,
)
PREFERENCE = Form(
    fits=lambda record: {"chosen", "rejected"} <= record.keys() or {"input", "preferred_output"} <= record.keys(),
    reads=frozenset({"prompt", "chosen", "rejected", "input", "preferred_output", "non_preferred_output"}),
    example='{"prompt": [...], "chosen": [...], "rejected": [...]}',
    read_record=read_preference,
)
