"""An asynchronous client of any OpenAI-compatible chat endpoint (teacher, judge), with every answer kept on disk.

The address comes from the environment: LLM_BASE_URL (`https://host/v1`), LLM_MODEL and, where the server wants one,
LLM_API_KEY. A role has an endpoint of its own when its ROLE_BASE_URL is set (TEACHER_BASE_URL, JUDGE_BASE_URL, ...);
then ROLE_MODEL and ROLE_API_KEY go with it and nothing of LLM_* is used, so that no key is sent to another host.

    llm = LLM(endpoint("teacher"), cache="data/answers", concurrency=16)
    answers = llm.ask_all(prompts, label="teacher", temperature=0.0, max_tokens=512)
    print(llm.usage)

The `openai` library sends. What is added: a bound on requests in flight, a pause of all of them when one is told to
wait, equal requests asked once, the cache, and retries that outlast a limit a minute (the library's own end after 40
seconds, and do not count a broken reply with status 200): lost connections, 408, 409, 429, 5xx, what is no completion.
The cache is keyed by what determines an answer (model, messages, sampling parameters; not the address), so give a model
that you trained again another name. A refusal is the server's, so its address is in the key too.
"""

import asyncio
import hashlib
import inspect
import itertools
import json
import math
import os
import random
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from email.utils import mktime_tz, parsedate_tz
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tqdm import tqdm

from convrec.errors import UserError
from convrec.files import write_text

Messages = list[dict[str, str]]

LONGEST_PAUSE = 120.0  # seconds; a server that wants more has a quota, not a rate: such a request is given up
REFUSED_IN_A_ROW = 10  # requests the server calls malformed before it is asked whether it takes any
PLAIN_QUESTION = [{"role": "user", "content": "Say hello."}]


@dataclass(frozen=True)
class Endpoint:
    """Where a model answers. The key is in no repr, log line, cache entry or error message."""

    base_url: str
    model: str
    api_key: str = field(default="", repr=False)


def endpoint(role: str = "llm") -> Endpoint:
    """The endpoint of a role from the environment; raises UserError naming the variable to set."""
    url_variable = f"{role.upper()}_BASE_URL"
    prefix = role.upper() if os.environ.get(url_variable, "").strip() else "LLM"
    url, model, key = (os.environ.get(f"{prefix}_{name}", "").strip() for name in ("BASE_URL", "MODEL", "API_KEY"))
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
    if not model:
        raise UserError(f"{prefix}_MODEL is not set: the name under which {url} serves the {role}")
    return Endpoint(url, model, key)


@dataclass(frozen=True)
class Answer:
    """text is empty where the model said nothing or the server refused the request (then `error` says why)."""

    text: str
    finish_reason: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    error: str = ""


@dataclass
class Usage:
    """What one client did. Tokens and cost are those paid for now: cached answers cost nothing."""

    asked: int = 0
    cached: int = 0
    refused: int = 0
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
        return text + (f", {self.refused} refused" if self.refused else "")


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


def back_off(retry: int) -> float:
    """Seconds before the retry-th retry (from 0): 0.5, 1, 2, ... 30, less up to a quarter. Eight are 68 at least."""
    return min(0.5 * 2.0**retry, 30.0) * random.uniform(0.75, 1.0)


def wanted_pause(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server asks to wait, by retry-after-ms or by Retry-After in seconds or as a date; None without."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        return seconds if math.isfinite(seconds) and seconds > 0 else None
    date = parsedate_tz(headers.get("retry-after", ""))
    try:
        seconds = mktime_tz(date) - time.time() if date else 0.0
    except (ValueError, OverflowError):  # a 13th month
        return None
    return seconds if seconds > 0 else None


class LLM:
    """Asks one endpoint. Not for use from several threads at once; several processes may share a cache."""

    def __init__(
        self,
        endpoint: Endpoint,
        cache: str | os.PathLike,
        *,
        concurrency: int = 16,
        max_retries: int = 8,
        timeout: float = 600.0,
        price: Sequence[float] | None = None,
    ) -> None:
        """
        Args:
            cache: folder of the answers.
            concurrency: requests in flight at once.
            max_retries: of one request, before the run stops.
            timeout: seconds for one answer; a request that takes longer is retried.
            price: of a million prompt tokens and a million completion tokens, in any currency.
        """
        if concurrency < 1 or max_retries < 0 or timeout <= 0:
            raise UserError(
                f"concurrency {concurrency}, retries {max_retries}, timeout {timeout}: at least 1, 0 and above 0"
            )
        self.endpoint, self.cache = endpoint, AnswerCache(cache)
        self.concurrency, self.max_retries, self.timeout, self.price = concurrency, max_retries, timeout, price
        self.usage = Usage(cost=None if price is None else 0.0)
        self._not_before = 0.0  # of the monotonic clock: no request goes out before it
        self._refused: list[tuple[dict[str, Any], Answer]] = []  # since the last answer; not in the cache yet

    def ask_all(self, prompts: Iterable[str | Messages], *, label: str = "asking", **sampling: Any) -> list[Answer]:
        """One answer a prompt, in order; `sampling` are the endpoint's own parameters (temperature, max_tokens, ...).

        Prompts are drawn as they are needed. A request that the server calls malformed or too long gives an empty
        answer with `error`, which is cached once the server has answered something else. Raises UserError when the
        server cannot be reached, refuses the key, the model or everything, or does not answer in spite of the retries;
        answers got so far are kept and not asked again.
        """
        try:
            return asyncio.run(self._ask_all(prompts, label, sampling))
        except BaseException:  # Ctrl-C as well: what was paid for is in no summary then
            print(f"{label}: stopped after {self.usage}", file=sys.stderr)
            raise

    async def _ask_all(self, prompts: Iterable[str | Messages], label: str, sampling: dict[str, Any]) -> list[Answer]:
        from openai import AsyncOpenAI

        self._refused = []
        answers: dict[int, Answer] = {}
        in_flight: dict[Path, asyncio.Future[Answer]] = {}
        total = len(prompts) if isinstance(prompts, Sequence) else None
        queue = enumerate(prompts)

        async def work(client: AsyncOpenAI, bar: tqdm) -> None:
            for index, prompt in queue:  # one iterator for all workers
                answers[index] = await self._answer(client, prompt, sampling, in_flight)
                bar.set_postfix_str(str(self.usage), refresh=False)
                bar.update()

        client = AsyncOpenAI(
            base_url=self.endpoint.base_url,
            api_key=self.endpoint.api_key or "none",  # the library wants one; local servers do not look
            max_retries=0,  # _ask has its own
            timeout=self.timeout,
        )
        async with client:
            with tqdm(total=total, desc=label, unit="answer", disable=None) as bar:
                try:
                    async with asyncio.TaskGroup() as group:
                        for _ in range(self.concurrency):
                            group.create_task(work(client, bar))
                except ExceptionGroup as errors:
                    raise errors.exceptions[0] from None
            if self._refused:
                await self._check_refusals(client, sampling)
        return [answers[index] for index in range(len(answers))]

    async def _answer(
        self,
        client: Any,
        prompt: str | Messages,
        sampling: dict[str, Any],
        in_flight: dict[Path, asyncio.Future[Answer]],
    ) -> Answer:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        request = {"model": self.endpoint.model, "messages": messages, "sampling": sampling}
        refusal = request | {"refused_by": self.endpoint.base_url}
        path = self.cache.path(request)
        if (pending := in_flight.get(path)) is not None:
            self.usage.cached += 1
            return await asyncio.shield(pending)
        if (kept := self.cache.get(request) or self.cache.get(refusal)) is not None:
            self.usage.cached += 1
            return kept
        in_flight[path] = asyncio.get_running_loop().create_future()
        try:
            answer = await self._ask(client, messages, sampling)
            if not answer.error:
                self.cache.put(request, answer)
                self._keep_refusals()
            else:
                self._refused.append((refusal, answer))
                if len(self._refused) % REFUSED_IN_A_ROW == 0:
                    await self._check_refusals(client, sampling)
            in_flight[path].set_result(answer)
        finally:
            in_flight.pop(path).cancel()  # nothing to do once it has its result
        return answer

    async def _check_refusals(self, client: Any, sampling: dict[str, Any]) -> None:
        """Are refusals about their conversations or about everything (a setting, a key, an account)? A plain question
        with the same settings tells: answered, they are kept; raises UserError when it is refused as well."""
        answer = await self._ask(client, PLAIN_QUESTION, sampling)
        if answer.error:
            raise UserError(f"{answer.error} ({len(self._refused)} requests in a row, and a plain question)")
        self._keep_refusals()

    def _keep_refusals(self) -> None:
        while self._refused:
            self.cache.put(*self._refused.pop())

    async def _ask(self, client: Any, messages: Messages, sampling: dict[str, Any]) -> Answer:
        import openai

        create = client.chat.completions.create
        known = inspect.signature(create).parameters
        arguments = {key: value for key, value in sampling.items() if key in known}
        if more := {key: value for key, value in sampling.items() if key not in known}:  # the server's own: top_k, ...
            arguments["extra_body"] = more | arguments.get("extra_body", {})
        no_answer = (openai.APIConnectionError, openai.APIStatusError, openai.APIResponseValidationError, BadReply)
        self.usage.asked += 1
        for retry in itertools.count():
            while (wait := self._not_before - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            try:
                answer = read_reply(await create(model=self.endpoint.model, messages=messages, **arguments))
                break
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                self.usage.refused += 1
                return Answer("", error=self._say("refused the request", error))
            except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
                raise UserError(self._say("does not take the key; see the *_API_KEY variable", error)) from None
            except openai.NotFoundError as error:
                raise UserError(self._say("does not know the address or the model", error)) from None
            except (*no_answer, json.JSONDecodeError, UnicodeDecodeError) as error:
                pause = self._pause(getattr(error, "response", None), retry)
                if pause is None:
                    what = f"gave no answer after {retry} retries; what was answered is kept, run again to go on"
                    raise UserError(self._say(what, error)) from None
                await asyncio.sleep(pause)
        self.usage.prompt_tokens += answer.prompt_tokens
        self.usage.completion_tokens += answer.completion_tokens
        if self.price is not None and self.usage.cost is not None:
            prompt_price, completion_price = self.price
            self.usage.cost += (prompt_price * answer.prompt_tokens + completion_price * answer.completion_tokens) / 1e6
        return answer

    def _pause(self, response: Any | None, retry: int) -> float | None:
        """Seconds until a request is sent again; None where it is given up. `response` is None where there was none.

        A 429, or a 503 that says how long to wait, is meant for all requests: they are held as long as the server asks,
        else for the back-off. The request itself waits for the back-off at least: of many that go on at once after the
        few milliseconds that a server asks for, most are too many again.
        """
        status, headers = (response.status_code, response.headers) if response is not None else (0, {})
        wanted, should_retry = wanted_pause(headers), headers.get("x-should-retry")  # OpenAI's own header
        self.usage.rate_limited += status == 429
        may_pass = should_retry == "true" or (
            should_retry != "false" and (status in (0, 408, 409, 429) or status >= 500)
        )
        if not may_pass or retry >= self.max_retries or (wanted or 0.0) > LONGEST_PAUSE:
            return None
        pause = back_off(retry)
        if status == 429 or (status == 503 and wanted):
            self._not_before = max(self._not_before, time.monotonic() + (wanted or pause))
        return max(pause, wanted or 0.0)

    def _say(self, what: str, error: Exception) -> str:
        text = f"{self.endpoint.base_url} ({self.endpoint.model}) {what}: {type(error).__name__}: {error}"
        key = self.endpoint.api_key
        return text.replace(key, "***") if key else text
