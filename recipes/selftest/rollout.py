"""Phases of the rollout: vLLM as verl starts it, its log-probs against the policy's, verl's weight transfer.

Differences are |log p_vllm - log p_policy| over the tokens that vLLM has sampled, with the policy in fp32 and, on a
GPU, also in bf16. A run's `rollout_probs_diff` and `convrec.rollout_check_bound` are about the same difference.

On a GPU, vLLM 0.24 runs Llama and Qwen3 with its model runner V2, Qwen2 and models with a logits processor with V1.
"""

import asyncio
import os
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from convrec.data.tokenizer import load_tokenizer
from convrec.features.constrained.catalog_trie import CatalogTrie, build_catalog_trie, save_catalog_trie
from convrec.features.constrained.choices import ChoiceReader
from convrec.features.constrained.log_probs import ConstrainedHead
from convrec.features.constrained.vllm_lists import EXCLUDE, ITEMS, PROCESSOR, TRIE
from convrec.runs.guard import move_socket_to_run_folder
from convrec.titles.catalog import Catalog
from convrec.titles.matching import Matcher
from recipes.selftest.checks import Machine, require, require_at_most

PROMPTS = 6
RESPONSES = 4
NEW_TOKENS = 32
# Bounds of the mean difference; with other weights than the policy's it is 0.3 and more.
BOUND = {"bfloat16": 0.05, "float32": 1e-4}
LORA_RANK = 8
MODEL_LENGTH = 256
CATALOG = Catalog.from_items([(" ".join(words), 1950 + row) for row, words in enumerate(product("abc", repeat=3))])
CONSTRAINT = [4, 1, 26]  # number of items, then excluded rows of the catalog
Rows = list[tuple[list[int], list[int]]]  # token ids of a prompt and of a response


@cache
def start_engine(machine: Machine, tensor_parallel: int = 1, lora: bool = False, trie_file: Path | None = None) -> Any:
    """Start vLLM's engine with the settings and the worker extension of verl's server.

    On a GPU a start takes a minute or more, so phases share an engine with CUDA graphs; phases with adapters or several
    GPUs use eager mode. The same arguments return the same engine.

    Args:
        machine: the machine.
        tensor_parallel: GPUs of the engine.
        lora: whether it takes adapters.
        trie_file: the trie of constrained lists; None for free ones only.

    Returns:
        vLLM's LLM.
    """
    from verl.workers.rollout.vllm_rollout.utils import get_vllm_max_lora_rank
    from vllm import LLM

    # verl's worker extension builds the name of the socket for weights from these
    os.environ.update({"VERL_RAY_JOB_ID": f"check-{uuid4().hex[:8]}", "VERL_REPLICA_RANK": "0"})
    settings: dict[str, Any] = {"enable_lora": True, "max_loras": 1, "max_lora_rank": get_vllm_max_lora_rank(LORA_RANK)}
    settings = settings if lora else {}
    if trie_file:
        settings |= {"logits_processors": [PROCESSOR], "additional_config": {TRIE: str(trie_file)}}
    eager = not machine.gpus or lora or tensor_parallel > 1
    if machine.gpus:
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
        settings |= {
            "distributed_executor_backend": "mp",
            "worker_extension_cls": "convrec.rollout.server.WorkerExtension",
            "enable_sleep_mode": True,
            "gpu_memory_utilization": 0.3,
        }
        if not eager:
            settings["compilation_config"] = {"cudagraph_mode": "FULL_AND_PIECEWISE"}
    else:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        settings |= {
            "distributed_executor_backend": "convrec.inference.engines.executor.InProcessExecutor",
            "worker_extension_cls": "convrec.cpu.server.CPUWorkerExtension",
        }
    return LLM(
        model=str(machine.make_model()),
        dtype=machine.dtype,
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


def sample(engine: Any, adapter: bool = False, is_constrained: bool = False) -> tuple[Rows, torch.Tensor]:
    """Sample RESPONSES responses for each of PROMPTS generated prompts.

    Args:
        engine: from `start_engine`.
        adapter: whether to sample with the adapter that was sent.
        is_constrained: whether lists are under CONSTRAINT.

    Returns:
        The rows, and the log-probs of all sampled tokens, (tokens,).
    """
    from verl.workers.rollout.vllm_rollout.utils import VLLM_LORA_INT_ID, VLLM_LORA_NAME, VLLM_LORA_PATH
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(3, 500, (5 + 9 * row,), generator=generator).tolist() for row in range(PROMPTS)]
    length: dict[str, Any] = {"max_tokens": NEW_TOKENS, "ignore_eos": True}
    if is_constrained:
        length = {"max_tokens": MODEL_LENGTH // 2, "extra_args": {ITEMS: CONSTRAINT[0], EXCLUDE: CONSTRAINT[1:]}}
    settings = SamplingParams(temperature=1.0, n=RESPONSES, logprobs=0, seed=1, **length)
    request = LoRARequest(VLLM_LORA_NAME, VLLM_LORA_INT_ID, VLLM_LORA_PATH) if adapter else None
    inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
    outputs = engine.generate(inputs, settings, use_tqdm=False, lora_request=request)
    answers = [
        (prompt, response) for prompt, output in zip(prompts, outputs, strict=True) for response in output.outputs
    ]
    log_probs = [
        entry[token].logprob
        for _, response in answers
        for token, entry in zip(response.token_ids, response.logprobs, strict=True)
    ]
    return [(prompt, list(response.token_ids)) for prompt, response in answers], torch.tensor(log_probs)


@torch.no_grad()
def compute_policy_log_probs(policy: torch.nn.Module, rows: Rows) -> torch.Tensor:
    """Compute the log-probs of all response tokens, one row at a time, with the model of transformers.

    Returns:
        The log-probs of one row after the other, (tokens,), float32 on the CPU.
    """
    device = next(policy.parameters()).device
    log_probs = []
    for prompt, response in rows:
        logits = policy(torch.tensor([prompt + response], device=device)).logits[0, len(prompt) - 1 : -1].float()
        log_probs.append(logits.log_softmax(-1).gather(1, torch.tensor(response, device=device)[:, None])[:, 0].cpu())
    return torch.cat(log_probs)


@torch.no_grad()
def compute_constrained_log_probs(policy: Any, rows: Rows, trie: CatalogTrie) -> torch.Tensor:
    """Compute log-probs under CONSTRAINT, as an update does.

    Args:
        policy: the model of transformers.
        rows: constrained responses.
        trie: of the catalog.

    Returns:
        The log-probs of one row after the other, (tokens,); 0 for forced tokens.

    Raises:
        ValueError: a response violates the constraint.
    """
    device = policy.device
    reader = ChoiceReader(trie)
    head = ConstrainedHead(trie)
    log_probs = []
    for prompt, response in rows:
        hidden = policy.model(torch.tensor([prompt + response], device=device)).last_hidden_state[0]
        choices = reader.read(response, CONSTRAINT)
        log_probs.append(head.log_probs(hidden[len(prompt) - 1 : -1], policy.lm_head.weight, choices)[0].float().cpu())
    return torch.cat(log_probs)


def load_policy(machine: Machine, noise: float = 0.0) -> torch.nn.Module:
    """Load the model in fp32.

    Args:
        machine: the machine.
        noise: standard deviation of the noise added to its weights; 0 for the weights that the engine has loaded.
    """
    from transformers import AutoModelForCausalLM

    policy = AutoModelForCausalLM.from_pretrained(machine.make_model(), dtype=torch.float32).to(machine.device)
    generator = torch.Generator(device=machine.device).manual_seed(2)
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(noise * torch.randn(weight.shape, generator=generator, device=machine.device))
    return policy


def compare(
    machine: Machine, engine: Any, policy: torch.nn.Module, adapter: bool = False, trie: CatalogTrie | None = None
) -> dict[str, Any]:
    """Check that sampled log-probs match those of a policy, in fp32 and in the machine's dtype.

    Args:
        machine: the machine.
        engine: from `start_engine`.
        policy: the same weights; its dtype is changed.
        adapter: whether to sample with the adapter that was sent.
        trie: compares constrained lists; None for free ones.

    Returns:
        The figures of the phase.

    Raises:
        CheckFailed: the mean difference is too large.
    """
    start = time.perf_counter()
    rows, sampled = sample(engine, adapter, trie is not None)
    figures: dict[str, Any] = {"tokens a second": round(len(sampled) / (time.perf_counter() - start))}
    figures["model runner"] = "V2" if engine.llm_engine.vllm_config.use_v2_model_runner else "V1"
    for dtype in dict.fromkeys(["float32", machine.dtype]):
        policy = policy.to(getattr(torch, dtype))
        computed = compute_constrained_log_probs(policy, rows, trie) if trie else compute_policy_log_probs(policy, rows)
        difference = (sampled - computed).abs()[(sampled != 0) | (computed != 0)]  # forced tokens are 0 in both
        figures[f"mean difference to {dtype}"] = float(difference.mean())
        figures[f"largest difference to {dtype}"] = float(difference.max())
        require_at_most(f"mean |log p| difference to a {dtype} policy", float(difference.mean()), BOUND[machine.dtype])
    return figures


def measure_difference(engine: Any, policy: torch.nn.Module) -> float:
    """Measure how far an engine is from a policy before its weights are sent.

    Returns:
        The mean difference of log-probs.

    Raises:
        CheckFailed: it is too small to notice whether weights arrive.
    """
    rows, sampled = sample(engine)
    difference = float((sampled - compute_policy_log_probs(policy, rows)).abs().mean())
    require(difference > 0.05, f"old and new weights are too similar to tell apart: {difference:.3g}")
    return difference


def send_weights(
    machine: Machine,
    engine: Any,
    weights: Iterable[tuple[str, torch.Tensor]],
    adapter_settings: Mapping[str, Any] | None = None,
) -> float:
    """Send weights to vLLM's worker as verl does, through CUDA IPC, or shared memory on a CPU.

    Args:
        machine: of the engine.
        engine: that receives the weights.
        weights: by name.
        adapter_settings: PEFT's settings, if the weights are those of an adapter.

    Returns:
        Seconds of the transfer.
    """
    from verl.utils.device import is_support_ipc
    from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender

    settings: dict[str, Any] = {"use_shm": not is_support_ipc()}
    if adapter_settings is not None:
        settings |= {"peft_config": adapter_settings, "base_sync_done": True}
    handle = f"rl-colocate-zmq-{os.environ['VERL_RAY_JOB_ID']}-replica-0-rank-0.sock"
    sender = BucketedWeightSender(move_socket_to_run_folder(handle), bucket_size_mb=64, use_shm=settings["use_shm"])
    start = time.perf_counter()
    with ThreadPoolExecutor(1) as executor:
        received = executor.submit(engine.collective_rpc, "update_weights_from_ipc", kwargs=settings)
        asyncio.run(sender.async_send_weights(iter(weights)))
        received.result()
    engine.reset_prefix_cache()
    return time.perf_counter() - start


def cast_weights(machine: Machine, policy: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return a policy's weights in the machine's dtype."""
    return [(name, value.to(getattr(torch, machine.dtype))) for name, value in policy.state_dict().items()]


def check_rollout(machine: Machine) -> dict[str, Any]:
    """Check log-probs, on a GPU with CUDA graphs, as in runs."""
    start = time.perf_counter()
    engine = start_engine(machine)
    return {"seconds to start": time.perf_counter() - start} | compare(machine, engine, load_policy(machine))


def check_weights(machine: Machine) -> dict[str, Any]:
    """Check that a running engine samples from new weights, including a tied head, once they are sent."""
    engine = start_engine(machine)
    policy = load_policy(machine, noise=0.02)
    before = measure_difference(engine, policy)
    seconds = send_weights(machine, engine, cast_weights(machine, policy))
    return {"seconds": seconds, "mean difference before": before} | compare(machine, engine, policy)


def check_lora_rollout(machine: Machine) -> dict[str, Any]:
    """Check that adapters sent as verl sends them change the engine as they change the policy."""
    from peft import LoraConfig, get_peft_model
    from peft.utils import get_peft_model_state_dict

    engine = start_engine(machine, lora=True)
    adapter = LoraConfig(r=LORA_RANK, lora_alpha=2 * LORA_RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    policy: Any = get_peft_model(load_policy(machine), adapter)
    torch.manual_seed(3)
    for name, parameter in policy.named_parameters():
        if "lora_B" in name:  # PEFT initializes it to zero
            torch.nn.init.normal_(parameter, std=0.1)
    before = measure_difference(engine, policy)
    settings = policy.peft_config["default"].to_dict()
    seconds = send_weights(machine, engine, get_peft_model_state_dict(policy).items(), settings)
    return {"seconds": seconds, "mean difference without": before} | compare(machine, engine, policy, adapter=True)


def check_sleep(machine: Machine) -> dict[str, Any]:
    """Check sleep level 2, which drops weights and KV cache, and that a woken engine samples from new weights."""
    engine = start_engine(machine)
    policy = load_policy(machine, noise=0.02)

    def used() -> float:
        free, total = torch.cuda.mem_get_info()
        return (total - free) / 2**30

    awake = used()
    start = time.perf_counter()
    engine.sleep(level=2)
    asleep = used()
    seconds = time.perf_counter() - start
    require(asleep < awake - 1, f"{awake:.2f} GiB in use while awake, {asleep:.2f} GiB while asleep")
    engine.wake_up(tags=["weights"])
    sent = send_weights(machine, engine, cast_weights(machine, policy))
    engine.wake_up(tags=["kv_cache"])
    figures = {"gib awake": awake, "gib asleep": asleep, "seconds to sleep": seconds, "seconds to send": sent}
    return figures | compare(machine, engine, policy)


def check_constrained(machine: Machine) -> dict[str, Any]:
    """Check that constrained lists hold catalog items only, and that their log-probs are those of an update."""
    tokenizer, _ = load_tokenizer(str(machine.make_model()))
    file = machine.folder / "catalog.npz"
    trie = build_catalog_trie(Matcher(CATALOG, "exact"), tokenizer, "\n")
    save_catalog_trie(file, trie)
    return compare(machine, start_engine(machine, trie_file=file), load_policy(machine), trie=trie)


def check_tensor_parallel(machine: Machine) -> dict[str, Any]:
    """Check log-probs of an engine on two GPUs."""
    return compare(machine, start_engine(machine, tensor_parallel=2), load_policy(machine))
