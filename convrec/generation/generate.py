"""Batched generation with vLLM's offline engine.

vLLM runs in a child process with the engine inside it (generation_worker): whatever happens to the run, ending that one
process leaves nothing behind, all its memory comes back, and its log goes to a file and not to the screen.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from convrec.checkpoints import hub
from convrec.checkpoints.models import check_model_path
from convrec.errors import UserError
from convrec.generation.prompts import Messages
from convrec.progress import Progress
from convrec.runs import guard, supervisor

BATCH = "batch"  # what the child says when a line of results is written


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


@dataclass(frozen=True)
class Request:
    """What the child is asked for."""

    model: str
    prompts: list[Messages]
    max_tokens: int
    max_prompt_tokens: int
    temperature: float
    n: int
    seed: int
    dtype: str
    tensor_parallel: int
    gpu_memory_utilization: float
    batch_size: int | None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    constraint: dict[str, Any] | None = None  # a Constraint's fields


def as_messages(prompt: str | Sequence[dict[str, str]]) -> Messages:
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return [{"role": str(message["role"]), "content": str(message["content"])} for message in prompt]


def generate(
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
    log_file: str | Path | None = None,
    progress: bool = True,
    batch_size: int | None = None,
    on_batch: Callable[[list[GenerationRow]], None] | None = None,
    constraint: Constraint | None = None,
) -> list[GenerationRow]:
    """Answers to `prompts`, `n` rows for each, in the order of the prompts (prompt_index says whose row it is).

    Each distinct prompt is generated once: equal prompts (with equal exclusions) share their rows. A prompt over
    `max_prompt_tokens` keeps its instruction and the end of its conversation. `dtype="auto"` is float32 on a CPU and
    the checkpoint's own on a GPU. `chat_template_kwargs` are the template's own arguments; None asks a thinking model
    to answer right away.
    `on_batch` gets the rows of every `batch_size` distinct prompts as soon as they are there, under the index of the
    first occurrence: what an interrupted call has paid for can be kept. None: generation_worker's CPU_BATCH, GPU_BATCH.
    Raises UserError for a bad model path, prompts that cannot fit the model, or a tokenizer without a chat template.
    """
    model = check_model_path(model_path)
    messages = [as_messages(prompt) for prompt in prompts]
    if not messages:
        return []
    excluded = constraint.exclude if constraint else [[]] * len(messages)
    keys = [json.dumps(one, sort_keys=True) for one in zip(messages, excluded, strict=True)]
    distinct = {key: position for position, key in enumerate(dict.fromkeys(keys))}
    asked = [json.loads(key) for key in distinct]
    request = Request(
        model=model,
        prompts=[message for message, _ in asked],
        max_tokens=max_tokens,
        max_prompt_tokens=max_prompt_tokens,
        temperature=temperature,
        n=n,
        seed=seed,
        dtype=dtype,
        tensor_parallel=tensor_parallel,
        gpu_memory_utilization=gpu_memory_utilization,
        batch_size=batch_size,
        chat_template_kwargs={"enable_thinking": False} if chat_template_kwargs is None else chat_template_kwargs,
        constraint=asdict(replace(constraint, exclude=[exclude for _, exclude in asked])) if constraint else None,
    )
    with guard.guarded("") as temporary, tempfile.TemporaryDirectory(prefix="convrec-generate-") as folder:
        supervisor.note(temporary=str(temporary))
        log_path = Path(log_file) if log_file else Path(folder) / "vllm.log"
        log_path.parent.mkdir(parents=True, exist_ok=True)
        firsts = list({key: index for index, key in reversed(list(enumerate(keys)))}.values())[::-1]

        def finished(start: int, answers: list[list[dict[str, Any]]]) -> None:
            if on_batch:
                places = enumerate(answers, start)
                on_batch(
                    [
                        GenerationRow(firsts[place], **answer)
                        for place, answers_of_place in places
                        for answer in answers_of_place
                    ]
                )

        outputs = _run_child(request, Path(folder), log_path, progress, finished)
    rows: list[GenerationRow] = []
    for index, key in enumerate(keys):
        rows.extend(GenerationRow(prompt_index=index, **answer) for answer in outputs[distinct[key]])
    return rows


def _run_child(
    request: Request,
    folder: Path,
    log_path: Path,
    progress: bool,
    finished: Callable[[int, list[list[dict[str, Any]]]], None],
) -> list[list[dict[str, Any]]]:
    request_path, result_path = folder / "request.json", folder / "result.jsonl"
    request_path.write_text(json.dumps(asdict(request)))
    read_end, write_end = os.pipe()
    command = [sys.executable, "-m", "convrec.generation.child", str(request_path), str(result_path)]
    command += [str(write_end), str(os.getpid())]
    with log_path.open("ab") as log:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[write_end], env=_child_environment()
        )
    os.close(write_end)
    outputs: list[list[dict[str, Any]]] = []
    batches = 0
    try:
        with (
            os.fdopen(read_end) as events,
            Progress(
                total=len(request.prompts) * request.n,
                desc="generating (starting vLLM)",
                unit="list",
                mininterval=0.5,
                disable=not progress,
                note=hub.download_note(request.model),
            ) as bar,
        ):
            for line in events:  # answers finished since the last line, or that a batch is written; ends with the child
                if line.strip() == BATCH:
                    answers = _result(result_path, batches)
                    batches += 1
                    finished(len(outputs), answers)
                    outputs += answers
                    continue
                if bar.n == 0:
                    bar.set_description_str("generating", refresh=False)
                bar.update(int(line))
        code = child.wait()
    finally:
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(timeout=10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
    error_path = folder / "error.json"
    if error_path.exists():
        raise UserError(json.loads(error_path.read_text()))
    if code or len(outputs) < len(request.prompts):
        tail = "\n".join(log_path.read_text(errors="replace").strip().splitlines()[-15:])
        raise RuntimeError(f"vLLM generation failed (exit status {code}); the end of {log_path}:\n{tail}")
    return outputs


def _result(path: Path, batch: int) -> list[list[dict[str, Any]]]:
    """Line `batch` of the child's results: for each of its prompts the answers."""
    with path.open() as lines:
        return json.loads(next(line for number, line in enumerate(lines) if number == batch))


def _child_environment() -> dict[str, str]:
    environment = dict(os.environ)
    # The engine runs inside the child: no EngineCore process that could outlive it.
    environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    environment.setdefault("VLLM_NO_USAGE_STATS", "1")
    root = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
    return environment
