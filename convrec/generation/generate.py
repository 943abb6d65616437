"""Batched generation with vLLM's offline engine.

vLLM runs in child processes with the engine inside them (convrec.generation.child), one for each replica: whatever
happens to the run, ending them leaves nothing behind, all their memory comes back, and their log goes to a file and not
to the screen. Replicas share the prompts in batches. Greedy answers do not depend on their number where arithmetic does
not depend on what is computed together: in float32, which a CPU has.
"""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convrec.checkpoints import hub
from convrec.checkpoints.models import check_model_path
from convrec.generation import offline
from convrec.generation.placement import Placement, Places
from convrec.generation.pool import Job, open_pool
from convrec.generation.prompts import Messages
from convrec.progress import Progress

# Prompts handed to vLLM at once, after which their answers are kept. As many as a large GPU has running together; on a
# CPU that many can be an hour, and fewer are as fast (docs/explanation/performance.md).
GPU_BATCH, CPU_BATCH = 1024, 128
ONE = Placement()


@dataclass(frozen=True)
class GenerationRow:
    prompt_index: int
    text: str  # special tokens left out, as the reward decodes it
    token_ids: list[int]
    finish_reason: str  # "stop" or "length"
    prompt_tokens: int
    prompt_truncated: bool


@dataclass(frozen=True)
class Constraint:
    """Answers are lists of the catalog: `num_items` different items, those left out that `exclude` has for the prompt.

    trie: a file of convrec.constrained.catalog_trie, of the model's tokenizer. exclude: items, one list a prompt.
    """

    trie: str
    num_items: int
    exclude: Sequence[list[int]]


def as_messages(prompt: str | Sequence[dict[str, str]]) -> Messages:
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return [{"role": str(message["role"]), "content": str(message["content"])} for message in prompt]


class Work:
    """What one model is asked: each distinct prompt once.

    on_batch: as `generate`'s. gathers: whether `rows` has the answers in the end; else they are on_batch's alone, which
    is let go with the last of them.
    """

    def __init__(
        self,
        model_path: str | Path,
        prompts: Sequence[str | Messages],
        *,
        max_tokens: int,
        max_prompt_tokens: int = 2048,
        temperature: float = 0.0,
        n: int = 1,
        seed: int = 0,
        dtype: str = "auto",
        tensor_parallel: int = 1,
        gpu_memory_utilization: float = 0.85,
        chat_template_kwargs: dict[str, Any] | None = None,
        constraint: Constraint | None = None,
        on_batch: Callable[[list[GenerationRow]], None] | None = None,
        gathers: bool = True,
    ) -> None:
        model = check_model_path(model_path)
        messages = [as_messages(prompt) for prompt in prompts]
        excluded = constraint.exclude if constraint else [[]] * len(messages)
        self._keys = [
            hashlib.sha256(json.dumps(one, sort_keys=True).encode()).digest()
            for one in zip(messages, excluded, strict=True)
        ]
        firsts: dict[bytes, int] = {}
        for index, key in enumerate(self._keys):
            firsts.setdefault(key, index)
        self._firsts = list(firsts.values())
        self._place_of = {key: place for place, key in enumerate(firsts)}
        self._on_batch = on_batch
        self._answers: offline.Answers | None = [[]] * len(firsts) if gathers else None
        self._left = len(firsts)
        self.n = n
        self.asked: offline.Batch = [(messages[index], excluded[index]) for index in self._firsts]
        self.request = offline.Request(
            model=str(Path(model).absolute()) if Path(model).exists() else model,
            max_tokens=max_tokens,
            max_prompt_tokens=max_prompt_tokens,
            sampling={
                "temperature": temperature,
                "top_p": 1.0,
                "top_k": -1,
                "n": n,
                "seed": seed if temperature > 0 else None,
            },
            seed=seed,
            dtype=dtype,
            tensor_parallel=tensor_parallel,
            gpu_memory_utilization=gpu_memory_utilization,
            chat_template_kwargs={"enable_thinking": False} if chat_template_kwargs is None else chat_template_kwargs,
            trie=str(Path(constraint.trie).absolute()) if constraint else None,
            num_items=constraint.num_items if constraint else 0,
        )

    def keep(self, start: int, answers: offline.Answers) -> None:
        """Of the prompts from `start` on in `asked`."""
        if self._answers is not None:
            self._answers[start : start + len(answers)] = answers
        if self._on_batch:
            named = zip(self._firsts[start : start + len(answers)], answers, strict=True)
            self._on_batch([GenerationRow(first, **answer) for first, of_prompt in named for answer in of_prompt])
        self._left -= len(answers)
        if self._answers is None and self._left == 0:
            self._on_batch = None

    def rows(self) -> list[GenerationRow]:
        assert self._answers is not None
        places = [self._place_of[key] for key in self._keys]
        return [GenerationRow(index, **answer) for index, place in enumerate(places) for answer in self._answers[place]]


def generate(
    model_path: str | Path,
    prompts: Sequence[str | Messages],
    *,
    places: Places = ONE,
    log_file: str | Path | None = None,
    progress: bool = True,
    batch_size: int | None = None,
    **settings: Any,
) -> list[GenerationRow]:
    """Answers to `prompts`, `n` rows for each, in the order of the prompts (prompt_index says whose row it is).

    settings: those of Work. Each distinct prompt is generated once: equal prompts (with equal exclusions) share their
    rows. A prompt over `max_prompt_tokens` keeps its instruction and the end of its conversation. `dtype="auto"` is
    float32 on a CPU and the checkpoint's own on a GPU. `chat_template_kwargs` are the template's own arguments; None
    asks a thinking model to answer right away. `places`: where the replicas run, which share the prompts in batches.
    `on_batch` gets the rows of every `batch_size` distinct prompts as soon as they are there, under the index of the
    first occurrence: what an interrupted call has paid for can be kept. Of several replicas they come in any order.
    None: CPU_BATCH or GPU_BATCH, fewer where that has all replicas end together. A batch whose replica is killed is
    asked again, and no other one. A prompt's samples come of `seed` alone: they depend on no other prompt.
    Raises UserError for a bad model path, prompts that cannot fit the model, or a tokenizer without a chat template.
    """
    work = Work(model_path, prompts, tensor_parallel=places.tensor_parallel, **settings)
    generate_all([work], places, Path(log_file) if log_file else None, progress, batch_size)
    return work.rows()


def generate_all(
    works: Sequence[Work],
    places: Places,
    log_file: Path | None = None,
    progress: bool = True,
    batch_size: int | None = None,
) -> None:
    """Have each model answer; `Work.keep` gets the answers as they come.

    One model has all replicas. Several go side by side, each on replicas of its own: one, or more where there are more
    replicas than models.
    """
    works = [work for work in works if work.asked]
    if not works:
        return
    bar = Progress(
        total=sum(len(work.asked) * work.n for work in works),
        desc="generating (starting vLLM)",
        unit="list",
        mininterval=0.5,
        disable=not progress,
        note=hub.download_note(works[0].request.model),
    )

    def advance(number: int) -> None:
        bar.set_description_str("generating", refresh=False)
        bar.update(number)

    done = 0
    with bar, open_pool(places, offline.TARGET, log_file, advance) as pool:
        jobs: list[Job] = []
        whose: list[tuple[Work, list[int]]] = []  # of a job: its work, and where its batches start
        share = max(1, len(pool.places) // len(works))
        for work in works:
            size = batch_size or size_of_batch(len(work.asked), share, pool.places[0].on_gpu)
            starts = range(0, len(work.asked), size)
            # a job a batch: whoever is free does it. Of several models a job a replica, which loads one model
            for of_job in (
                [[start] for start in starts] if len(works) == 1 else [starts[i::share] for i in range(share)]
            ):
                jobs.append(Job(work.request, [work.asked[start : start + size] for start in of_job]))
                whose.append((work, list(of_job)))
        for number, part, answers in pool.answers(jobs):
            work, of_job = whose[number]
            done += len(answers) * work.n
            advance(max(0, done - bar.n))  # a replica on another node says nothing before
            work.keep(of_job[part], answers)


def size_of_batch(prompts: int, replicas: int, on_gpu: bool) -> int:
    """The usual one; of several replicas, such that all have as many batches of one size."""
    usual = GPU_BATCH if on_gpu else CPU_BATCH
    if replicas == 1:
        return usual
    rounds = math.ceil(prompts / (replicas * usual))
    return math.ceil(prompts / (replicas * rounds))
