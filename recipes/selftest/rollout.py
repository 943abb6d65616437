"""Phases of the rollout: vLLM as verl starts it, its log-probs against the policy's, verl's transfer of weights to it.

Differences are those of |log p_vllm - log p_policy| over the tokens that vLLM has sampled, the policy in fp32 and, on a
GPU, in bf16 as well: what a run's `rollout_probs_diff` and `convrec.rollout_check_bound` see.
"""

import asyncio
import os
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any
from uuid import uuid4

import torch

from convrec.cpu.process_group import in_run_folder
from recipes.selftest.checks import Place, require, require_at_most

PROMPTS, RESPONSES, NEW_TOKENS = 6, 4, 32
# of the mean difference; engines with other weights than the policy's are at 0.3 and more
BOUND = {"bfloat16": 0.05, "float32": 1e-4}
LORA_RANK = 8
MODEL_LENGTH = 256


@cache
def start_engine(place: Place, tensor_parallel: int = 1, lora: bool = False) -> Any:
    """vLLM's engine with the settings and the worker extension that verl gives its server. On a GPU a start takes a
    minute or more, so phases share one, with CUDA graphs; those with adapters or several GPUs try eager mode."""
    from verl.workers.rollout.vllm_rollout.utils import get_vllm_max_lora_rank
    from vllm import LLM

    # of the socket that weights go through: verl's worker extension puts it together from these
    os.environ.update({"VERL_RAY_JOB_ID": f"check-{uuid4().hex[:8]}", "VERL_REPLICA_RANK": "0"})
    settings: dict[str, Any] = {"enable_lora": True, "max_loras": 1, "max_lora_rank": get_vllm_max_lora_rank(LORA_RANK)}
    settings = settings if lora else {}
    eager = not place.gpus or lora or tensor_parallel > 1
    if place.gpus:
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
        settings |= {
            "distributed_executor_backend": "mp",
            "worker_extension_cls": "verl.workers.rollout.vllm_rollout.utils.vLLMColocateWorkerExtension",
            "enable_sleep_mode": True,
            "gpu_memory_utilization": 0.3,
        }
        if not eager:
            settings["compilation_config"] = {"cudagraph_mode": "FULL_AND_PIECEWISE"}
    else:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        settings |= {
            "distributed_executor_backend": "convrec.generation.executor.InProcessExecutor",
            "worker_extension_cls": "convrec.cpu.server.CPUWorkerExtension",
        }
    return LLM(
        model=str(place.model()),
        dtype=place.dtype,
        enforce_eager=eager,
        tensor_parallel_size=tensor_parallel,
        max_model_len=MODEL_LENGTH,
        max_num_seqs=64,
        enable_prefix_caching=True,
        logprobs_mode="processed_logprobs",
        disable_log_stats=True,
        seed=0,
        **settings,
    )


def sample(engine: Any, adapter: bool = False) -> tuple[list[list[int]], list[list[int]], torch.Tensor, float]:
    """(token ids of each row, those of its prompt, log-probs of all sampled tokens, seconds)."""
    from verl.workers.rollout.vllm_rollout.utils import VLLM_LORA_INT_ID, VLLM_LORA_NAME, VLLM_LORA_PATH
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(3, 500, (5 + 9 * row,), generator=generator).tolist() for row in range(PROMPTS)]
    settings = SamplingParams(temperature=1.0, n=RESPONSES, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=0, seed=1)
    request = LoRARequest(VLLM_LORA_NAME, VLLM_LORA_INT_ID, VLLM_LORA_PATH) if adapter else None
    start = time.perf_counter()
    inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
    outputs = engine.generate(inputs, settings, use_tqdm=False, lora_request=request)
    seconds = time.perf_counter() - start
    rows, starts, log_probs = [], [], []
    for prompt, output in zip(prompts, outputs, strict=True):
        for answer in output.outputs:
            rows.append(prompt + list(answer.token_ids))
            starts.append(prompt)
            log_probs += [entry[token].logprob for token, entry in zip(answer.token_ids, answer.logprobs, strict=True)]
    return rows, starts, torch.tensor(log_probs), seconds


@torch.no_grad()
def policy_log_probs(policy: torch.nn.Module, rows: list[list[int]], prompts: list[list[int]]) -> torch.Tensor:
    """Of the sampled tokens, row after row, by transformers' model."""
    device, found = next(policy.parameters()).device, []
    for row, prompt in zip(rows, prompts, strict=True):
        logits = policy(torch.tensor([row], device=device)).logits[0, len(prompt) - 1 : -1].float()
        tokens = torch.tensor(row[len(prompt) :], device=device)
        found.append(logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0].cpu())
    return torch.cat(found)


def load_policy(place: Place, dtype: str) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(place.model(), dtype=getattr(torch, dtype))
    return model.to(place.device)


def compare(place: Place, engine: Any, policy: torch.nn.Module, adapter: bool = False) -> dict[str, Any]:
    """Sample, and have the policy say the same log-probs. `policy` is in fp32."""
    rows, prompts, sampled, seconds = sample(engine, adapter)
    figures: dict[str, Any] = {}
    for dtype in dict.fromkeys(["float32", place.dtype]):
        wanted = policy_log_probs(policy.to(getattr(torch, dtype)), rows, prompts)
        difference = (sampled - wanted).abs()
        figures[f"mean difference to {dtype}"] = float(difference.mean())
        figures[f"largest difference to {dtype}"] = float(difference.max())
        require_at_most(f"mean |log p| difference to a {dtype} policy", float(difference.mean()), BOUND[place.dtype])
    figures["tokens a second"] = round(len(sampled) / seconds)
    return figures


def rollout(place: Place) -> dict[str, Any]:
    """On a GPU with CUDA graphs, as runs have it."""
    start = time.perf_counter()
    engine = start_engine(place)
    seconds = time.perf_counter() - start
    return {"seconds to start": seconds} | compare(place, engine, load_policy(place, "float32"))


def send(place: Place, engine: Any, weights: Iterable[tuple[str, torch.Tensor]], **settings: Any) -> float:
    """Hand weights to vLLM's worker as verl does, through CUDA IPC, or shared memory on a CPU; seconds."""
    from verl.utils.device import is_support_ipc
    from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender

    use_shm = not is_support_ipc()
    handle = f"ipc:///tmp/rl-colocate-zmq-{os.environ['VERL_RAY_JOB_ID']}-replica-0-rank-0.sock"
    handle = handle if place.gpus else in_run_folder(handle)  # convrec.cpu.server has it there
    sender = BucketedWeightSender(handle, bucket_size_mb=64, use_shm=use_shm)
    start = time.perf_counter()
    with ThreadPoolExecutor(1) as beside:
        received = beside.submit(
            engine.collective_rpc, "update_weights_from_ipc", kwargs={**settings, "use_shm": use_shm}
        )
        asyncio.run(sender.async_send_weights(iter(weights)))
        received.result()
    engine.reset_prefix_cache()
    return time.perf_counter() - start


def changed_policy(place: Place) -> torch.nn.Module:
    """The model with other weights."""
    policy = load_policy(place, "float32")
    generator = torch.Generator(device=place.device).manual_seed(2)
    with torch.no_grad():
        for parameter in policy.parameters():
            noise = torch.randn(parameter.shape, generator=generator, device=place.device)
            parameter.add_(0.02 * noise)
    return policy


def weights(place: Place) -> dict[str, Any]:
    """Other weights, tied head included, reach a running engine: it then samples from them."""
    engine, policy = start_engine(place), changed_policy(place)
    rows, prompts, before, _ = sample(engine)
    old = float((before - policy_log_probs(policy, rows, prompts)).abs().mean())
    require(old > 0.05, f"the new weights are too near to the old ones to tell them apart: {old:.3g}")
    sent = [(name, value.to(getattr(torch, place.dtype))) for name, value in policy.state_dict().items()]
    seconds = send(place, engine, sent)
    return {"seconds": seconds, "mean difference before": old} | compare(place, engine, policy)


def lora_rollout(place: Place) -> dict[str, Any]:
    """Adapters go to the engine as verl sends them, and change what it samples as they change the policy."""
    from peft import LoraConfig, get_peft_model
    from peft.utils import get_peft_model_state_dict

    engine = start_engine(place, lora=True)
    adapter = LoraConfig(r=LORA_RANK, lora_alpha=2 * LORA_RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    policy: Any = get_peft_model(load_policy(place, "float32"), adapter)
    generator = torch.Generator(device=place.device).manual_seed(3)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:  # zero at the beginning
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator, device=place.device))
    rows, prompts, before, _ = sample(engine)
    old = float((before - policy_log_probs(policy, rows, prompts)).abs().mean())
    require(old > 0.05, f"the adapter changes too little to tell: {old:.3g}")
    settings = policy.peft_config["default"].to_dict()
    seconds = send(place, engine, get_peft_model_state_dict(policy).items(), peft_config=settings, base_sync_done=True)
    figures = compare(place, engine, policy, adapter=True)
    return {"seconds": seconds, "mean difference without": old} | figures


def sleep(place: Place) -> dict[str, Any]:
    """Between two steps: level 2 drops weights and KV cache; woken, it gets new weights and samples with them."""
    engine, policy = start_engine(place), changed_policy(place)

    def used() -> float:
        free, total = torch.cuda.mem_get_info()
        return (total - free) / 2**30

    awake = used()
    start = time.perf_counter()
    engine.sleep(level=2)
    asleep, seconds = used(), time.perf_counter() - start
    require(asleep < awake - 1, f"{awake:.2f} GiB were in use, {asleep:.2f} GiB are while vLLM sleeps")
    engine.wake_up(tags=["weights"])
    sent = send(place, engine, [(n, v.to(getattr(torch, place.dtype))) for n, v in policy.state_dict().items()])
    engine.wake_up(tags=["kv_cache"])
    figures = {"gib awake": awake, "gib asleep": asleep, "seconds to sleep": seconds, "seconds to send": sent}
    return figures | compare(place, engine, policy)


def tensor_parallel(place: Place) -> dict[str, Any]:
    return compare(place, start_engine(place, tensor_parallel=2), load_policy(place, "float32"))
