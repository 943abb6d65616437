"""What a run needs of memory and disk, from the model's config and the batch: estimates, on the high side.

P parameters over S processes that share one copy (all of them, or fsdp_size), T tokens of a micro-batch, V words,
L layers, H hidden size:

    parameters       4 P / S, fp32;  gradients 4 P / S;  optimizer 8 P / S (Adam);  reference 4 P / S
                     LoRA: the parameters alone
    gathered layers  2 P / L, twice (the next one is fetched while one computes)
    activations      T x H x L x 2 (a bf16 tensor a layer, the rest is recomputed), 16 times that without recomputation
    logits           T x V x (2 bf16 + 4 fp32 + 4 gradient); fused kernels have a chunk of them at a time
    checkpoint       P x (4 weights + 8 Adam + 4 in Hugging Face form)
"""

from dataclasses import dataclass, field, fields
from math import ceil
from typing import Any

from omegaconf import DictConfig, OmegaConf

from convrec.lists.settings import ListSettings
from recipes.planning.models import ModelSize

GIB = 2**30
CPU_PROCESSES = 12  # that import verl or vLLM
PROCESS_BYTES = 6 * GIB // 10  # 0.3-0.6 GiB each

FUSED_CHUNK = 512  # tokens; verl's FusedLinearForPPO
SHARD_BYTES = 12  # of a parameter in a checkpoint's shards: fp32 weights and Adam's two moments
EXPORT_BYTES = 4  # and in its Hugging Face form, fp32
FULL = 0.9  # of a device's memory: with more the allocator runs out of it by fragments
BASE_BYTES = 2 * GIB  # a process besides its tensors, assumed: CUDA context, NCCL, the allocator's slack
ASLEEP_BYTES = 16 * GIB // 10  # vLLM asleep: measured on one H100, notes/gpu.md
VLLM_BYTES = 4 * GIB  # vLLM besides weights and cache, assumed: activations, CUDA graphs
PROMPT_TOKENS = 400.0  # assumed: conversation and instruction
ITEM_TOKENS = 9.9  # mean of Reddit-v2's titles, with year and line break: notes/performance.md


def at(*keys: str, default: Any = None) -> Any:
    """A field that the config has under one of these keys, below `actor_rollout_ref` or at its top."""
    return field(default=default, metadata={"keys": [top + key for key in keys for top in ("actor_rollout_ref.", "")]})


@dataclass(frozen=True)
class Run:
    """What memory and time follow from. prompt, response: tokens, in the mean. passes: of log-probs, beside the update.
    tensor_parallel: 0 in SFT, which has no rollout."""

    size: ModelSize
    prompt: float
    response: float
    passes: int = 0
    device: str = at("trainer.device")
    nodes: int = at("trainer.nnodes")
    gpus_per_node: int = at("trainer.n_gpus_per_node")
    prompts: int = at("data.train_batch_size")
    rollouts: int = at("rollout.n", default=1)
    longest: int = at("data.max_length")  # tokens of a sequence
    by_tokens: bool = at("actor.use_dynamic_bsz", "data.use_dynamic_bsz")
    most_tokens: int = at("actor.ppo_max_token_len_per_gpu", "data.max_token_len_per_gpu")
    most_rows: int = at("actor.ppo_micro_batch_size_per_gpu", "data.micro_batch_size_per_gpu", default=1)
    mini_batch: int = at("actor.ppo_mini_batch_size", "data.train_batch_size")
    mu: int = at("actor.ppo_epochs", default=1)
    has_reference: bool = at("actor.use_kl_loss", default=False)
    fsdp_size: int = at("actor.fsdp_config.fsdp_size", "engine.fsdp_size", default=-1)
    recomputes: bool = at("model.enable_gradient_checkpointing")
    lora_rank: int = at("model.lora_rank")
    fused: bool = at("model.use_fused_kernels")
    offload_parameters: bool = at("actor.fsdp_config.param_offload", "engine.param_offload", default=False)
    offload_optimizer: bool = at("actor.fsdp_config.optimizer_offload", "engine.optimizer_offload", default=False)
    tensor_parallel: int = at("rollout.tensor_model_parallel_size", default=0)
    rollout_dtype: str = at("rollout.dtype")
    max_sequences: int = at("rollout.max_num_seqs")
    memory_share: float = at("rollout.gpu_memory_utilization")
    sleeps: bool = at("rollout.free_cache_engine", default=True)

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def sharing(self) -> int:
        """Processes that have one copy of the model between them."""
        return self.fsdp_size if 0 < self.fsdp_size < self.gpus else self.gpus

    @property
    def micro_tokens(self) -> int:
        """Of a micro-batch, at most."""
        return max(self.longest, self.most_tokens) if self.by_tokens else self.longest * self.most_rows

    @property
    def tokens(self) -> float:
        """Of a GPU's share of a step, in the mean."""
        return self.prompts * self.rollouts * (self.prompt + self.response) / self.gpus

    @property
    def micro_batches(self) -> int:
        """Forward passes of a GPU over its share of a step."""
        return max(self.prompts // self.mini_batch, ceil(self.tokens / self.micro_tokens))


def run_of(config: DictConfig, size: ModelSize, prompt: float | None = None, response: float | None = None) -> Run:
    """prompt, response: tokens, in the mean; None: what is assumed of prompts and of lists."""
    data, given = config.data, dict[str, Any]()
    for entry in fields(Run):
        for key in entry.metadata.get("keys", ()):
            if (value := OmegaConf.select(config, key)) is not None:
                given.setdefault(entry.name, value)
    longest_prompt, longest_response = data.get("max_prompt_length"), data.get("max_response_length")
    longest = given.setdefault("longest", (longest_prompt or 0) + (longest_response or 0))
    named = ITEM_TOKENS * (OmegaConf.select(config, "convrec.candidates") or 0)
    prompt = min(prompt or PROMPT_TOKENS + named, longest_prompt or longest - 1)
    num_items = OmegaConf.select(config, "convrec.num_items") or ListSettings().num_items
    response = min(response or ITEM_TOKENS * num_items + 1, longest_response or longest - prompt)  # + 1: its end
    return Run(size, prompt, response, **given)


def host_bytes(run: Run) -> int:
    """Of a host without GPUs, all processes together."""
    processes = CPU_PROCESSES if run.tensor_parallel else 1
    training = sum(training_parts(run).values())
    return run.gpus_per_node * (training + 3 * rollout_weights(run)) + processes * PROCESS_BYTES


def gpu_host_bytes(run: Run) -> int:
    """Of a node with GPUs: FSDP2 keeps the reference in pinned host memory, what is offloaded waits there, and one
    process holds the model whole when it is loaded and exported."""
    share = run.size.parameters * 4 / run.sharing
    away = run.has_reference * (not run.lora_rank) + run.offload_parameters + 2 * run.offload_optimizer
    processes = CPU_PROCESSES + run.gpus_per_node
    return int(run.gpus_per_node * share * away + EXPORT_BYTES * run.size.parameters + processes * PROCESS_BYTES)


def gpu_parts(run: Run, memory: float) -> tuple[dict[str, int], dict[str, int]]:
    """What a GPU of so many bytes must hold, by part: while it trains, and while vLLM samples (empty in SFT)."""
    training = training_parts(run)
    if not run.tensor_parallel:
        return training, {}
    resident = [name for name in ("parameters", "optimizer") if not getattr(run, f"offload_{name}")]
    sampling = {name: training[name] for name in resident}
    sampling |= {"vLLM's weights": rollout_weights(run), "vLLM besides": VLLM_BYTES}
    asleep = ASLEEP_BYTES if run.sleeps else int(run.memory_share * memory)
    return training | {"vLLM meanwhile": asleep}, sampling | {"cache": max(0, cache_bytes(run, memory))}


def training_parts(run: Run) -> dict[str, int]:
    """Of a GPU, without vLLM."""
    size, tokens = run.size, min(run.micro_tokens, run.prompts * run.rollouts * run.longest / run.gpus)
    width = 4 if run.device == "cpu" else 2  # bytes of an activation
    share = size.parameters * 4 / run.sharing
    # LoRA's frozen weights have no gradients, and are the reference when the adapters are off
    trained = 0 if run.lora_rank else 1
    parts = {
        "parameters": share,
        "gradients": trained * share,
        "optimizer": trained * share * 2,
        "reference": trained * run.has_reference * share * (run.device == "cpu"),  # of GPUs: gpu_host_bytes
        "gathered layers": 2 * size.parameters / max(1, size.layers) * width if run.gpus > 1 else 0,
        "activations": tokens * size.hidden * size.layers * width * (1 if run.recomputes else 16),
        "logits": (min(tokens, FUSED_CHUNK) if run.fused else tokens) * size.vocabulary * (width + 8),
        "process": BASE_BYTES,
    }
    return {name: int(part) for name, part in parts.items()}


def rollout_weights(run: Run) -> int:
    """Of each GPU of a replica; 0 in SFT."""
    width = 4 if run.rollout_dtype == "float32" else 2
    return run.size.parameters * width // run.tensor_parallel if run.tensor_parallel else 0


def cache_bytes(run: Run, memory: float) -> int:
    """Of each GPU, for keys and values; below 0 where vLLM's share does not even hold the weights."""
    return int(run.memory_share * memory) - rollout_weights(run) - VLLM_BYTES


def cache_bytes_of_token(run: Run) -> float:
    """Keys and values of every layer, in bf16. Their heads are dealt out whole over a replica's GPUs, or copied."""
    size = run.size
    return 2 * 2 * size.layers * size.head_size * size.kv_heads / min(run.tensor_parallel, size.kv_heads)


def checkpoint_bytes(size: ModelSize) -> int:
    return size.parameters * (SHARD_BYTES + EXPORT_BYTES)


def lacks(run: Run, memory: float) -> dict[str, bool]:
    """What does not fit into GPUs of so many bytes, in words -> whether that is certain. Empty where all fits."""
    room, found = FULL * memory, {}
    # what training needs is an estimate on the high side
    for name, parts, certain in zip(("training", "sampling"), gpu_parts(run, memory), (1.5, 1.0), strict=True):
        if (needed := sum(parts.values())) > room:
            text = f"{name} needs {needed / GIB:.1f} GiB of a GPU, {room / GIB:.1f} can be used"
            found[text] = needed > certain * memory
    # one sequence of the greatest length: vLLM would refuse to start
    short = run.longest * cache_bytes_of_token(run) - cache_bytes(run, memory) if run.tensor_parallel else 0.0
    if short > 0:
        text = f"vLLM's share lacks {short / GIB:.1f} GiB for its weights and a sequence of {run.longest:,} tokens"
        found[text] = True
    return found
