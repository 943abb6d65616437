"""A model's answers: their content, their cost, and their cache."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from convrec.base.files import write_text
from convrec.base.same_request import digest
from convrec.data.chat import split_control_tokens

Messages = list[dict[str, str]]


def merge_sampling(defaults: Mapping[str, Any], overrides: Mapping[str, Any] | None) -> dict[str, Any]:
    """Merge a request's sampling parameters with the defaults.

    Args:
        defaults: parameter -> value.
        overrides: parameter -> value, which wins over the default; None for no overrides.

    Returns:
        The parameters to send. One whose value is None is left out, so the endpoint's own default applies.
    """
    parameters = {**defaults, **(overrides or {})}
    return {name: value for name, value in parameters.items() if value is not None}


def make_request(model: str, prompt: str | Messages, sampling: dict[str, Any]) -> dict[str, Any]:
    """Make the request that determines an answer, and the key of its cache.

    Args:
        model: the name under which the endpoint serves it.
        prompt: a user's message, or several messages.
        sampling: sampling parameters.

    Returns:
        {"model", "messages", "sampling"}; control tokens in the messages are split, so that they are plain text.
    """
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return {"model": model, "messages": split_control_tokens(messages), "sampling": sampling}


@dataclass(frozen=True)
class Answer:
    """A model's answer.

    Attributes:
        text: "" if the model wrote nothing or the server refused the request.
        finish_reason: as the server reports it.
        prompt_tokens: tokens of the prompt.
        completion_tokens: tokens of the answer.
        error: why the server refused the request, else "".
    """

    text: str
    finish_reason: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    error: str = ""


@dataclass(frozen=True)
class NoAnswer(Answer):
    """Placeholder for an answer that did not arrive despite retries. Never cached.

    Attributes:
        status: HTTP status; 0 if the server did not reply. `error` has the server's message.
    """

    status: int = 0


@dataclass
class Usage:
    """The requests and tokens of one client. Cached answers cost no tokens.

    Attributes:
        asked: requests that were sent, without the retries of the library.
        cached: questions that needed no request: their answer was cached, or an equal question was asked.
        refused: requests that the server called malformed or too long.
        failed: questions without an answer despite retries.
        rate_limited: replies with status 429.
        prompt_tokens: tokens of the prompts, as the server counts them.
        completion_tokens: tokens of the answers, as the server counts them.
    """

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
    """A cache with one JSON file per answer, named by the digest of its request.

    Files are written atomically, so that concurrent readers, writers and crashes do no harm; a file that is damaged
    anyway counts as missing.

    Args:
        folder: made when the first answer is cached.
    """

    def __init__(self, folder: str | os.PathLike) -> None:
        self.folder = Path(folder)

    def path(self, request: dict[str, Any]) -> Path:
        """Return the file of the answer to a request."""
        key = digest(request)
        return self.folder / key[:2] / f"{key}.json"

    def get(self, request: dict[str, Any]) -> Answer | None:
        """Return the cached answer to a request, None if there is none."""
        try:
            return Answer(**json.loads(self.path(request).read_bytes())["answer"])
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return None

    def put(self, request: dict[str, Any], answer: Answer) -> None:
        """Cache the answer to a request."""
        write_text(self.path(request), json.dumps({"request": request, "answer": asdict(answer)}))


def read_reply(content: str | bytes) -> Answer | None:
    """Return the answer in the JSON of a chat completion, None for anything else."""
    try:
        reply = json.loads(content)
        choice = reply["choices"][0]
        usage = reply.get("usage") or {}
        text = choice["message"].get("content") or ""
        finish_reason = choice.get("finish_reason") or ""
        prompt_tokens = usage.get("prompt_tokens") or 0
        completion_tokens = usage.get("completion_tokens") or 0
    except (ValueError, AttributeError, LookupError, TypeError):
        return None
    if not isinstance(text, str):
        return None
    return Answer(text, finish_reason, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens)
