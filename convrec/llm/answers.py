"""A model's answers: what is in one, what all of them cost, and where they are kept."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from convrec.base.files import write_text
from convrec.base.same_request import digest
from convrec.data.chat import without_control_tokens

Messages = list[dict[str, str]]


def merge_sampling(defaults: Mapping[str, Any], given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Sampling parameters of a request: the given ones beside or in place of the defaults; None: not sent."""
    parameters = {**defaults, **(given or {})}
    return {name: value for name, value in parameters.items() if value is not None}


def make_request(model: str, prompt: str | Messages, sampling: dict[str, Any]) -> dict[str, Any]:
    """All that decides an answer."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return {"model": model, "messages": without_control_tokens(messages), "sampling": sampling}


@dataclass(frozen=True)
class Answer:
    """text is empty where the model said nothing or the server refused the request (then `error` says why)."""

    text: str
    finish_reason: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    error: str = ""


@dataclass(frozen=True)
class NoAnswer(Answer):
    """In an answer's place: none came in spite of the retries. `error` has the server's words, status is 0 where it
    said nothing. Never kept."""

    status: int = 0


@dataclass
class Usage:
    """What one client did. Tokens are those paid for now: cached answers cost nothing."""

    asked: int = 0
    cached: int = 0
    refused: int = 0
    failed: int = 0
    rate_limited: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __str__(self) -> str:
        text = (
            f"{self.asked} asked, {self.cached} from the cache, {self.prompt_tokens} + {self.completion_tokens} tokens"
        )
        text += f", {self.rate_limited} rate limits" if self.rate_limited else ""
        text += f", {self.refused} refused" if self.refused else ""
        return text + (f", {self.failed} without an answer" if self.failed else "")


class AnswerCache:
    """One JSON file an answer, named by the digest of its request. Files appear whole, so readers, writers and a crash
    cannot hurt each other; a file that is damaged all the same counts as absent."""

    def __init__(self, folder: str | os.PathLike) -> None:
        self.folder = Path(folder)

    def path(self, request: dict[str, Any]) -> Path:
        key = digest(request)
        return self.folder / key[:2] / f"{key}.json"

    def get(self, request: dict[str, Any]) -> Answer | None:
        try:
            return Answer(**json.loads(self.path(request).read_bytes())["answer"])
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return None

    def put(self, request: dict[str, Any], answer: Answer) -> None:
        write_text(self.path(request), json.dumps({"request": request, "answer": asdict(answer)}))


def read_reply(content: str | bytes) -> Answer | None:
    """The answer in the JSON of a chat completion; None for anything else."""
    try:
        reply = json.loads(content)
        choice = reply["choices"][0]
        used = reply.get("usage") or {}
        text = choice["message"].get("content") or ""
        finish_reason = choice.get("finish_reason") or ""
        prompt_tokens = used.get("prompt_tokens") or 0
        completion_tokens = used.get("completion_tokens") or 0
    except (ValueError, AttributeError, LookupError, TypeError):
        return None
    if not isinstance(text, str):
        return None
    return Answer(text, finish_reason, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens)
