"""Asks one endpoint: many requests at once, with retries, and every answer kept."""

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
    """Where a model answers. The key is in no repr, log line, cache entry or error message."""

    base_url: str
    model: str
    api_key: str = field(default="", repr=False)


def endpoint(role: str = "llm", model: str = "") -> Endpoint:
    """The endpoint of a role from the environment, of this model where one is named. Raises UserError naming the
    variable to set."""
    url_variable = f"{role.upper()}_BASE_URL"
    prefix = role.upper() if os.environ.get(url_variable, "").strip() else "LLM"
    url, its_model, key = (os.environ.get(f"{prefix}_{name}", "").strip() for name in ("BASE_URL", "MODEL", "API_KEY"))
    if not url:
        wanted = "LLM_BASE_URL" if url_variable == "LLM_BASE_URL" else f"LLM_BASE_URL or {url_variable}"
        raise UserError(
            f"{wanted} is not set: give the {role}'s OpenAI-compatible address, like http://127.0.0.1:8000/v1"
        )
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"{prefix}_BASE_URL={parts._replace(netloc=parts.hostname or '').geturl()}: an http(s) address")
    if parts.username or parts.password:
        raise UserError(f"{prefix}_BASE_URL holds a user name or password: put the key into {prefix}_API_KEY")
    if not (model := model or its_model):
        raise UserError(f"{prefix}_MODEL is not set: the name under which {url} serves the {role}")
    return Endpoint(url, model, key)


LONGEST_PAUSE = 120.0  # seconds; a server that wants more has a quota, not a rate: such a request is given up
UNANSWERED_IN_A_ROW = 10  # requests that are refused or fail before the server is asked whether it takes any
PLAIN_QUESTION = [{"role": "user", "content": "Say hello."}]
MAX_RETRIES = 14  # of the library, whose longest back-off is 8 s: over a minute
REFUSED_SAMPLING = ("max_tokens", "temperature")  # by models that reason
RETRY_COUNT = "x-stainless-retry-count"  # the library's header


def back_off(retry: int) -> float:
    """Seconds that all requests are held before the retry-th retry (from 0): 0.5, 1, 2, ... 30. Eight are 91."""
    return min(0.5 * 2.0**retry, 30.0)


class _GivenUp(UserError):
    """A request got no answer in spite of the retries."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def _without_sampling(sampling: dict[str, Any]) -> dict[str, Any]:
    """The same settings for a model that reasons: OpenAI's take `max_completion_tokens` and no temperature."""
    kept = {name: value for name, value in sampling.items() if name not in REFUSED_SAMPLING}
    if "max_tokens" in sampling:
        kept["max_completion_tokens"] = sampling["max_tokens"]
    return kept


def _is_about_sampling(error: Exception) -> bool:
    """Whether an endpoint refuses a request since it has max_tokens or temperature."""
    message = str(error).lower()
    is_unsupported = any(word in message for word in ("unsupported", "not supported", "does not support"))
    return is_unsupported and any(name in message for name in REFUSED_SAMPLING)


class LLM:
    """Asks one endpoint. Not for use from several threads at once; several processes may share a cache."""

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
        """
        Args:
            cache: folder of the answers.
            concurrency: requests in flight at once.
            max_retries: of one request, before it has failed.
            timeout: seconds for one answer; a request that takes longer is retried.
            most_failed: share of all questions that may fail; then their answer is a NoAnswer. 0: the first one stops
                the run.
        """
        if concurrency < 1 or max_retries < 0 or timeout <= 0:
            raise UserError(
                f"concurrency {concurrency}, retries {max_retries}, timeout {timeout}: at least 1, 0 and above 0"
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
        self._not_before = 0.0  # of the monotonic clock: no request goes out before it
        self._unanswered = 0  # refusals and failures since the last answer
        self._wants_own_sampling = False  # the model refuses max_tokens or temperature

    def ask_all(self, prompts: Sequence[str | Messages], *, label: str = "asking", **sampling: Any) -> list[Answer]:
        """One answer a prompt, in order; `sampling` are the endpoint's own parameters (temperature, max_tokens, ...).

        A request that the server calls malformed or too long gives an empty answer with `error`, one without an answer
        in spite of the retries a NoAnswer; neither is kept. Raises UserError when the server cannot be reached, refuses
        the key, the model or everything, or when more than `most_failed` of the questions get no answer; answers got so
        far are kept and not asked again.
        """
        try:
            return asyncio.run(self._ask_all(prompts, label, sampling))
        except BaseException as error:  # Ctrl-C as well: what was paid for is in no summary then
            print(f"{label}: stopped after {self.usage}", file=sys.stderr)
            if isinstance(error, _GivenUp):
                raise UserError(f"{error}; what was answered is kept, run again to go on") from None
            raise

    async def _ask_all(self, prompts: Sequence[str | Messages], label: str, sampling: dict[str, Any]) -> list[Answer]:
        self._unanswered = 0
        self._questions += len(prompts)
        requests = [make_request(self.endpoint.model, prompt, sampling) for prompt in prompts]
        paths = [self.cache.path(request) for request in requests]  # equal requests have one
        prompt_by_path = dict(zip(paths, prompts, strict=True))
        wanted = dict(zip(paths, requests, strict=True))
        answers = self._find_answers(wanted)
        missing = {path: request for path, request in wanted.items() if path not in answers}
        self.usage.cached += len(paths) - len(missing)
        queue = iter(missing.items())
        client = self._open_client()

        async def work(bar: Progress) -> None:
            for path, request in queue:  # one iterator for all workers
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

    def _find_answers(self, wanted: Mapping[Path, dict[str, Any]]) -> dict[Path, Answer]:
        """The answers to requests that are kept, and what stands for those that have failed before; by path."""
        answers: dict[Path, Answer] = {path: failed for path, (_, failed) in self.failures.items() if path in wanted}
        for path, request in wanted.items():
            kept = self.cache.get(request)
            if kept:
                answers[path] = kept
        return answers

    def _open_client(self) -> Any:
        """The library's client, with this one's hold around each of its requests."""
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        client: Any = AsyncOpenAI(
            base_url=self.endpoint.base_url,
            api_key=self.endpoint.api_key or "none",  # the library wants one; local servers do not look
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
        return f"{self.usage}" + (f"; waits {wait:.0f} s, as the server asked" if wait > 1 else "")

    async def _answer(self, client: Any, path: Path, request: dict[str, Any], prompt: str | Messages) -> Answer:
        try:
            answer = await self._ask(client, request["messages"], request["sampling"])
        except _GivenUp as given_up:
            answer = self._fail(path, prompt, given_up)
        if not answer.error:
            self.cache.put(request, answer)
            self._unanswered = 0
        else:
            self._unanswered += 1
            if self._unanswered % UNANSWERED_IN_A_ROW == 0:
                await self._check_server(client, request["sampling"])
        return answer

    def _fail(self, path: Path, prompt: str | Messages, given_up: _GivenUp) -> NoAnswer:
        """What stands in the answer's place; raises UserError when too many have failed."""
        if not self.most_failed:
            raise given_up
        answer = NoAnswer("", error=str(given_up), status=given_up.status)
        self.failures[path] = prompt, answer
        self.usage.failed += 1
        if self.usage.failed > self.most_failed * self._questions:
            counts = f"{self.usage.failed:,} of {self._questions:,} questions have no answer"
            raise _GivenUp(f"{counts}, more than the share of {self.most_failed:g} that may fail: {given_up}", 0)
        return answer

    async def _check_server(self, client: Any, sampling: dict[str, Any]) -> None:
        """Are refusals and failures about their conversations or about everything (a setting, an account, a server that
        is gone)? A plain question with the same settings tells; raises UserError when it gets no answer."""
        answer = await self._ask(client, PLAIN_QUESTION, sampling)
        if answer.error:
            raise UserError(f"{answer.error} ({self._unanswered} requests in a row, and a plain question)")
        self._unanswered = 0

    async def _ask(self, client: Any, messages: Messages, sampling: dict[str, Any]) -> Answer:
        import openai

        given = _without_sampling(sampling) if self._wants_own_sampling else sampling
        body = {"model": self.endpoint.model, "messages": messages} | given
        body |= body.pop("extra_body", {})
        self.usage.asked += 1
        try:
            reply = await client.post("/chat/completions", body=body, cast_to=str)
        except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
            if given != _without_sampling(sampling) and _is_about_sampling(error):
                self._wants_own_sampling = True
                return await self._ask(client, messages, sampling)
            self.usage.refused += 1
            return Answer("", error=self._say("refused the request", error))
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            raise UserError(self._say("does not take the key; see the *_API_KEY variable", error)) from None
        except openai.NotFoundError as error:
            raise UserError(self._say("does not know the address or the model", error)) from None
        except (openai.APIConnectionError, openai.APIStatusError) as error:
            said = self._say(f"gave no answer after {error.request.headers[RETRY_COUNT]} retries", error)
            raise _GivenUp(said, getattr(error, "status_code", 0)) from None
        answer = read_reply(reply)
        assert answer is not None  # or _after_reply has refused it
        self.usage.prompt_tokens += answer.prompt_tokens
        self.usage.completion_tokens += answer.completion_tokens
        return answer

    # ---- around each request of the library, a retry too

    async def _before_request(self, request: Any) -> None:
        while (wait := self._not_before - time.monotonic()) > 0:
            await asyncio.sleep(wait)

    async def _after_reply(self, reply: Any, wanted_pause: Callable[[Any], float | None]) -> None:
        """A 429, or a 503 that says how long to wait, is meant for all requests: they are held as long as the server
        asks, and for the back-off at least: of many that go on at once after the few milliseconds that a server asks
        for, most are too many again. A reply that is no completion is as good as a 502, which is retried."""
        await reply.aread()
        status = reply.status_code
        wanted = wanted_pause(reply.headers) or 0.0
        wanted = wanted if 0 < wanted < math.inf else 0.0
        self.usage.rate_limited += status == 429
        if reply.is_success:
            reply.status_code = status if read_reply(reply.content) else 502
        elif wanted > LONGEST_PAUSE:
            reply.headers["x-should-retry"] = "false"  # OpenAI's own header
        elif status == 429 or (status == 503 and wanted):
            pause = max(wanted, back_off(int(reply.request.headers[RETRY_COUNT])))
            self._not_before = max(self._not_before, time.monotonic() + pause)

    def _say(self, what: str, error: Exception) -> str:
        text = f"{self.endpoint.base_url} ({self.endpoint.model}) {what}: {type(error).__name__}: {error}"
        key = self.endpoint.api_key
        return text.replace(key, "***") if key else text
