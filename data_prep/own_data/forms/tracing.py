"""Model calls as exported by Langfuse and LangSmith."""

from typing import Any

from convrec.data.damage import BadRecord
from data_prep.own_data.forms.base import TOOL, Dialog, Form, Record, Speakers, has_keys, make_turn

_LANGCHAIN_ROLES = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant", "system": "system", "tool": TOOL}
_LANGCHAIN_ROLES |= {"function": TOOL}


def read_langfuse(record: Record, speakers: Speakers) -> Dialog:
    """Read a trace or observation of Langfuse."""
    turns = [*_read_side(record["input"], "user"), *_read_side(record["output"], "assistant")]
    name = record.get("sessionId", record.get("session_id")) or record.get("id")
    return Dialog(turns, name, record.get("timestamp") or record.get("startTime"))


def read_langsmith(record: Record, speakers: Speakers) -> Dialog:
    """Read a run of LangSmith, named after its thread if it has one."""
    turns = [*_read_side(record["inputs"], "user"), *_read_side(record["outputs"], "assistant")]
    extra = record.get("extra") or {}
    thread = (extra.get("metadata") or {}).get("thread_id") or (extra.get("metadata") or {}).get("session_id")
    return Dialog(turns, thread or record.get("id"), record.get("start_time"))


def _read_side(side: Any, role: str) -> list[Any]:
    """Return the messages of a call's input or output; plain text is a turn of `role`."""
    if isinstance(side, str):
        return [make_turn(role, side)]
    if isinstance(side, list):
        return [message for part in side for message in _read_side(part, role)]
    if "role" in side or "content" in side:
        return [side if "role" in side else _read_langchain(side)]
    if "kwargs" in side or "data" in side:
        return [_read_langchain(side)]
    for name in ("messages", "choices", "generations", "message", "output", "text", "input"):
        if name in side:
            return _read_side(side[name][:1] if name == "choices" else side[name], role)
    name = "input" if role == "user" else "output"
    raise BadRecord("tracing.no-messages", "the %s has no messages (its keys are %s)", name, ", ".join(side))


def _read_langchain(message: dict[str, Any]) -> dict[str, Any]:
    """Read a LangChain message in any of its serialised forms."""
    content = message.get("kwargs") or message.get("data") or message
    kind = str(content.get("type", message.get("type")))
    return make_turn(_LANGCHAIN_ROLES[kind], content["content"])


LANGFUSE = Form(
    fits=lambda record: has_keys("input", "output")(record) and not {"instruction", "conversation"} & record.keys(),
    reads=frozenset({"input", "output", "sessionId", "session_id", "id", "timestamp", "startTime"}),
    example='{"input": [{"role": "user", "content": "Something like Heat?"}], "output": {"role": "assistant", ...}}',
    read_record=read_langfuse,
)
LANGSMITH = Form(
    fits=has_keys("inputs", "outputs"),
    reads=frozenset({"inputs", "outputs", "id", "start_time", "extra"}),
    example='{"inputs": {"messages": [...]}, "outputs": {"generations": [...]}}',
    read_record=read_langsmith,
)
