"""Batched generation with vLLM's offline engine. The only module that imports vllm.

vLLM runs in a child process with the engine inside it: whatever happens to the run, ending that one process leaves
nothing behind, all its memory comes back, and its log goes to a file and not to the screen.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from tqdm import tqdm

from convrec.checkpoints import check_model_path
from convrec.errors import UserError

Messages = list[dict[str, str]]


@dataclass(frozen=True)
class GenerationRow:
    prompt_index: int
    text: str  # special tokens left out, as the reward decodes it
    token_ids: list[int]
    finish_reason: str  # "stop" or "length"
    prompt_tokens: int
    prompt_truncated: bool


@dataclass(frozen=True)
class _Request:
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
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)


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
) -> list[GenerationRow]:
    """Answers to `prompts`, `n` rows for each, in the order of the prompts (prompt_index says whose row it is).

    Each distinct prompt is generated once: equal prompts share their rows. A prompt over `max_prompt_tokens` keeps its
    instruction and the end of its conversation. `dtype="auto"` is float32 on a CPU and the checkpoint's own on a GPU.
    Raises UserError for a bad model path, prompts that cannot fit the model, or a tokenizer without a chat template.
    """
    model = check_model_path(model_path)
    messages = [as_messages(prompt) for prompt in prompts]
    if not messages:
        return []
    keys = [json.dumps(message, sort_keys=True) for message in messages]
    distinct = {key: position for position, key in enumerate(dict.fromkeys(keys))}
    request = _Request(
        model=model,
        prompts=[json.loads(key) for key in distinct],
        max_tokens=max_tokens,
        max_prompt_tokens=max_prompt_tokens,
        temperature=temperature,
        n=n,
        seed=seed,
        dtype=dtype,
        tensor_parallel=tensor_parallel,
        gpu_memory_utilization=gpu_memory_utilization,
        # Thinking models answer with a list right away unless told otherwise.
        chat_template_kwargs={"enable_thinking": False} | (chat_template_kwargs or {}),
    )
    with tempfile.TemporaryDirectory(prefix="convrec-generate-") as folder:
        log_path = Path(log_file) if log_file else Path(folder) / "vllm.log"
        log_path.parent.mkdir(parents=True, exist_ok=True)
        outputs = _run_child(request, Path(folder), log_path, progress)
    rows: list[GenerationRow] = []
    for index, key in enumerate(keys):
        rows.extend(GenerationRow(prompt_index=index, **answer) for answer in outputs[distinct[key]])
    return rows


def _run_child(request: _Request, folder: Path, log_path: Path, progress: bool) -> list[list[dict[str, Any]]]:
    request_path, result_path = folder / "request.json", folder / "result.json"
    request_path.write_text(json.dumps(asdict(request)))
    read_end, write_end = os.pipe()
    command = [sys.executable, "-m", "convrec.generation", str(request_path), str(result_path), str(write_end)]
    with log_path.open("ab") as log:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[write_end], env=_child_environment()
        )
    os.close(write_end)
    try:
        with (
            os.fdopen(read_end) as events,
            tqdm(
                total=len(request.prompts) * request.n,
                desc="generating (starting vLLM)",
                unit="list",
                mininterval=0.5,
                disable=None if progress else True,  # None: drawn on a terminal only
            ) as bar,
        ):
            for line in events:  # one number a line: answers finished since the last; ends when the child does
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
    if not result_path.exists():
        tail = "\n".join(log_path.read_text(errors="replace").strip().splitlines()[-15:])
        raise RuntimeError(f"vLLM generation failed (exit status {code}); the end of {log_path}:\n{tail}")
    result = json.loads(result_path.read_text())
    if "error" in result:
        raise UserError(result["error"])
    return result["outputs"]


def _child_environment() -> dict[str, str]:
    environment = dict(os.environ)
    # The engine runs inside the child: no EngineCore process that could outlive it.
    environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    environment.setdefault("VLLM_NO_USAGE_STATS", "1")
    root = str(Path(__file__).resolve().parents[1])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
    return environment


# ---- in the child


def _die_with_parent() -> None:
    """A parent that is killed must not leave vLLM running (Linux only; elsewhere nothing happens)."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _cpu_settings() -> dict[str, Any]:
    """Engine arguments and, as a side effect, the environment vLLM's CPU build reads."""
    import psutil

    available_gib = psutil.virtual_memory().available // 2**30
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(min(8, max(1, available_gib // 8))))
    # Pinning threads to cores helps only when nothing else runs on them, and a container may not own what it sees.
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
    return {"enforce_eager": True, "dtype": "float32"}


class _ProgressPipe(tqdm):
    """vLLM's progress bar, with its updates sent to the parent instead of drawn."""

    pipe: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "file": open(os.devnull, "w"), "mininterval": 1e9})  # noqa: SIM115
        self.is_engine_bar = str(kwargs.get("desc", "")).startswith("Processed")

    def update(self, n: float | None = 1) -> bool | None:
        if self.is_engine_bar and n:
            print(int(n), file=self.pipe, flush=True)
        return super().update(n)


def _encode(tokenizer: Any, request: _Request, limit: int) -> tuple[list[list[int]], list[bool]]:
    from convrec.schema import truncate_prompt

    def ids(messages: Messages) -> list[int]:
        encoded = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=True, **request.chat_template_kwargs
        )
        return list(encoded["input_ids"])

    prompts, truncated = [], []
    for messages in request.prompts:
        tokens = ids(messages)
        too_long = len(tokens) > limit
        if too_long:
            last = max(i for i, message in enumerate(messages) if message["role"] == "user")

            def with_text(text: str, messages: Messages = messages, last: int = last) -> Messages:
                return [*messages[:last], {"role": "user", "content": text}, *messages[last + 1 :]]

            shorter = truncate_prompt(messages[last]["content"], lambda text: len(ids(with_text(text))) <= limit)
            tokens = ids(with_text(shorter))
        prompts.append(tokens)
        truncated.append(too_long)
    return prompts, truncated


def _context_length(model: str) -> int:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model)
    return int(getattr(config, "max_position_embeddings", 0) or 2**20)


def _generate_here(request: _Request, pipe: Any) -> list[list[dict[str, Any]]]:
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(request.model)
    if not tokenizer.chat_template:
        raise UserError(f"model {request.model}: its tokenizer has no chat template; use an instruction-tuned model.")
    context = _context_length(request.model)
    limit = min(request.max_prompt_tokens, context - request.max_tokens)
    if limit < 1:
        raise UserError(
            f"model {request.model}: its context of {context} tokens has no room for {request.max_tokens} new tokens "
            "and a prompt; lower max_tokens."
        )
    prompts, truncated = _encode(tokenizer, request, limit)

    on_cpu = not torch.cuda.is_available()
    settings: dict[str, Any] = {"dtype": request.dtype}
    if on_cpu:
        settings = _cpu_settings() | ({} if request.dtype == "auto" else settings)
    else:
        settings["gpu_memory_utilization"] = request.gpu_memory_utilization

    from vllm import LLM, SamplingParams

    longest = max(len(tokens) for tokens in prompts)
    engine = LLM(
        model=request.model,
        tensor_parallel_size=request.tensor_parallel,
        max_model_len=longest + request.max_tokens,
        seed=request.seed,
        disable_log_stats=True,
        **settings,
    )
    sampling = SamplingParams(
        temperature=request.temperature,
        top_p=1.0,
        top_k=-1,
        n=request.n,
        max_tokens=request.max_tokens,
        seed=request.seed if request.temperature > 0 else None,
        skip_special_tokens=True,
    )
    _ProgressPipe.pipe = pipe
    outputs = engine.generate([{"prompt_token_ids": ids} for ids in prompts], sampling, use_tqdm=_ProgressPipe)
    return [
        [
            {
                "text": answer.text,
                "token_ids": list(answer.token_ids),
                "finish_reason": str(answer.finish_reason),
                "prompt_tokens": len(tokens),
                "prompt_truncated": was_cut,
            }
            for answer in output.outputs
        ]
        for output, tokens, was_cut in zip(outputs, prompts, truncated, strict=True)
    ]


def _child_main(request_path: str, result_path: str, pipe_fd: str) -> None:
    _die_with_parent()
    request = _Request(**json.loads(Path(request_path).read_text()))
    with os.fdopen(int(pipe_fd), "w") as pipe:
        try:
            result: dict[str, Any] = {"outputs": _generate_here(request, pipe)}
        except UserError as error:
            result = {"error": str(error)}
        except Exception:
            traceback.print_exc()  # the last lines of the log: the parent shows them
            _leave(1)
    Path(result_path).write_text(json.dumps(result))
    _leave(0)


def _leave(code: int) -> NoReturn:
    """Exit without interpreter shutdown: vLLM's and torch's threads hold it up and bury an error in reports."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _child_main(*sys.argv[1:])
