"""What a run needs of memory and disk, from the model's config and the batch: estimates, on the high side.

P parameters over D devices, T tokens of a micro-batch, V words, L layers, H hidden size:

    training state   P x (4 fp32 weights + 4 gradients + 8 Adam) / D, and 4 P / D for the reference; LoRA: 4 P / D
    gathered layer   2 P / L, twice (the next one is fetched while one computes)
    activations      T x H x L x 2 (a bf16 tensor a layer, the rest is recomputed), 16 times that without recomputation
    logits           T x V x (2 bf16 + 4 fp32 + 4 gradient); fused kernels have a chunk of them at a time
    checkpoint       P x (4 weights + 8 Adam + 4 in Hugging Face form)
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

BASE_BYTES = 2 * 2**30  # CUDA context, NCCL buffers, allocator slack; on CPU: Python and its libraries, in a process
CPU_PROCESSES = 12  # that import verl or vLLM
PROCESS_BYTES = 6 * 2**30 // 10  # 0.3-0.6 GiB each

FUSED_CHUNK = 512  # tokens; verl's FusedLinearForPPO


@dataclass(frozen=True)
class ModelSize:
    parameters: int
    layers: int
    hidden: int
    vocabulary: int


@dataclass(frozen=True)
class Needs:
    """Bytes; of a device where not said otherwise."""

    training: int
    rollout_weights: int
    checkpoint: int  # of the whole run's one checkpoint
    host: int  # of a CPU-only host, all processes together


@dataclass(frozen=True)
class Requirements:
    """Where a recipe's config says what its runs need of every machine.

    model_key: of the model it starts from. file_keys: of the files every node reads.
    needs: bytes that a model of this size needs with this config.
    keeps_best: the best checkpoint by validation is kept beside the newest.
    """

    model_key: str
    file_keys: tuple[str, ...]
    needs: Callable[[DictConfig, ModelSize], Needs]
    keeps_best: bool


def model_size(model_path: str) -> ModelSize:
    """Counted on the meta device: exact for any architecture, no weight is read. Raises OSError without a config."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    path = Path(model_path).expanduser()
    config: Any = AutoConfig.from_pretrained(path if path.exists() else model_path, local_files_only=True)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    text = config.get_text_config()
    # a tied head is one parameter that `parameters()` gives once
    count = sum(parameter.numel() for parameter in model.parameters())
    return ModelSize(count, text.num_hidden_layers, text.hidden_size, text.vocab_size)


def needs(config: DictConfig, size: ModelSize) -> Needs:
    """For Rank-GRPO."""
    actor, rollout, model = (config.actor_rollout_ref[key] for key in ("actor", "rollout", "model"))
    sequence = config.data.max_prompt_length + config.data.max_response_length
    tokens = max(sequence, actor.ppo_max_token_len_per_gpu) if actor.use_dynamic_bsz else sequence
    batch = config.data.train_batch_size * rollout.n * sequence
    training = _training(config, size, model, tokens, batch, has_reference=actor.use_kl_loss)
    weights = size.parameters * (4 if rollout.dtype == "float32" else 2) // rollout.tensor_model_parallel_size
    host = int(config.trainer.n_gpus_per_node * (training + 3 * weights) + CPU_PROCESSES * PROCESS_BYTES)
    return Needs(training, int(weights), size.parameters * 16, host)


def sft_needs(config: DictConfig, size: ModelSize) -> Needs:
    """For SFT: training alone."""
    data = config.data
    tokens = max(data.max_length, data.max_token_len_per_gpu)
    if not data.use_dynamic_bsz:
        tokens = data.max_length * data.micro_batch_size_per_gpu
    training = _training(config, size, config.model, tokens, data.train_batch_size * data.max_length)
    host = int(config.trainer.n_gpus_per_node * training + PROCESS_BYTES)
    return Needs(training, 0, size.parameters * 16, host)


def _training(
    config: DictConfig, size: ModelSize, model: DictConfig, tokens: int, batch: int, has_reference: bool = False
) -> int:
    """Bytes of a device. tokens: of a micro-batch, batch: of a step; model: verl's section of that name."""
    devices = config.trainer.n_gpus_per_node * config.trainer.nnodes
    tokens = min(tokens, batch / devices)  # no more than there is
    width = 4 if config.trainer.device == "cpu" else 2  # bytes of an activation
    kept = 1 if model.enable_gradient_checkpointing else 16
    # LoRA's frozen weights have no gradients, and are the reference when the adapters are off
    each = 4 if model.lora_rank else 16 + (4 if has_reference else 0)
    state = size.parameters * each / devices
    gathered = 2 * size.parameters / max(1, size.layers) * width if devices > 1 else 0
    activations = tokens * size.hidden * size.layers * width * kept
    with_logits = min(tokens, FUSED_CHUNK) if model.use_fused_kernels else tokens
    logits = with_logits * size.vocabulary * (width + 8)
    return int(state + gathered + activations + logits + BASE_BYTES)
