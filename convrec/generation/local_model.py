"""A model that replicas here answer for, asked as convrec.llm.LLM asks an address: every answer is kept on disk."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from convrec.checkpoints import hub
from convrec.checkpoints.files import check_hugging_face, fingerprint
from convrec.checkpoints.models import resolve_model
from convrec.errors import UserError
from convrec.generation import offline
from convrec.generation.generate import ask
from convrec.generation.placement import Placement
from convrec.generation.pool import Pool
from convrec.llm import Answer, AnswerCache, Messages, NoAnswer, Usage
from convrec.llm.answers import request_of
from convrec.progress import Progress

PROMPT_TOKENS = 8192  # longer prompts are refused: a model's whole context is more than the memory of many GPUs holds


class LocalModel:
    """The engines start with the first question and stay until `close`; with another sampling they start anew."""

    def __init__(self, model: str, given_as: str, cache: str | PathLike, placement: Placement, log: Path) -> None:
        """model: as convrec.checkpoints.models.resolve_model takes it; given_as: the option that errors name.

        Raises UserError for a model that is not there or not whole.
        """
        self.model = resolve_model(model, given_as)
        hub.require(self.model, given_as)
        if Path(self.model).is_dir():
            check_hugging_face(Path(self.model))
        self.cache, self.placement, self.log = AnswerCache(cache), placement, log
        self.usage = Usage()
        self.failures: dict[Path, tuple[str | Messages, NoAnswer]] = {}  # none: what fails here ends the run
        self._open = ExitStack()
        self._opened: Pool | None = None
        self._loaded: offline.Request | None = None  # by the replicas of the pool

    @cached_property
    def name(self) -> str:
        """Of the contents: a model that was trained again has another one, and answers of its own."""
        folder = Path(self.model)
        return f"{folder.name} {fingerprint(folder)[:12]}" if folder.is_dir() else self.model

    def ask_all(self, prompts: Sequence[str | Messages], *, label: str = "asking", **sampling: Any) -> list[Answer]:
        """One answer a prompt, in order; `sampling` are parameters of vLLM, and max_tokens.

        A prompt without room in the model's context, or of more than PROMPT_TOKENS, has an empty answer with `error`.
        """
        requests = [request_of(self.name, prompt, sampling) for prompt in prompts]
        paths, answers, unknown = self.cache.look_up(requests)
        missing = list(unknown.items())
        self.usage.cached += len(paths) - len(missing)

        def keep(batch: list[tuple[int, offline.Answer]]) -> None:
            for index, found in batch:
                path, request = missing[index]
                answers[path] = self._keep(request, found)

        if missing:
            batch = [(request["messages"], list[int]()) for _, request in missing]
            with Progress(total=len(missing), desc=label, unit="answer", note=lambda: str(self.usage)) as bar:
                for found in ask(self._pool(self._engine(sampling)), batch, bar, label):
                    keep(found)
        return [answers[path] for path in paths]

    def close(self) -> None:
        self._open.close()
        self._opened = self._loaded = None

    def _engine(self, sampling: dict[str, Any]) -> offline.Request:
        if "max_tokens" not in sampling:
            raise UserError(f"sampling {sampling}: a local model needs max_tokens")
        return offline.Request(
            model=self.model,
            max_tokens=sampling["max_tokens"],
            max_prompt_tokens=PROMPT_TOKENS,
            sampling={key: sampling[key] for key in sampling if key not in ("max_tokens", "chat_template_kwargs")},
            seed=0,
            tensor_parallel=self.placement.tensor_parallel,
            chat_template_kwargs=sampling.get("chat_template_kwargs", {}),
            cuts=False,
        )

    def _pool(self, request: offline.Request) -> Pool:
        if self._opened is None or self._loaded != request:
            self.close()
            room = self._open.enter_context(self.placement.open())
            self._opened = self._open.enter_context(closing(Pool(room, offline.load, request, self.log)))
            self._loaded = request
        return self._opened

    def _keep(self, request: dict[str, Any], found: offline.Answer) -> Answer:
        self.usage.asked += 1
        if not found:
            self.usage.refused += 1
            return Answer("", error=f"{self.model}: the prompt is too long")
        tokens = found["prompt_tokens"], len(found["token_ids"])
        self.usage.prompt_tokens += tokens[0]
        self.usage.completion_tokens += tokens[1]
        answer = Answer(found["text"], found["finish_reason"], *tokens)
        self.cache.put(request, answer)
        return answer
