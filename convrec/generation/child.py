"""The child process of `generate`: vLLM's offline engine, one batch of prompts after another. It alone imports vllm."""

import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from tqdm import tqdm

from convrec.errors import UserError
from convrec.generation.engine_settings import NO_COMPILER, engine_settings
from convrec.generation.generate import BATCH, Request
from convrec.generation.prompts import encode_prompts, load_tokenizer

# Prompts handed to vLLM at once, after which their answers are kept. As many as a large GPU has running together; on a
# CPU that many can be an hour, and fewer are as fast (docs/explanation/performance.md).
GPU_BATCH, CPU_BATCH = 1024, 128


def _die_with_parent(parent: int) -> None:
    """A parent that is killed must not leave vLLM running (Linux only; elsewhere nothing happens)."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
        if os.getppid() != parent:  # it was killed while this process was starting
            _leave(1)


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


def _generate_here(request: Request, pipe: Any) -> Iterator[list[list[dict[str, Any]]]]:
    """For every batch, for each of its prompts, its answers."""
    tokenizer, context = load_tokenizer(request.model)
    limit = min(request.max_prompt_tokens, context - request.max_tokens)
    if limit < 1:
        raise UserError(
            f"model {request.model}: its context of {context} tokens has no room for {request.max_tokens} new tokens "
            "and a prompt; lower max_tokens."
        )
    prompts, truncated = encode_prompts(tokenizer, request.prompts, limit, request.chat_template_kwargs)
    on_cpu, settings = engine_settings(request.dtype, request.gpu_memory_utilization, request.tensor_parallel)
    if on_cpu:
        os.environ.setdefault(*NO_COMPILER)  # before vLLM is imported: torch reads it once

    from vllm import LLM, SamplingParams

    if request.constraint:
        from convrec.constrained.vllm_processor import PROCESSOR, TRIE

        settings |= {"logits_processors": [PROCESSOR], "additional_config": {TRIE: request.constraint["trie"]}}
    longest = max(len(tokens) for tokens in prompts)
    engine = LLM(
        model=request.model,
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
    batch_size = request.batch_size or (CPU_BATCH if on_cpu else GPU_BATCH)
    for start in range(0, len(prompts), batch_size):
        batch = slice(start, start + batch_size)
        inputs = [{"prompt_token_ids": ids} for ids in prompts[batch]]
        outputs = engine.generate(inputs, _sampling_of(request, sampling, batch), use_tqdm=_ProgressPipe)
        yield [
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
            for output, tokens, was_cut in zip(outputs, prompts[batch], truncated[batch], strict=True)
        ]


def _sampling_of(request: Request, sampling: Any, batch: slice) -> Any:
    """The prompts' own sampling where each has its exclusions, else what all share."""
    if not request.constraint:
        return sampling
    from convrec.constrained.vllm_processor import EXCLUDE, ITEMS

    of_prompts = []
    for exclude in request.constraint["exclude"][batch]:
        of_prompts.append(sampling.clone())
        of_prompts[-1].extra_args = {ITEMS: request.constraint["num_items"], EXCLUDE: exclude}
    return of_prompts


def main(request_path: str, result_path: str, pipe_fd: str, parent: str) -> None:
    """Append a line of JSON to result_path for every batch; a UserError goes to error.json beside it."""
    _die_with_parent(int(parent))
    request = Request(**json.loads(Path(request_path).read_text()))
    with os.fdopen(int(pipe_fd), "w") as pipe, open(result_path, "w") as results:
        try:
            for answers in _generate_here(request, pipe):
                print(json.dumps(answers), file=results, flush=True)
                print(BATCH, file=pipe, flush=True)
        except UserError as error:
            Path(result_path).with_name("error.json").write_text(json.dumps(str(error)))
            _leave(1)
        except Exception:
            traceback.print_exc()  # the last lines of the log: the parent shows them
            _leave(1)
    _leave(0)


def _leave(code: int) -> NoReturn:
    """Exit without interpreter shutdown: vLLM's and torch's threads hold it up and bury an error in reports."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
