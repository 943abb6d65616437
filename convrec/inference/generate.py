"""Batched generation with vLLM's offline engine.

vLLM runs in child processes that contain the engine (engines/child.py), one per replica. Whatever happens to the run,
ending them leaves nothing behind, frees all their memory, and their log goes to a file instead of the screen. Replicas
share the prompts in batches. Greedy answers do not depend on the number of replicas if arithmetic does not depend on
the batch, as in float32 on a CPU.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from convrec.base.progress import Progress
from convrec.checkpoints.files import BESIDE_WEIGHTS, fingerprint
from convrec.checkpoints.models import check_model_path
from convrec.inference.engines import offline
from convrec.inference.engines.offline import Answer
from convrec.inference.engines.placement import Placement, visible_gpus
from convrec.inference.engines.pool import Pool
from convrec.inference.prompts import Messages, prompt_id

# Prompts per call of vLLM, after which their answers are stored. On a GPU, as many as a large one runs concurrently; on
# a CPU that many can take an hour, and fewer are as fast (docs/explanation/performance.md).
GPU_BATCH = 1024
CPU_BATCH = 128
ONE = Placement()
Keep = Callable[[list[tuple[int, Answer]]], None]  # gets (index of the prompt, its answer) of each batch


@dataclass(frozen=True)
class Constraint:
    """Constrains answers to lists of `num_items` different catalog items.

    Attributes:
        trie: a file of convrec.features.constrained.catalog_trie for the model's tokenizer.
        num_items: the number of items.
        exclude: prompt_id -> items that the list must not contain.
    """

    trie: str
    num_items: int
    exclude: Mapping[str, list[int]]


def generate(
    model_path: str | Path,
    prompts: Sequence[Messages],
    *,
    max_tokens: int,
    max_prompt_tokens: int = 2048,
    temperature: float = 0.0,
    seed: int = 0,
    chat_template_kwargs: dict[str, Any] | None = None,
    constraint: Constraint | None = None,
    placement: Placement = ONE,
    log_file: str | Path | None = None,
    progress: bool = True,
    on_batch: Keep | None = None,
) -> list[Answer]:
    """Generate an answer to each prompt.

    If a replica is killed, only its batch is generated again. A sample depends only on its prompt and `seed`, not on
    other prompts.

    Args:
        model_path: a Hugging Face folder or id.
        prompts: the messages of each prompt.
        max_tokens: of an answer.
        max_prompt_tokens: a longer prompt keeps its instruction and the end of its conversation.
        temperature: 0 for greedy decoding.
        seed: of sampling.
        chat_template_kwargs: arguments of the chat template; None for those of lists (convrec.data.template).
        constraint: None for free text.
        placement: the replicas, which share the prompts in batches (`compute_batch_size`).
        log_file: vLLM's log; None to discard it.
        progress: whether to show a progress bar.
        on_batch: gets the answers of each batch as soon as they are ready, so that an interrupted call loses little.
            With several replicas, batches finish in any order.

    Returns:
        The answers, in the order of the prompts.

    Raises:
        UserError: the model path is wrong, the model has no room for the prompts, or its tokenizer has no chat
            template.
    """
    model = check_model_path(model_path)
    if not prompts:
        return []
    sampling = {"temperature": temperature, "top_p": 1.0, "top_k": -1, "seed": seed if temperature > 0 else None}
    spec = offline.EngineSpec(
        model=model,
        prompts=offline.PromptEncoding(max_prompt_tokens, chat_template_kwargs),
        max_tokens=max_tokens,
        sampling=sampling,
        seed=seed,
        tensor_parallel=placement.tensor_parallel,
        lists=offline.ConstrainedLists(constraint.trie, constraint.num_items) if constraint else None,
    )
    exclude = constraint.exclude if constraint else {}
    tasks = [(messages, exclude.get(prompt_id(messages), [])) for messages in prompts]
    answers: dict[int, Answer] = {}
    bar = Progress(
        total=len(prompts), desc="generating (starting vLLM)", unit="list", mininterval=0.5, disable=not progress
    )

    def advance(number: int) -> None:
        bar.set_description_str("generating", refresh=False)
        bar.update(number)

    with bar, _replicas(spec, placement, log_file) as pool:
        size = compute_batch_size(len(prompts), len(pool.environments), bool(visible_gpus()))
        starts = range(0, len(prompts), size)
        batches = ((spec.model, tasks[start : start + size]) for start in starts)
        for number, batch_answers in pool.answers(batches, advance):
            batch = list(enumerate(batch_answers, starts[number]))
            answers.update(batch)
            if on_batch:
                on_batch(batch)
    return [answers[index] for index in range(len(prompts))]


def compute_batch_size(prompts: int, replicas: int, on_gpu: bool) -> int:
    """Return the default batch size; with several replicas, a size that gives each the same number of batches.

    Args:
        prompts: their number, at least 1.
        replicas: their number.
        on_gpu: whether the node has a GPU, where batches are larger.
    """
    default = GPU_BATCH if on_gpu else CPU_BATCH
    if replicas == 1:
        return default
    rounds = math.ceil(prompts / (replicas * default))
    return math.ceil(prompts / (replicas * rounds))


@dataclass
class _Engines:
    """Replicas that may outlive a call of `generate`, the inputs they were started for, and how to end them."""

    started_for: tuple[offline.EngineSpec, Placement] | None = None
    replicas: Any = None
    stack: ExitStack = field(default_factory=ExitStack)


_shared_engines: _Engines | None = None  # set within reuse_engines


@contextmanager
def reuse_engines() -> Iterator[None]:
    """Keep vLLM engines alive between calls to `generate` that differ only in the model's weights.

    Checkpoints of one run are loaded into the running engines instead of restarting vLLM. Not thread-safe.
    """
    global _shared_engines
    _shared_engines = _Engines()
    try:
        with _shared_engines.stack:
            yield
    finally:
        _shared_engines = None


@contextmanager
def _replicas(spec: offline.EngineSpec, placement: Placement, log: str | Path | None) -> Iterator[Pool]:
    engines = _shared_engines or _Engines()
    folder = Path(spec.model)
    architecture = fingerprint(folder, BESIDE_WEIGHTS) if folder.is_dir() else spec.model
    inputs = (replace(spec, model=architecture), placement)
    with nullcontext() if engines is _shared_engines else engines.stack:
        if engines.started_for != inputs:
            engines.started_for = None  # even if the next engines fail to start
            engines.stack.close()
            engines.replicas = engines.stack.enter_context(placement.open(offline.load, spec, log))
            engines.started_for = inputs
        try:
            yield engines.replicas
        except BaseException:
            engines.started_for = None  # new replicas would load the first model, whose folder may be gone
            raise
