"""Gemini and Vertex AI: `contents` of {role, parts}, from a tuning file or a logged request and response."""

from typing import Any

from data_prep.own_data.forms.base import TOOL, Dialog, Form, Record, Speakers, make_turn


def read_gemini(record: Record, speakers: Speakers) -> Dialog:
    """Read `contents`, and the first candidate of the response if there is one."""
    request = record.get("request", record)
    answers = (record.get("response") or {}).get("candidates", [])[:1]
    contents = [*request["contents"], *(candidate["content"] for candidate in answers)]
    return Dialog([_read_content(content, speakers) for content in contents])


def _read_content(content: dict[str, Any], speakers: Speakers) -> dict[str, Any]:
    texts = [part["text"] for part in content["parts"] if "text" in part and not part.get("thought")]
    role = speakers.find_role(content.get("role", "user"), otherwise=TOOL)
    return make_turn(role if texts else TOOL, "\n".join(texts))


def _fits(record: Record) -> bool:
    request = record.get("request")
    return "contents" in record or (isinstance(request, dict) and "contents" in request)


GEMINI = Form(
    fits=_fits,
    reads=frozenset({"contents", "systemInstruction", "system_instruction", "request", "response"}),
    example='{"contents": [{"role": "user", "parts": [{"text": "Something like Heat?"}]}, {"role": "model", ...}]}',
    read_record=read_gemini,
)
