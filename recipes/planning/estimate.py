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

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from omegaconf import DictConfig

from recipes.planning.constants import BASE_BYTES
from recipes.planning.models import ModelSize

CPU_PROCESSES = 12  # that import verl or vLLM
PROCESS_BYTES = 6 * 2**30 // 10  # 0.3-0.6 GiB each

FUSED_CHUNK = 512  # tokens; verl's FusedLinearForPPO
SHARD_BYTES = 12  # of a parameter in a checkpoint's shards: fp32 weights and Adam's two moments
EXPORT_BYTES = 4  # and in its Hugging Face form, fp32
FULL = 0.9  # of a device's memory: with more the allocator runs out of it by fragments


@dataclass(frozen=True)
class Needs:
    """Bytes; of a device where not said otherwise."""

    training_parts: Mapping[str, int]
    rollout_weights: int
    checkpoint: int  # of the whole run's one checkpoint
    host: int  # of a CPU-only host, all processes together

    @property
    def training(self) -> int:
        return sum(self.training_parts.values())


@dataclass(frozen=True)
class Requirements:
    """Where a recipe's config says what its runs need of every machine.

    model_key: of the model it starts from. file_keys: of the files every node reads.
    needs: bytes that a model of this size needs with this config.
    """

    model_key: str
    file_keys: tuple[str, ...]
    needs: Callable[[DictConfig, ModelSize], Needs]


def needs(config: DictConfig, size: ModelSize) -> Needs:
    """For Rank-GRPO."""
    actor, rollout, model = (config.actor_rollout_ref[key] for key in ("actor", "rollout", "model"))
    sequence = config.data.max_prompt_length + config.data.max_response_length
    tokens = micro_batch_tokens(actor, sequence)
    batch = config.data.train_batch_size * rollout.n * sequence
    sharing = sharing_processes(config, actor.get("fsdp_config"))
    parts = _training(config, size, model, sharing, tokens, batch, has_reference=actor.use_kl_loss)
    weights = size.parameters * (4 if rollout.dtype == "float32" else 2) // rollout.tensor_model_parallel_size
    host = config.trainer.n_gpus_per_node * (sum(parts.values()) + 3 * weights) + CPU_PROCESSES * PROCESS_BYTES
    return Needs(parts, int(weights), checkpoint_bytes(size), int(host))


def micro_batch_tokens(actor: DictConfig, sequence: int) -> int:
    """At most, of sequences of this length."""
    if actor.use_dynamic_bsz:
        return max(sequence, actor.ppo_max_token_len_per_gpu)
    return sequence * (actor.ppo_micro_batch_size_per_gpu or 1)


def sft_needs(config: DictConfig, size: ModelSize) -> Needs:
    """For SFT: training alone."""
    data = config.data
    tokens = max(data.max_length, data.max_token_len_per_gpu)
    if not data.use_dynamic_bsz:
        tokens = data.max_length * data.micro_batch_size_per_gpu
    sharing = sharing_processes(config, config.get("engine"))
    parts = _training(config, size, config.model, sharing, tokens, data.train_batch_size * data.max_length)
    host = config.trainer.n_gpus_per_node * sum(parts.values()) + PROCESS_BYTES
    return Needs(parts, 0, checkpoint_bytes(size), int(host))


def checkpoint_bytes(size: ModelSize) -> int:
    return size.parameters * (SHARD_BYTES + EXPORT_BYTES)


def resident_bytes(config: DictConfig, training_parts: Mapping[str, int]) -> int:
    """What of RL's training stays on a GPU while vLLM samples: all that lasts and is not offloaded to the host."""
    actor, reference = config.actor_rollout_ref.actor.fsdp_config, config.actor_rollout_ref.ref.fsdp_config
    offloaded = {
        "parameters": actor.param_offload,
        "optimizer": actor.optimizer_offload,
        "reference": reference.param_offload,
    }
    return sum(training_parts[name] for name, is_away in offloaded.items() if not is_away)


def sharing_processes(config: DictConfig, engine: DictConfig | None) -> int:
    """How many processes have one copy of the model between them: verl's fsdp_size, or all. engine: that section."""
    devices = int(config.trainer.n_gpus_per_node * config.trainer.nnodes)
    asked = engine.get("fsdp_size", -1) if engine else -1
    return asked if 0 < asked < devices else devices


def _training(
    config: DictConfig,
    size: ModelSize,
    model: DictConfig,
    sharing: int,
    tokens: int,
    batch: int,
    has_reference: bool = False,
) -> dict[str, int]:
    """Bytes of a device, by part. tokens: of a micro-batch, batch: of a step; model: verl's section of that name."""
    devices = config.trainer.n_gpus_per_node * config.trainer.nnodes
    tokens = min(tokens, batch / devices)  # no more than there is
    width = 4 if config.trainer.device == "cpu" else 2  # bytes of an activation
    kept = 1 if model.enable_gradient_checkpointing else 16
    with_logits = min(tokens, FUSED_CHUNK) if model.use_fused_kernels else tokens
    # LoRA's frozen weights have no gradients, and are the reference when the adapters are off
    trained = 0 if model.lora_rank else 1
    parts = {
        "parameters": size.parameters * 4 / sharing,
        "gradients": trained * size.parameters * 4 / sharing,
        "optimizer": trained * size.parameters * 8 / sharing,
        "reference": trained * has_reference * size.parameters * 4 / sharing,
        "gathered layers": 2 * size.parameters / max(1, size.layers) * width if devices > 1 else 0,
        "activations": tokens * size.hidden * size.layers * width * kept,
        "logits": with_logits * size.vocabulary * (width + 8),
        "process": BASE_BYTES(),
    }
    return {name: int(part) for name, part in parts.items()}
