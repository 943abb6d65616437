"""A model's answers: what is in one, what all of them cost, and where they are kept."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from convrec.files import write_text

Messages = list[dict[str, str]]


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
    """What one client did. Tokens and cost are those paid for now: cached answers cost nothing."""

    asked: int = 0
    cached: int = 0
    refused: int = 0
    failed: int = 0
    rate_limited: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None

    def __str__(self) -> str:
        text = (
            f"{self.asked} asked, {self.cached} from the cache, {self.prompt_tokens} + {self.completion_tokens} tokens"
        )
        text += f", {self.cost:.4f} paid" if self.cost is not None else ""
        text += f", {self.rate_limited} rate limits" if self.rate_limited else ""
        text += f", {self.refused} refused" if self.refused else ""
        return text + (f", {self.failed} without an answer" if self.failed else "")


class AnswerCache:
    """One JSON file an answer, named by the SHA-256 of its request. Files appear whole, so
    readers, writers and a crash cannot hurt each other; a file that is damaged all the same counts as absent."""

    def __init__(self, folder: str | os.PathLike) -> None:
        self.folder = Path(folder)

    def path(self, request: dict[str, Any]) -> Path:
        text = json.dumps(request, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        return self.folder / key[:2] / f"{key}.json"

    def get(self, request: dict[str, Any]) -> Answer | None:
        try:
            return Answer(**json.loads(self.path(request).read_bytes())["answer"])
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return None

    def put(self, request: dict[str, Any], answer: Answer) -> None:
        write_text(self.path(request), json.dumps({"request": request, "answer": asdict(answer)}))


class BadReply(Exception):
    """Status 200, but no chat completion: an endpoint of another kind, or one in trouble."""


def read_reply(reply: Any) -> Answer:
    """The answer in a reply of the `openai` library, which checks nothing; raises BadReply where there is none."""
    try:
        choice, used = reply.choices[0], reply.usage
        text = choice.message.content or ""
        tokens = (used.prompt_tokens or 0, used.completion_tokens or 0) if used else (0, 0)
    except (AttributeError, LookupError, TypeError):
        raise BadReply(f"no message in its `choices`: {str(reply)[:300]}") from None
    if not isinstance(text, str):
        raise BadReply(f"a message that is no text: {str(text)[:300]}")
    return Answer(text, choice.finish_reason or "", *tokens)
