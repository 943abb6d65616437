"""The client for one endpoint: concurrent requests, retries, and a cache of answers."""

import asyncio
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from convrec.base.errors import UserError
from convrec.base.progress import Progress
from convrec.llm.answers import Answer, AnswerCache, Messages, NoAnswer, Usage, make_request, read_reply


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible endpoint. The key never appears in a repr, log line, cache entry or error message.

    Attributes:
        base_url: the address up to `/v1`.
        model: the name under which it serves the model.
        api_key: "" if the server needs none.
    """

    base_url: str
    model: str
    api_key: str = field(default="", repr=False)


def endpoint(role: str = "llm", model: str = "") -> Endpoint:
    """Read the endpoint of a role from the environment.

    Args:
        role: its variables are ROLE_BASE_URL and so on, else those of LLM.
        model: the model to ask for; "": ROLE_MODEL.

    Raises:
        UserError: a variable is missing or invalid; the message names it.
    """
    url_variable = f"{role.upper()}_BASE_URL"
    prefix = role.upper() if os.environ.get(url_variable, "").strip() else "LLM"
    url = os.environ.get(f"{prefix}_BASE_URL", "").strip()
    if not url:
        variables = "LLM_BASE_URL" if url_variable == "LLM_BASE_URL" else f"LLM_BASE_URL or {url_variable}"
        raise UserError(
            "llm.missing-url",
            f"{variables} is not set. Set it to the {role}'s OpenAI-compatible endpoint, such as "
            "http://127.0.0.1:8000/v1",
        )
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        public_url = parts._replace(netloc=parts.hostname or "").geturl()
        raise UserError("llm.invalid-url", f"{prefix}_BASE_URL={public_url}: expected an http or https URL")
    if parts.username or parts.password:
        raise UserError(
            "llm.key-in-url", f"{prefix}_BASE_URL contains a user name or password. Put the key into {prefix}_API_KEY"
        )
    model = model or os.environ.get(f"{prefix}_MODEL", "").strip()
    if not model:
        raise UserError(
            "llm.missing-model", f"{prefix}_MODEL is not set. Set it to the name under which {url} serves the {role}"
        )
    return Endpoint(url, model, os.environ.get(f"{prefix}_API_KEY", "").strip())


LONGEST_PAUSE = 120.0  # seconds; a server that asks for more enforces a quota, not a rate, and the request fails
UNANSWERED_IN_A_ROW = 10  # requests without an answer, after which a plain question tests the server
PLAIN_QUESTION = [{"role": "user", "content": "Say hello."}]
MAX_RETRIES = 14  # of the library, whose longest back-off is 8 s: over a minute in total
REFUSED_SAMPLING = ("max_tokens", "temperature")  # reasoning models refuse these
RETRY_COUNT = "x-stainless-retry-count"  # the library's header


def back_off(retry: int) -> float:
    """Return the seconds to hold all requests before a retry, counted from 0: 0.5, 1, 2, ... 30. Eight total 91."""
    return min(0.5 * 2.0**retry, 30.0)


class _RequestFailed(UserError):
    """A request got no answer despite retries.

    Args:
        message: the sentence for the user.
        status: HTTP status of the last reply, 0 without one.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__("llm.no-answer", message)
        self.status = status


def _convert_sampling(sampling: dict[str, Any]) -> dict[str, Any]:
    """Convert parameters for reasoning models: OpenAI's accept `max_completion_tokens` but no temperature."""
    converted = {name: value for name, value in sampling.items() if name not in REFUSED_SAMPLING}
    if "max_tokens" in sampling:
        converted["max_completion_tokens"] = sampling["max_tokens"]
    return converted


def _is_about_sampling(error: Exception) -> bool:
    """Return whether an endpoint refuses a request because of max_tokens or temperature."""
    message = str(error).lower()
    is_unsupported = any(word in message for word in ("unsupported", "not supported", "does not support"))
    return is_unsupported and any(name in message for name in REFUSED_SAMPLING)


class LLM:
    """Client for one endpoint. Not thread-safe; several processes may share a cache."""

    def __init__(
        self,
        endpoint: Endpoint,
        cache: str | os.PathLike,
        *,
        concurrency: int = 16,
        max_retries: int = MAX_RETRIES,
        timeout: float = 600.0,
        most_failed: float = 0.0,
    ) -> None:
        """Check the limits; nothing is sent yet.

        Args:
            endpoint: where the model is served.
            cache: folder for the answers.
            concurrency: requests in flight at once.
            max_retries: retries of a request before it fails.
            timeout: seconds for one answer; a request that takes longer is retried.
            most_failed: share of all questions that may fail; their answer is then a NoAnswer. 0: the first failure
                stops the run.

        Raises:
            UserError: a limit is out of range.
        """
        if concurrency < 1 or max_retries < 0 or timeout <= 0:
            raise UserError(
                "llm.invalid-limits",
                f"concurrency={concurrency}, max_retries={max_retries}, timeout={timeout}: expected at least 1, at "
                "least 0, and above 0",
            )
        self.endpoint = endpoint
        self.cache = AnswerCache(cache)
        self.concurrency = concurrency
        self.max_retries = max_retries
        self.timeout = timeout
        self.most_failed = most_failed
        self.usage = Usage()
        self.failures: dict[Path, tuple[str | Messages, NoAnswer]] = {}  # of all calls, by the answer's path
        self._questions = 0  # of all calls
        self._not_before = 0.0  # monotonic time before which no request is sent
        self._unanswered = 0  # refusals and failures since the last answer
        self._refuses_sampling = False  # whether the model refuses max_tokens or temperature

    def ask_all(self, prompts: Sequence[str | Messages], *, label: str = "asking", **sampling: Any) -> list[Answer]:
        """Return one answer per prompt, in order.

        A request that the server calls malformed or too long gives an empty answer with `error`, a request without an
        answer despite retries a NoAnswer; neither is cached. Not to be called where an event loop already runs.

        Args:
            prompts: texts or messages.
            label: text of the progress bar.
            sampling: the endpoint's own parameters (temperature, max_tokens, ...).

        Raises:
            UserError: the server cannot be reached, refuses the key, the model or everything, or more than
                `most_failed` of the questions get no answer. Earlier answers are cached and not requested again.
        """
        try:
            return asyncio.run(self._ask_all(prompts, label, sampling))
        except BaseException as error:  # including Ctrl-C: no summary will report the cost
            print(f"{label}: stopped after {self.usage}", file=sys.stderr)
            if isinstance(error, _RequestFailed):
                raise UserError("llm.no-answer", f"{error}. Answers so far are cached; run again to continue") from None
            raise

    async def _ask_all(self, prompts: Sequence[str | Messages], label: str, sampling: dict[str, Any]) -> list[Answer]:
        self._unanswered = 0
        self._questions += len(prompts)
        requests = [make_request(self.endpoint.model, prompt, sampling) for prompt in prompts]
        paths = [self.cache.path(request) for request in requests]  # equal requests share a path
        prompt_by_path = dict(zip(paths, prompts, strict=True))
        request_by_path = dict(zip(paths, requests, strict=True))
        answers = self._find_answers(request_by_path)
        missing = {path: request for path, request in request_by_path.items() if path not in answers}
        self.usage.cached += len(paths) - len(missing)
        queue = iter(missing.items())
        client = self._open_client()

        async def work(bar: Progress) -> None:
            for path, request in queue:  # all workers share the iterator
                answers[path] = await self._answer(client, path, request, prompt_by_path[path])
                bar.set_postfix_str(str(self.usage), refresh=False)
                bar.update()

        async with client:
            with Progress(total=len(missing), desc=label, unit="answer", note=self._note) as bar:
                try:
                    async with asyncio.TaskGroup() as group:
                        for _ in range(self.concurrency):
                            group.create_task(work(bar))
                except ExceptionGroup as errors:
                    raise errors.exceptions[0] from None
            if self._unanswered:
                await self._check_server(client, sampling)
        return [answers[path] for path in paths]

    def _find_answers(self, request_by_path: Mapping[Path, dict[str, Any]]) -> dict[Path, Answer]:
        """Return the cached answers by path, and the placeholders of requests that failed before."""
        answers: dict[Path, Answer] = {
            path: no_answer for path, (_, no_answer) in self.failures.items() if path in request_by_path
        }
        for path, request in request_by_path.items():
            cached = self.cache.get(request)
            if cached:
                answers[path] = cached
        return answers

    def _open_client(self) -> Any:
        """Return the library's client, with hooks that hold its requests after a rate limit."""
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        client: Any = AsyncOpenAI(
            base_url=self.endpoint.base_url,
            api_key=self.endpoint.api_key or "none",  # the library requires a key; local servers ignore it
            max_retries=self.max_retries,
            timeout=self.timeout,
            http_client=DefaultAsyncHttpxClient(
                event_hooks={
                    "request": [self._before_request],
                    "response": [lambda reply: self._after_reply(reply, client._parse_retry_after_header)],
                }
            ),
        )
        return client

    def _note(self) -> str:
        wait = self._not_before - time.monotonic()
        return f"{self.usage}" + (f"; waits {wait:.0f} s (rate limit)" if wait > 1 else "")

    async def _answer(self, client: Any, path: Path, request: dict[str, Any], prompt: str | Messages) -> Answer:
        try:
            answer = await self._ask(client, request["messages"], request["sampling"])
        except _RequestFailed as failure:
            answer = self._record_failure(path, prompt, failure)
        if not answer.error:
            self.cache.put(request, answer)
            self._unanswered = 0
        else:
            self._unanswered += 1
            if self._unanswered % UNANSWERED_IN_A_ROW == 0:
                await self._check_server(client, request["sampling"])
        return answer

    def _record_failure(self, path: Path, prompt: str | Messages, failure: _RequestFailed) -> NoAnswer:
        """Return the placeholder for a failed answer. Raises UserError if too many have failed."""
        if not self.most_failed:
            raise failure
        answer = NoAnswer("", error=str(failure), status=failure.status)
        self.failures[path] = prompt, answer
        self.usage.failed += 1
        if self.usage.failed > self.most_failed * self._questions:
            counts = f"{self.usage.failed:,} of {self._questions:,} questions have no answer"
            raise _RequestFailed(f"{counts}, more than the share of {self.most_failed:g} that may fail: {failure}", 0)
        return answer

    async def _check_server(self, client: Any, sampling: dict[str, Any]) -> None:
        """Send a plain question with the same settings, to find out whether the server refuses everything.

        If it is answered, the refusals and failures are due to their conversations, otherwise to a setting, an account
        or a dead server.

        Raises:
            UserError: the plain question gets no answer.
        """
        answer = await self._ask(client, PLAIN_QUESTION, sampling)
        if answer.error:
            raise UserError(
                "llm.refused-everything",
                f"{answer.error} ({self._unanswered} requests in a row, and a plain question)",
            )
        self._unanswered = 0

    async def _ask(self, client: Any, messages: Messages, sampling: dict[str, Any]) -> Answer:
        import openai

        parameters = _convert_sampling(sampling) if self._refuses_sampling else sampling
        body = {"model": self.endpoint.model, "messages": messages} | parameters
        body |= body.pop("extra_body", {})
        self.usage.asked += 1
        try:
            reply = await client.post("/chat/completions", body=body, cast_to=str)
        except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
            if parameters != _convert_sampling(sampling) and _is_about_sampling(error):
                self._refuses_sampling = True
                return await self._ask(client, messages, sampling)
            self.usage.refused += 1
            return Answer("", error=self._describe_error("refused the request", error))
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            message = self._describe_error("does not accept the key (check the *_API_KEY variable)", error)
            raise UserError("llm.rejected-key", message) from None
        except openai.NotFoundError as error:
            message = self._describe_error("does not know the URL or the model", error)
            raise UserError("llm.unknown-model", message) from None
        except (openai.APIConnectionError, openai.APIStatusError) as error:
            retries = error.request.headers[RETRY_COUNT]
            message = self._describe_error(f"gave no answer after {retries} retries", error)
            raise _RequestFailed(message, getattr(error, "status_code", 0)) from None
        answer = read_reply(reply)
        assert answer is not None, "_after_reply turns other replies into a 502"
        self.usage.prompt_tokens += answer.prompt_tokens
        self.usage.completion_tokens += answer.completion_tokens
        return answer

    # ---- hooks for each request of the library, including retries

    async def _before_request(self, request: Any) -> None:
        while (wait := self._not_before - time.monotonic()) > 0:
            await asyncio.sleep(wait)

    async def _after_reply(self, reply: Any, parse_retry_after: Callable[[Any], float | None]) -> None:
        """Hold all requests after a 429, or after a 503 that says how long to wait.

        They are held as long as the server asks, but at least for the back-off: if many requests continue after only a
        few milliseconds, most exceed the limit again. A reply that is not a completion becomes a 502, which is retried.
        """
        await reply.aread()
        status = reply.status_code
        retry_after = parse_retry_after(reply.headers) or 0.0
        retry_after = retry_after if 0 < retry_after < math.inf else 0.0
        self.usage.rate_limited += status == 429
        if reply.is_success:
            reply.status_code = status if read_reply(reply.content) else 502
        elif retry_after > LONGEST_PAUSE:
            reply.headers["x-should-retry"] = "false"  # OpenAI's own header
        elif status == 429 or (status == 503 and retry_after):
            pause = max(retry_after, back_off(int(reply.request.headers[RETRY_COUNT])))
            self._not_before = max(self._not_before, time.monotonic() + pause)

    def _describe_error(self, problem: str, error: Exception) -> str:
        """Return a message without the key."""
        text = f"{self.endpoint.base_url} ({self.endpoint.model}) {problem}: {type(error).__name__}: {error}"
        key = self.endpoint.api_key
        return text.replace(key, "***") if key else text
