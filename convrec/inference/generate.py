"""Batched generation with vLLM's offline engine.

vLLM runs in child processes with the engine inside them (engines/child.py), one for each replica: whatever
happens to the run, ending them leaves nothing behind, all their memory comes back, and their log goes to a file and not
to the screen. Replicas share the prompts in batches. Greedy answers do not depend on their number where arithmetic does
not depend on what is computed together: in float32, which a CPU has.
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

# Prompts handed to vLLM at once, after which their answers are kept. As many as a large GPU has running together; on a
# CPU that many can be an hour, and fewer are as fast (docs/explanation/performance.md).
GPU_BATCH = 1024
CPU_BATCH = 128
ONE = Placement()
Keep = Callable[[list[tuple[int, Answer]]], None]  # gets (index of the prompt, its answer) of each batch


@dataclass(frozen=True)
class Constraint:
    """Answers are lists of the catalog: `num_items` different items, those left out that `exclude` has for the prompt.

    trie: a file of convrec.features.constrained.catalog_trie, of the model's tokenizer. exclude: items by prompt_id.
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
    """An answer to each of the prompts, in their order.

    A prompt over `max_prompt_tokens` keeps its instruction and the end of its conversation. `chat_template_kwargs` are
    the template's own arguments; None: those for lists (convrec.data.template). `placement`: the replicas, which
    share the prompts in batches (`size_of_batch`). `on_batch` gets the answers to each as soon as they are there:
    what an interrupted call has paid for can be kept. Of several replicas they come in any order. A batch whose replica
    is killed is asked again, and no other one. A sample comes of the prompt and `seed` alone, and of no other prompt.
    Raises UserError for a bad model path, prompts that cannot fit the model, or a tokenizer without a chat template.
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
    asked = [(one, exclude.get(prompt_id(one), [])) for one in prompts]
    answers: dict[int, Answer] = {}
    bar = Progress(
        total=len(prompts), desc="generating (starting vLLM)", unit="list", mininterval=0.5, disable=not progress
    )

    def advance(number: int) -> None:
        bar.set_description_str("generating", refresh=False)
        bar.update(number)

    with bar, _replicas(spec, placement, log_file) as pool:
        size = size_of_batch(len(prompts), len(pool.environments), bool(visible_gpus()))
        starts = range(0, len(prompts), size)
        batches = ((spec.model, asked[start : start + size]) for start in starts)
        for number, found in pool.answers(batches, advance):
            batch = list(enumerate(found, starts[number]))
            answers.update(batch)
            if on_batch:
                on_batch(batch)
    return [answers[index] for index in range(len(prompts))]


def size_of_batch(prompts: int, replicas: int, on_gpu: bool) -> int:
    """The usual one; of several replicas, such that all have as many batches of one size."""
    usual = GPU_BATCH if on_gpu else CPU_BATCH
    if replicas == 1:
        return usual
    rounds = math.ceil(prompts / (replicas * usual))
    return math.ceil(prompts / (replicas * rounds))


@dataclass
class _Engines:
    """Replicas that may outlive a call of `generate`: what they were started for, and what ends them."""

    started_for: tuple[offline.EngineSpec, Placement] | None = None
    replicas: Any = None
    stack: ExitStack = field(default_factory=ExitStack)


_kept: _Engines | None = None  # within engines_kept


@contextmanager
def engines_kept() -> Iterator[None]:
    """Within it `generate` leaves its replicas to the next call, if that is the same but for the model's weights, as
    checkpoints of one run are: they are read into the running engines, which saves a start of vLLM. Not for threads."""
    global _kept
    _kept = _Engines()
    try:
        with _kept.stack:
            yield
    finally:
        _kept = None


@contextmanager
def _replicas(spec: offline.EngineSpec, placement: Placement, log: str | Path | None) -> Iterator[Pool]:
    engines = _kept or _Engines()
    folder = Path(spec.model)
    alike = fingerprint(folder, BESIDE_WEIGHTS) if folder.is_dir() else spec.model
    wanted = (replace(spec, model=alike), placement)
    with nullcontext() if engines is _kept else engines.stack:
        if engines.started_for != wanted:
            engines.started_for = None  # also where the next cannot be opened
            engines.stack.close()
            engines.replicas = engines.stack.enter_context(placement.open(offline.load, spec, log))
            engines.started_for = wanted
        yield engines.replicas
