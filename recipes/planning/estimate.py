"""Estimate the memory and disk space of a run from the model's config and the batch, on the high side.

P parameters over S processes that share one copy (all of them, or fsdp_size), T tokens of a micro-batch, vocabulary
size V, L layers, hidden size H, MLP size I:

    parameters       4 P / S, fp32;  gradients 4 P / S;  optimizer 8 P / S (Adam);  reference 4 P / S
                     LoRA: only the parameters
    gathered layers  2 P / L, twice (the next layer is fetched while one computes)
    activations      T x H x L x 2 (one bf16 tensor per layer, the rest is recomputed); without recomputation
                     T x L x (11 H + 4 I) x 2, which a Llama layer keeps for its backward pass
    logits           T x V x 12, at the peak: log-softmax, its gradient and that of the logits, fp32 each
                     in chunks of C tokens: C x V x 6 (bf16 and fp32), and the head's gradient, V x H x 6
    checkpoint       P x (4 weights + 8 Adam + 4 in Hugging Face form)

On a CPU activations are in fp32, T includes the padding of rows, and logits exist for trained tokens only, 16 bytes
each. The training process holds a second copy of the weights, to load and export them. The memory of processes without
their tensors was measured: notes/real-size-on-cpu.md. A resumed run needs more while it loads.
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
CPU_PROCESSES = 12  # processes that import verl or vLLM on a node with GPUs
PROCESS_BYTES = 6 * GIB // 10  # 0.3-0.6 GiB each
# Memory of a run on a CPU without its model, measured with a model of a million parameters.
CPU_SFT_BYTES = 1 * GIB
CPU_RL_BYTES = 47 * GIB // 10
HEAP_SHARE = 0.15  # freed memory that the C library keeps in fragments, per byte of activations and logits; measured

# Tensors that a Llama layer keeps for its backward pass: of hidden size (around both norms; queries, keys, values and
# their output) and of MLP size (gate, its activation, up, their product).
KEPT_HIDDEN = 11
KEPT_INTERMEDIATE = 4
CPU_LOGIT_BYTES = 16  # logit, log-softmax, and the gradients of both, in fp32
# Bytes per logit at the peak: measured in fp32 by benchmarks/bench_log_probs.py, counted for bf16 (notes/gpu.md).
CHUNK_TOKENS = 1024  # convrec.training.token_log_probs.CHUNK, repeated here because that module imports torch
WHOLE_LOGIT_BYTES = 12
CHUNKED_LOGIT_BYTES = 6
HEAD_GRADIENT_BYTES = 6  # per weight: the gradient of a chunk in bf16, and the sum over chunks in fp32
SHARD_BYTES = 12  # per parameter in a checkpoint's shards: fp32 weight and Adam's two moments
EXPORT_BYTES = 4  # per parameter in the checkpoint's Hugging Face form, fp32
FULL = 0.9  # usable share of a device's memory: above it, fragmentation makes allocations fail
BASE_BYTES = 2 * GIB  # memory of a process without its tensors, assumed: CUDA context, NCCL, the allocator's slack
ASLEEP_BYTES = 16 * GIB // 10  # vLLM asleep: measured on one H100, notes/gpu.md
VLLM_BYTES = 4 * GIB  # vLLM without weights and cache, assumed: activations, CUDA graphs
PROMPT_TOKENS = 400.0  # assumed: conversation and instruction
ITEM_TOKENS = 9.9  # mean over Reddit-v2's titles, with year and line break: notes/performance.md


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The quantities that determine a run's memory and time.

    Attributes:
        size: shape of the model.
        prompt: mean length of a prompt, in tokens.
        response: mean length of a response, in tokens.
        passes: forward passes for log-probs, not counting the update.
        device: "cpu", or torch's name of the accelerator.
        nodes: number of nodes that train.
        gpus_per_node: devices per node.
        prompts: prompts per step.
        rollouts: responses per prompt.
        longest: length of the longest sequence, in tokens.
        longest_allowed: maximum length of a sequence by the settings.
        packs: micro-batches have at most `most_tokens` tokens; else `most_rows` sequences.
        pads: the sequences of a micro-batch are padded to the longest.
        most_tokens: maximum number of tokens of a micro-batch that packs.
        most_rows: number of sequences of a micro-batch that does not pack.
        mini_batch: prompts per update.
        mu: passes over the samples of a step.
        has_reference: a reference model is kept.
        fsdp_size: processes that share one copy of the model; -1 means all.
        offload_parameters: parameters wait in host memory while vLLM samples.
        offload_optimizer: the optimizer's state waits in host memory while vLLM samples.
        recomputes: activations are recomputed in the backward pass.
        lora_rank: rank of the adapters; 0 without LoRA.
        chunks_logits: logits exist for one chunk of tokens at a time, not for a whole micro-batch.
        tensor_parallel: devices per replica; 0 in SFT, which has no rollout.
        rollout_dtype: dtype of vLLM's weights; "" in SFT.
        max_sequences: sequences that vLLM decodes at the same time.
        memory_share: vLLM's share of a device's memory.
        sleeps: vLLM releases its memory while the run trains.
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
        """Number of processes that share one copy of the model."""
        return self.fsdp_size if 0 < self.fsdp_size < self.gpus else self.gpus

    @property
    def micro_tokens(self) -> int:
        """Maximum number of tokens of a micro-batch."""
        return max(self.longest, self.most_tokens) if self.packs else self.longest * self.most_rows

    @property
    def computed_tokens(self) -> float:
        """Maximum number of positions of a micro-batch, with padding, limited to a device's share of a step."""
        step_tokens = self.prompts * self.rollouts * self.longest / self.gpus
        if self.packs and self.pads:
            return min(step_tokens, self.balanced_tokens * max(1.0, self.longest / (self.prompt + self.response)))
        return min(step_tokens, self.micro_tokens)

    @property
    def balanced_tokens(self) -> float:
        """Tokens per micro-batch of an update: verl makes as few as possible, of equal size."""
        update_tokens = self.mini_batch * self.rollouts * (self.prompt + self.response) / self.gpus
        return update_tokens / ceil(update_tokens / self.micro_tokens)

    @property
    def trained_tokens(self) -> float:
        """Tokens of a micro-batch that contribute to the loss."""
        return self.balanced_tokens * self.response / (self.prompt + self.response)

    @property
    def tokens(self) -> float:
        """Mean number of tokens in a GPU's share of a step."""
        return self.prompts * self.rollouts * (self.prompt + self.response) / self.gpus

    @property
    def micro_batches(self) -> int:
        """Number of forward passes of a GPU over its share of a step."""
        return max(self.prompts // self.mini_batch, ceil(self.tokens / self.micro_tokens))


def make_workload(
    run: Run[TrainingConfig],
    size: ModelSize,
    prompt: float | None = None,
    response: float | None = None,
    longest: int | None = None,
) -> Workload:
    """Return the workload of a run.

    Args:
        run: a run with a batch size.
        size: shape of its model.
        prompt: mean length of a prompt, in tokens; None assumes PROMPT_TOKENS.
        response: mean length of a response, in tokens; None assumes a list of ITEM_TOKENS per item.
        longest: length of the longest sequence, in tokens; None assumes the maximum of the settings.
    """
    settings = run.settings
    rl = settings if isinstance(settings, RLConfig) else None
    memory = run.rollout_memory if rl else RolloutMemory(dtype="", max_sequences=0, share=0.0, sleeps=True)
    longest_allowed, max_prompt = _token_limits(settings)
    prompt = min(prompt or PROMPT_TOKENS + ITEM_TOKENS * _candidates(settings), max_prompt)
    max_response = rl.max_response_length if rl else longest_allowed - prompt
    num_items = settings.num_items if isinstance(settings, RankGRPOConfig) else ListSettings.num_items
    response = min(response or ITEM_TOKENS * num_items + 1, max_response)  # + 1: the stop token
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
    """Return whether the run computes its logits in chunks; SFT on a GPU does so by default.

    convrec.training.log_prob_head.leave_out_prompts has the exceptions. A model that still has to be downloaded is
    assumed not to be one.
    """
    if run.uses_fused_kernels:
        return True
    on_gpu = run.is_sft and run.device != "cpu"
    return on_gpu and run.sequence_parallel_size == 1 and not find_logit_changes(run.model_section)


def _logit_bytes(workload: Workload) -> float:
    """Return the bytes of a micro-batch's logits at the peak, with the head's gradient if it is summed over chunks."""
    size = workload.size
    if workload.chunks_logits:
        chunk = min(workload.computed_tokens, CHUNK_TOKENS) * size.vocabulary * CHUNKED_LOGIT_BYTES
        trains_head = not workload.lora_rank
        return chunk + trains_head * size.vocabulary * size.hidden * HEAD_GRADIENT_BYTES
    if workload.device == "cpu":
        return workload.trained_tokens * size.vocabulary * CPU_LOGIT_BYTES
    return workload.computed_tokens * size.vocabulary * WHOLE_LOGIT_BYTES


def _token_limits(settings: TrainingConfig) -> tuple[int, int]:
    """Return the maximum length of a sequence and of a prompt, in tokens."""
    if isinstance(settings, RLConfig):
        return settings.max_prompt_length + settings.max_response_length, settings.max_prompt_length
    assert isinstance(settings, SFTConfig)
    return settings.max_length, settings.max_length - 1


def _candidates(settings: TrainingConfig) -> int:
    return settings.candidates if isinstance(settings, RankGRPOConfig | SFTConfig) else 0


def host_bytes(workload: Workload) -> int:
    """Return the memory of all processes on a host without GPUs, at the peak of a step."""
    return sum(host_parts(workload).values())


def host_parts(workload: Workload) -> dict[str, int]:
    """Return the memory on a host without GPUs by part.

    Returns:
        Part -> bytes of all processes; vLLM has up to three copies of the weights in an update.
    """
    training = training_parts(workload)
    parts = {name: workload.gpus_per_node * part for name, part in training.items()}
    parts["kept by the heap"] = int(HEAP_SHARE * (parts["activations"] + parts["logits"]))
    parts["vLLM's weights"] = workload.gpus_per_node * 3 * rollout_weights(workload)
    parts["processes"] = CPU_RL_BYTES if workload.tensor_parallel else CPU_SFT_BYTES
    return parts


def gpu_host_bytes(workload: Workload) -> int:
    """Return the host memory of a node with GPUs.

    FSDP2 keeps the reference in pinned host memory, offloaded tensors wait there, and one process holds the whole model
    when it is loaded or exported.
    """
    share = workload.size.parameters * 4 / workload.sharing
    reference = workload.has_reference * (not workload.lora_rank)
    offloaded = reference + workload.offload_parameters + 2 * workload.offload_optimizer
    whole_model = EXPORT_BYTES * workload.size.parameters
    processes = CPU_PROCESSES + workload.gpus_per_node
    return int(workload.gpus_per_node * share * offloaded + whole_model + processes * PROCESS_BYTES)


def gpu_parts(workload: Workload, memory: float) -> tuple[dict[str, int], dict[str, int]]:
    """Return the memory of a GPU by part.

    Args:
        workload: a run on GPUs.
        memory: bytes of the GPU.

    Returns:
        Part -> bytes in training, and while vLLM samples; the second is {} in SFT.
    """
    training = training_parts(workload)
    if not workload.tensor_parallel:
        return training, {}
    resident = [name for name in ("parameters", "optimizer") if not getattr(workload, f"offload_{name}")]
    sampling = {name: training[name] for name in resident}
    sampling |= {"vLLM's weights": rollout_weights(workload), "vLLM besides": VLLM_BYTES}
    asleep = ASLEEP_BYTES if workload.sleeps else int(workload.memory_share * memory)
    return training | {"vLLM meanwhile": asleep}, sampling | {"cache": max(0, cache_bytes(workload, memory))}


def training_parts(workload: Workload) -> dict[str, int]:
    """Return the memory of training by part.

    Returns:
        Part -> bytes: on a GPU without vLLM, on a CPU only the tensors of a process. Parts that the run lacks are 0.
    """
    size = workload.size
    is_cpu = workload.device == "cpu"
    width = 4 if is_cpu else 2  # bytes of an activation
    share = size.parameters * 4 / workload.sharing
    # LoRA's frozen weights have no gradients, and without the adapters they are the reference
    is_full = 0 if workload.lora_rank else 1
    parts = {
        "parameters": share,
        "gradients": is_full * share,
        "optimizer": is_full * share * 2,
        "reference": is_full * workload.has_reference * share * is_cpu,  # with GPUs: gpu_host_bytes
        "copy of the weights": share * is_cpu,
        "gathered layers": 2 * size.parameters / max(1, size.layers) * width if workload.gpus > 1 else 0,
        "activations": workload.computed_tokens * _count_activations(workload) * width,
        "logits": _logit_bytes(workload),
        "process": 0 if is_cpu else BASE_BYTES,
    }
    return {name: int(part) for name, part in parts.items()}


def _count_activations(workload: Workload) -> int:
    """Return how many numbers per token the forward pass keeps for the backward pass."""
    size = workload.size
    if workload.recomputes:
        return size.layers * size.hidden
    return size.layers * (KEPT_HIDDEN * size.hidden + KEPT_INTERMEDIATE * size.intermediate)


def rollout_weights(workload: Workload) -> int:
    """Return the bytes of vLLM's weights on each GPU of a replica; 0 in SFT."""
    width = 4 if workload.rollout_dtype in ("float32", AUTO) else 2
    return workload.size.parameters * width // workload.tensor_parallel if workload.tensor_parallel else 0


def cache_bytes(workload: Workload, memory: float) -> int:
    """Return the room for keys and values on each GPU.

    Args:
        workload: an RL run on GPUs.
        memory: bytes of a GPU.

    Returns:
        Bytes; below 0 if vLLM's share is too small for the weights.
    """
    return int(workload.memory_share * memory) - rollout_weights(workload) - VLLM_BYTES


def cache_bytes_of_token(workload: Workload) -> float:
    """Return the bytes of a token's bf16 keys and values on each GPU; heads are split over a replica, or copied."""
    size = workload.size
    return 2 * 2 * size.layers * size.head_size * size.kv_heads / min(workload.tensor_parallel, size.kv_heads)


def checkpoint_bytes(size: ModelSize) -> int:
    """Return the bytes of a checkpoint, with its Hugging Face form."""
    return size.parameters * (SHARD_BYTES + EXPORT_BYTES)


def find_shortages(workload: Workload, memory: float) -> dict[str, bool]:
    """Describe the parts of a run that do not fit into its GPUs.

    Args:
        workload: a run on GPUs.
        memory: bytes of a GPU.

    Returns:
        Text of each shortage -> whether it is certain; {} if the run fits.
    """
    room = FULL * memory
    shortages = {}
    training, sampling = gpu_parts(workload, memory)
    # the estimate for training is on the high side, so its shortage is certain only at 1.5 times the memory
    for name, parts, certain_above in (("training", training, 1.5 * memory), ("sampling", sampling, memory)):
        needed = sum(parts.values())
        if needed > room:
            text = f"{name} needs {needed / GIB:.1f} GiB of a GPU, {room / GIB:.1f} are usable"
            shortages[text] = needed > certain_above
    if workload.tensor_parallel:
        # without room for one sequence of maximum length, vLLM refuses to start
        missing = workload.longest * cache_bytes_of_token(workload) - cache_bytes(workload, memory)
        if missing > 0:
            need = f"its weights and a sequence of {workload.longest:,} tokens"
            shortages[f"vLLM's share lacks {missing / GIB:.1f} GiB for {need}"] = True
    return shortages
