"""What a run needs of memory and disk, from the model's config and the batch: estimates, on the high side.

P parameters over S processes that share one copy (all of them, or fsdp_size), T tokens of a micro-batch, V words,
L layers, H hidden size, I size of the MLP:

    parameters       4 P / S, fp32;  gradients 4 P / S;  optimizer 8 P / S (Adam);  reference 4 P / S
                     LoRA: the parameters alone
    gathered layers  2 P / L, twice (the next one is fetched while one computes)
    activations      T x H x L x 2 (a bf16 tensor a layer, the rest is recomputed); without recomputation
                     T x L x (11 H + 4 I) x 2, what a Llama's layer keeps for its backward pass
    logits           T x V x 12, at the peak: log-softmax, its gradient and the logits', fp32 each
                     in chunks: of C tokens at a time C x V x 6 (bf16 and fp32), and the head's gradient, V x H x 6
    checkpoint       P x (4 weights + 8 Adam + 4 in Hugging Face form)

On a CPU activations are counted in fp32, T counts the padding of rows too, and logits are made of trained tokens alone,
16 bytes each. The training process holds the weights once more, as they are loaded and exported. What processes take
besides was measured: notes/real-size-on-cpu.md. A run that is resumed takes more while it loads.
"""

from dataclasses import dataclass
from math import ceil

from convrec.checkpoints.logits import find_logit_changes
from convrec.lists.settings import ListSettings
from convrec.settings.rank_grpo import RankGRPOConfig
from convrec.settings.run import AUTO, RolloutMemory, Run
from convrec.settings.sft import SFTConfig
from convrec.settings.training import RLConfig, TrainingConfig
from recipes.planning.models import ModelSize

GIB = 2**30
CPU_PROCESSES = 12  # that import verl or vLLM, on a node with GPUs
PROCESS_BYTES = 6 * GIB // 10  # 0.3-0.6 GiB each
# What a run on a CPU takes besides its model, measured with a model of a million parameters.
CPU_SFT_BYTES = 1 * GIB
CPU_RL_BYTES = 47 * GIB // 10
HEAP_SHARE = 0.15  # of activations and logits: freed memory that the C library keeps in pieces, measured

# What a layer of a Llama keeps for its backward pass, in hidden states (around both norms, and of queries, keys, values
# and their output) and in states of the MLP (gate, its activation, up, their product).
KEPT_HIDDEN = 11
KEPT_INTERMEDIATE = 4
CPU_LOGIT_BYTES = 16  # of a trained token and a word: logits, log-softmax, and the gradients of both, in fp32
# Bytes of a logit at the peak: measured in fp32 by benchmarks/bench_log_probs.py, counted for bf16 (notes/gpu.md).
CHUNK_TOKENS = 1024  # convrec.training.token_log_probs.CHUNK, which would import torch
WHOLE_LOGIT_BYTES = 12
CHUNKED_LOGIT_BYTES = 6
HEAD_GRADIENT_BYTES = 6  # of a weight: a chunk's in bf16, and the sum over chunks in fp32
SHARD_BYTES = 12  # of a parameter in a checkpoint's shards: fp32 weights and Adam's two moments
EXPORT_BYTES = 4  # and in its Hugging Face form, fp32
FULL = 0.9  # of a device's memory: with more the allocator runs out of it by fragments
BASE_BYTES = 2 * GIB  # a process besides its tensors, assumed: CUDA context, NCCL, the allocator's slack
ASLEEP_BYTES = 16 * GIB // 10  # vLLM asleep: measured on one H100, notes/gpu.md
VLLM_BYTES = 4 * GIB  # vLLM besides weights and cache, assumed: activations, CUDA graphs
PROMPT_TOKENS = 400.0  # assumed: conversation and instruction
ITEM_TOKENS = 9.9  # mean of Reddit-v2's titles, with year and line break: notes/performance.md


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What memory and time follow from.

    Attributes:
        size: of the model.
        prompt, response: tokens, on average.
        passes: of log-probs, besides the update.
        device: cpu, or torch's name of the accelerator.
        prompts: of a step; rollouts: of each.
        longest: tokens of the longest sequence.
        longest_allowed: tokens that the settings allow a sequence.
        packs: whether micro-batches are of `most_tokens` tokens, and not of `most_rows` sequences.
        pads: whether the sequences of a micro-batch are padded to the longest of them.
        mu: passes over a step's samples.
        recomputes: whether activations are recomputed.
        fsdp_size: processes that have one copy of the model between them; -1: all.
        tensor_parallel: devices of a replica; 0 in SFT, which has no rollout.
        max_sequences: that vLLM writes at once; memory_share: of a device, for vLLM.
        chunks_logits: whether logits are in memory for a chunk of tokens at a time, and not for all of a micro-batch.
        sleeps: whether vLLM gives its memory back while the run trains.
    """

    size: ModelSize
    prompt: float
    response: float
    passes: int = 0
    device: str
    nodes: int
    gpus_per_node: int
    prompts: int
    rollouts: int
    longest: int
    longest_allowed: int
    packs: bool
    pads: bool = False
    most_tokens: int
    most_rows: int = 1
    mini_batch: int
    mu: int
    has_reference: bool
    fsdp_size: int = -1
    offload_parameters: bool = False
    offload_optimizer: bool = False
    recomputes: bool
    lora_rank: int
    chunks_logits: bool
    tensor_parallel: int
    rollout_dtype: str = ""
    max_sequences: int = 0
    memory_share: float = 0.0
    sleeps: bool = True

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
        return max(self.longest, self.most_tokens) if self.packs else self.longest * self.most_rows

    @property
    def computed_tokens(self) -> float:
        """Positions of a micro-batch, at most: with the padding of its rows, and not more than a step has."""
        of_step = self.prompts * self.rollouts * self.longest / self.gpus
        if self.packs and self.pads:
            return min(of_step, self.balanced_tokens * max(1.0, self.longest / (self.prompt + self.response)))
        return min(of_step, self.micro_tokens)

    @property
    def balanced_tokens(self) -> float:
        """Tokens of each micro-batch of an update: verl makes as few as it can, of equal size."""
        of_update = self.mini_batch * self.rollouts * (self.prompt + self.response) / self.gpus
        return of_update / ceil(of_update / self.micro_tokens)

    @property
    def trained_tokens(self) -> float:
        """Tokens of a micro-batch that the loss is on."""
        return self.balanced_tokens * self.response / (self.prompt + self.response)

    @property
    def tokens(self) -> float:
        """Of a GPU's share of a step, in the mean."""
        return self.prompts * self.rollouts * (self.prompt + self.response) / self.gpus

    @property
    def micro_batches(self) -> int:
        """Forward passes of a GPU over its share of a step."""
        return max(self.prompts // self.mini_batch, ceil(self.tokens / self.micro_tokens))


def make_workload(
    run: Run[TrainingConfig],
    size: ModelSize,
    prompt: float | None = None,
    response: float | None = None,
    longest: int | None = None,
) -> Workload:
    """Return what a run is in these terms.

    Args:
        run: of which the batch is known.
        size: of its model.
        prompt, response: tokens, on average; None: what is assumed of prompts and of lists.
        longest: tokens of the longest sequence; None: as many as the settings allow.
    """
    settings = run.settings
    rl = settings if isinstance(settings, RLConfig) else None
    memory = run.rollout_memory if rl else RolloutMemory(dtype="", max_sequences=0, share=0.0, sleeps=True)
    longest_allowed, max_prompt = _token_limits(settings)
    prompt = min(prompt or PROMPT_TOKENS + ITEM_TOKENS * _candidates(settings), max_prompt)
    max_response = rl.max_response_length if rl else longest_allowed - prompt
    num_items = settings.num_items if isinstance(settings, RankGRPOConfig) else ListSettings.num_items
    response = min(response or ITEM_TOKENS * num_items + 1, max_response)  # + 1: its end
    return Workload(
        size=size,
        prompt=prompt,
        response=response,
        device=run.device,
        nodes=settings.num_nodes,
        gpus_per_node=run.gpus_per_node,
        prompts=run.train_batch_size,
        rollouts=rl.num_generations if rl else 1,
        longest=longest or longest_allowed,
        longest_allowed=longest_allowed,
        packs=run.packs_micro_batches,
        pads=run.pads_micro_batches,
        most_tokens=run.micro_batch_tokens // run.sequence_parallel_size,
        most_rows=run.micro_batch_rows,
        mini_batch=run.mini_batch_size if rl else run.train_batch_size,
        mu=rl.ppo_epochs if rl else 1,
        has_reference=run.has_reference,
        fsdp_size=run.sharding.fsdp_size,
        offload_parameters=run.sharding.offloads_parameters,
        offload_optimizer=run.sharding.offloads_optimizer,
        recomputes=run.recomputes_activations,
        lora_rank=run.lora_rank,
        chunks_logits=_chunks_logits(run),
        tensor_parallel=run.tensor_parallel if rl else 0,
        rollout_dtype=memory.dtype,
        max_sequences=memory.max_sequences,
        memory_share=memory.share,
        sleeps=memory.sleeps,
    )


def _chunks_logits(run: Run[TrainingConfig]) -> bool:
    """Whether the run has its logits in chunks: SFT does on a GPU, where nothing stands against it, without a setting.

    convrec.training.log_prob_head.leave_out_prompts says what does. A model that is still to be downloaded does not.
    """
    if run.uses_fused_kernels:
        return True
    on_gpu = run.is_sft and run.device != "cpu"
    return on_gpu and run.sequence_parallel_size == 1 and not find_logit_changes(run.model_section)


def _logit_bytes(workload: Workload) -> float:
    """Return the bytes of a micro-batch's logits at the peak, with those of the head's gradient where it is summed."""
    size = workload.size
    if workload.chunks_logits:
        chunk = min(workload.computed_tokens, CHUNK_TOKENS) * size.vocabulary * CHUNKED_LOGIT_BYTES
        trains_head = not workload.lora_rank
        return chunk + trains_head * size.vocabulary * size.hidden * HEAD_GRADIENT_BYTES
    if workload.device == "cpu":
        return workload.trained_tokens * size.vocabulary * CPU_LOGIT_BYTES
    return workload.computed_tokens * size.vocabulary * WHOLE_LOGIT_BYTES


def _token_limits(settings: TrainingConfig) -> tuple[int, int]:
    """(tokens of a sequence, tokens of a prompt), at most."""
    if isinstance(settings, RLConfig):
        return settings.max_prompt_length + settings.max_response_length, settings.max_prompt_length
    assert isinstance(settings, SFTConfig)
    return settings.max_length, settings.max_length - 1


def _candidates(settings: TrainingConfig) -> int:
    return settings.candidates if isinstance(settings, RankGRPOConfig | SFTConfig) else 0


def host_bytes(workload: Workload) -> int:
    """Of a host without GPUs, all processes together, at the peak of a step."""
    return sum(host_parts(workload).values())


def host_parts(workload: Workload) -> dict[str, int]:
    """Of a host without GPUs, by part. vLLM keeps the rollout's weights up to three times: loaded, packed, and sent."""
    training = training_parts(workload)
    parts = {name: workload.gpus_per_node * part for name, part in training.items()}
    parts["kept by the heap"] = int(HEAP_SHARE * (parts["activations"] + parts["logits"]))
    parts["vLLM's weights"] = workload.gpus_per_node * 3 * rollout_weights(workload)
    parts["processes"] = CPU_RL_BYTES if workload.tensor_parallel else CPU_SFT_BYTES
    return parts


def gpu_host_bytes(workload: Workload) -> int:
    """Of a node with GPUs: FSDP2 keeps the reference in pinned host memory, what is offloaded waits there, and one
    process holds the model whole when it is loaded and exported."""
    share = workload.size.parameters * 4 / workload.sharing
    reference = workload.has_reference * (not workload.lora_rank)
    away = reference + workload.offload_parameters + 2 * workload.offload_optimizer
    whole_model = EXPORT_BYTES * workload.size.parameters
    processes = CPU_PROCESSES + workload.gpus_per_node
    return int(workload.gpus_per_node * share * away + whole_model + processes * PROCESS_BYTES)


def gpu_parts(workload: Workload, memory: float) -> tuple[dict[str, int], dict[str, int]]:
    """What a GPU of so many bytes must hold, by part: while it trains, and while vLLM samples (empty in SFT)."""
    training = training_parts(workload)
    if not workload.tensor_parallel:
        return training, {}
    resident = [name for name in ("parameters", "optimizer") if not getattr(workload, f"offload_{name}")]
    sampling = {name: training[name] for name in resident}
    sampling |= {"vLLM's weights": rollout_weights(workload), "vLLM besides": VLLM_BYTES}
    asleep = ASLEEP_BYTES if workload.sleeps else int(workload.memory_share * memory)
    return training | {"vLLM meanwhile": asleep}, sampling | {"cache": max(0, cache_bytes(workload, memory))}


def training_parts(workload: Workload) -> dict[str, int]:
    """Of a GPU, without vLLM; of a process on a CPU, without what it takes besides its tensors."""
    size = workload.size
    is_cpu = workload.device == "cpu"
    width = 4 if is_cpu else 2  # bytes of an activation
    share = size.parameters * 4 / workload.sharing
    # LoRA's frozen weights have no gradients, and are the reference when the adapters are off
    trained = 0 if workload.lora_rank else 1
    parts = {
        "parameters": share,
        "gradients": trained * share,
        "optimizer": trained * share * 2,
        "reference": trained * workload.has_reference * share * is_cpu,  # of GPUs: gpu_host_bytes
        "copy of the weights": share * is_cpu,
        "gathered layers": 2 * size.parameters / max(1, size.layers) * width if workload.gpus > 1 else 0,
        "activations": workload.computed_tokens * _kept_of_token(workload) * width,
        "logits": _logit_bytes(workload),
        "process": 0 if is_cpu else BASE_BYTES,
    }
    return {name: int(part) for name, part in parts.items()}


def _kept_of_token(workload: Workload) -> int:
    """Numbers that the forward pass keeps of a token for the backward pass."""
    size = workload.size
    of_layer = size.hidden if workload.recomputes else KEPT_HIDDEN * size.hidden + KEPT_INTERMEDIATE * size.intermediate
    return size.layers * of_layer


def rollout_weights(workload: Workload) -> int:
    """Of each GPU of a replica; 0 in SFT."""
    width = 4 if workload.rollout_dtype in ("float32", AUTO) else 2
    return workload.size.parameters * width // workload.tensor_parallel if workload.tensor_parallel else 0


def cache_bytes(workload: Workload, memory: float) -> int:
    """Of each GPU, for keys and values; below 0 where vLLM's share does not even hold the weights."""
    return int(workload.memory_share * memory) - rollout_weights(workload) - VLLM_BYTES


def cache_bytes_of_token(workload: Workload) -> float:
    """Keys and values of every layer, in bf16. Their heads are dealt out whole over a replica's GPUs, or copied."""
    size = workload.size
    return 2 * 2 * size.layers * size.head_size * size.kv_heads / min(workload.tensor_parallel, size.kv_heads)


def checkpoint_bytes(size: ModelSize) -> int:
    return size.parameters * (SHARD_BYTES + EXPORT_BYTES)


def lacks(workload: Workload, memory: float) -> dict[str, bool]:
    """What does not fit into GPUs of so many bytes, in words -> whether that is certain. Empty where all fits."""
    room = FULL * memory
    found = {}
    # what training needs is an estimate on the high side
    for name, parts, certain in zip(("training", "sampling"), gpu_parts(workload, memory), (1.5, 1.0), strict=True):
        if (needed := sum(parts.values())) > room:
            text = f"{name} needs {needed / GIB:.1f} GiB of a GPU, {room / GIB:.1f} can be used"
            found[text] = needed > certain * memory
    # one sequence of the greatest length: vLLM would refuse to start
    short = 0.0
    if workload.tensor_parallel:
        short = workload.longest * cache_bytes_of_token(workload) - cache_bytes(workload, memory)
    if short > 0:
        text = f"vLLM's share lacks {short / GIB:.1f} GiB for its weights and a sequence of {workload.longest:,} tokens"
        found[text] = True
    return found
