"""A model that replicas here answer for, asked as convrec.llm.LLM asks an address: every answer is kept on disk."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from convrec.checkpoints import hub
from convrec.checkpoints.files import check_hugging_face, fingerprint
from convrec.checkpoints.models import resolve_model
from convrec.errors import UserError
from convrec.generation import offline
from convrec.generation.generate import as_messages, size_of_batch
from convrec.generation.placement import Places
from convrec.generation.pool import Job, Pool, open_pool
from convrec.llm import Answer, AnswerCache, Messages, NoAnswer, Usage
from convrec.llm.answers import request_of
from convrec.progress import Progress

PROMPT_TOKENS = 8192  # longer prompts are refused: a model's whole context is more than the memory of many GPUs holds


class LocalModel:
    """The engines start with the first question and stay until `close`; with another sampling they start anew."""

    def __init__(self, model: str, given_as: str, cache: str | PathLike, places: Places, log: Path) -> None:
        """model: as convrec.checkpoints.models.resolve_model takes it; given_as: the option that errors name.

        Raises UserError for a model that is not there or not whole.
        """
        self.model = resolve_model(model, given_as)
        hub.require(self.model, given_as)
        if Path(self.model).is_dir():
            check_hugging_face(Path(self.model))
        self.cache, self.places, self.log = AnswerCache(cache), places, log
        self.usage = Usage()
        self.failures: dict[Path, tuple[str | Messages, NoAnswer]] = {}  # none: what fails here ends the run
        self._open = ExitStack()
        self._pool: Pool | None = None
        self._bar: Progress | None = None

    @cached_property
    def name(self) -> str:
        """Of the contents: a model that was trained again has another one, and answers of its own."""
        folder = Path(self.model)
        return f"{folder.name} {fingerprint(folder)[:12]}" if folder.is_dir() else self.model

    def ask_all(self, prompts: Sequence[str | Messages], *, label: str = "asking", **sampling: Any) -> list[Answer]:
        """One answer a prompt, in order; `sampling` are parameters of vLLM, and max_tokens.

        A prompt without room in the model's context, or of more than PROMPT_TOKENS, has an empty answer with `error`.
        """
        requests = [request_of(self.name, as_messages(prompt), sampling) for prompt in prompts]
        paths, answers, missing = self.cache.look_up(requests)
        self.usage.cached += len(paths) - len(missing)
        if missing:
            with Progress(total=len(missing), desc=label, unit="answer", note=lambda: str(self.usage)) as self._bar:
                for request, answer in self._ask(list(missing.values()), sampling):
                    answers[self.cache.path(request)] = answer
                    if answer.error:
                        self.usage.refused += 1
                    else:
                        self.cache.put(request, answer)
        return [answers[path] for path in paths]

    def close(self) -> None:
        self._open.close()
        self._pool = None

    def _ask(self, requests: list[dict[str, Any]], sampling: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Answer]]:
        if "max_tokens" not in sampling:
            raise UserError(f"sampling {sampling}: a local model needs max_tokens")
        engine = offline.Request(
            model=self.model,
            max_tokens=sampling["max_tokens"],
            max_prompt_tokens=PROMPT_TOKENS,
            sampling={key: sampling[key] for key in sampling if key not in ("max_tokens", "chat_template_kwargs")},
            seed=0,
            tensor_parallel=self.places.tensor_parallel,
            chat_template_kwargs=sampling.get("chat_template_kwargs", {}),
            cuts=False,
        )
        if self._pool is None:
            self._pool = self._open.enter_context(open_pool(self.places, offline.TARGET, self.log, self._advance))
        size = size_of_batch(len(requests), len(self._pool.places), self._pool.places[0].on_gpu)
        batches = [requests[start : start + size] for start in range(0, len(requests), size)]
        jobs = (Job(engine, [[(request["messages"], []) for request in batch]]) for batch in batches)
        for number, _, found in self._pool.answers(jobs):
            for request, of_one in zip(batches[number], found, strict=True):
                self.usage.asked += 1
                yield request, self._answer(of_one)

    def _answer(self, of_one: list[dict[str, Any]]) -> Answer:
        if not of_one:
            return Answer("", error=f"{self.model}: the prompt is too long")
        tokens = of_one[0]["prompt_tokens"], len(of_one[0]["token_ids"])
        self.usage.prompt_tokens += tokens[0]
        self.usage.completion_tokens += tokens[1]
        return Answer(of_one[0]["text"], of_one[0]["finish_reason"], *tokens)

    def _advance(self, number: int) -> None:
        if self._bar is not None:
            self._bar.update(number)
