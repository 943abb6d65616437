"""Fine-tuning files of one question and its answer: Alpaca, and prompt and completion."""

import re
from typing import Any

from data_prep.own_data.forms.base import Dialog, Form, Record, Speakers, has_keys, make_turn

# OpenAI's first fine-tuning guide recommended these ends of prompts and completions.
_PROMPT_END = re.compile(r"\s*(?:###|->)\s*\Z")
_COMPLETION_END = re.compile(r"\s*(?:###|\bEND)\s*\Z")


def read_alpaca(record: Record, speakers: Speakers) -> Dialog:
    """Read `history`, then instruction with input as the question and output as the answer."""
    question = "\n".join(record[name] for name in ("instruction", "input") if record.get(name))
    pairs = [*(record.get("history") or ()), (question, record["output"])]
    return Dialog(
        [turn for user, answer in pairs for turn in (make_turn("user", user), make_turn("assistant", answer))]
    )


def read_prompt_completion(record: Record, speakers: Speakers) -> Dialog:
    """Read prompt and completion, each a text or a list of messages."""
    prompt = _read_part("user", record["prompt"], _PROMPT_END)
    return Dialog([*prompt, *_read_part("assistant", record["completion"], _COMPLETION_END)])


def _read_part(role: str, part: Any, end: re.Pattern[str]) -> list[Any]:
    return part if isinstance(part, list) else [make_turn(role, end.sub("", part))]


ALPACA = Form(
    fits=has_keys("instruction", "output"),
    reads=frozenset({"instruction", "input", "output", "history", "system"}),
    example='{"instruction": "Something like Heat?", "input": "", "output": "Collateral (2004)\\nDrive (2011)"}',
    read_record=read_alpaca,
)
PROMPT_COMPLETION = Form(
    fits=has_keys("prompt", "completion"),
    reads=frozenset({"prompt", "completion"}),
    example='{"prompt": "Something like Heat?", "completion": "Collateral (2004)\\nDrive (2011)"}',
    read_record=read_prompt_completion,
)
