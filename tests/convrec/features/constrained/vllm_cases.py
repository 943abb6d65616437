"""A vLLM engine for test_vllm_processor.py in a separate process: reads requests as JSON, writes outputs as JSON.

Small on purpose: few KV blocks, so that requests are preempted; few tokens a step, so that prompts are read in chunks.
Asynchronous scheduling is on, as on a GPU. vLLM switches it off on a CPU: its code is all there, but for CUDA's streams
and events, which have nothing to wait for here.

The second model runner consists of Triton kernels, and Triton's wheels have no compiler for CPUs, so its interpreter
runs them one program at a time. This runner always keeps tokens on the device, so asynchronous scheduling stays off.
"""

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "GLOO_SOCKET_IFNAME": "lo"}
os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


def schedule_asynchronously() -> None:
    import torch
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.worker import cpu_model_runner

    on_cpu = CpuPlatform.check_and_update_config.__func__  # type: ignore[attr-defined]

    def with_async(cls: type, config: Any) -> None:
        on_cpu(cls, config)
        config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(with_async)  # type: ignore[method-assign,assignment]
    nothing = SimpleNamespace(record=lambda: None, synchronize=lambda: None, wait_stream=lambda _: None)
    torch.Event = torch.cuda.Stream = lambda *_, **__: nothing  # type: ignore[assignment,misc]
    torch.cuda.current_stream = lambda *_: nothing  # type: ignore[assignment,return-value]
    torch.cuda.stream = lambda _: nullcontext()  # type: ignore[assignment]
    cpu_model_runner._torch_cuda_wrapper = nullcontext  # its own placeholders lack what asynchronous scheduling calls


def interpret_kernels() -> None:
    """Make Triton interpret kernels; call it before vLLM is imported.

    vLLM uses the second runner on a CPU if Triton has a backend named cpu.
    """
    os.environ |= {"VLLM_USE_V2_MODEL_RUNNER": "1", "TRITON_INTERPRET": "1"}
    from triton import backends

    backends.backends["cpu"] = SimpleNamespace(driver=None)


def main(request_file: str, answer_file: str) -> None:
    request: dict[str, Any] = json.loads(Path(request_file).read_text())
    if request["second_runner"]:
        interpret_kernels()
    from vllm import LLM, SamplingParams
    from vllm.exceptions import VLLMValidationError

    from convrec.features.constrained.vllm_lists import PROCESSOR, TRIE

    if not request["second_runner"]:
        schedule_asynchronously()
    engine = LLM(
        model=request["model"],
        logits_processors=[PROCESSOR],
        additional_config={TRIE: request["trie"]},
        logprobs_mode="processed_logprobs",
        dtype="float32",
        enforce_eager=True,
        max_model_len=384,
        max_num_batched_tokens=64,
        max_num_seqs=16,
        block_size=32,
        num_gpu_blocks_override=20,
        disable_log_stats=False,
    )
    config = engine.llm_engine.vllm_config
    assert config.use_v2_model_runner == request["second_runner"]
    assert config.scheduler_config.async_scheduling != request["second_runner"]
    prompts = [{"prompt_token_ids": ids} for ids in request["prompts"]]
    sampling = [SamplingParams(logprobs=0, **params) for params in request["sampling"]]
    outputs = engine.generate(prompts, sampling, use_tqdm=False)
    refused = []
    for arguments in request["refused"]:
        try:
            engine.generate(prompts[:1], SamplingParams(extra_args=arguments), use_tqdm=False)
        except (ValueError, VLLMValidationError) as error:  # until vLLM 0.24 the second is a ValueError
            refused.append(str(error))
    answers = [
        {
            "token_ids": list(answer.token_ids),
            "finish_reason": answer.finish_reason,
            "logprobs": [
                of_token[token].logprob for token, of_token in zip(answer.token_ids, answer.logprobs, strict=True)
            ],
        }
        for answer in (output.outputs[0] for output in outputs)
    ]
    counters = {metric.name: metric.value for metric in engine.get_metrics() if hasattr(metric, "value")}
    Path(answer_file).write_text(json.dumps({"answers": answers, "refused": refused, "counters": counters}))


if __name__ == "__main__":
    main(*sys.argv[1:])
