"""verl's FSDP2 engine with the actor's settings, a batch to train on, and one update."""

from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from convrec.rank_grpo.policy_loss import RankLossSettings
from convrec.training.attention import varlen, without_flash
from convrec.training.log_prob_head import fuse
from recipes.selftest.checks import Machine

ROWS = 12
RANKS = 4
TOKENS_OF_A_RANK = 3
LORA_RANK = 8


def join_group(machine: Machine, rank: int = 0, size: int = 1, meeting: Path | None = None) -> None:
    """Join verl's process group, NCCL and gloo on GPUs, gloo on a CPU; a second call does nothing.

    Args:
        machine: the machine.
        rank: of this process, and the number of its GPU.
        size: number of processes. The call waits for all of them.
        meeting: a new file that all processes of the group name; None for a group of one.
    """
    if torch.distributed.is_initialized():
        return
    if machine.gpus:
        torch.cuda.set_device(rank)
    else:
        from convrec.cpu.engine import register_engine

        register_engine()
    meeting = meeting or machine.folder / f"group-{uuid4().hex}"
    backend = "cpu:gloo,cuda:nccl" if machine.gpus else "gloo"
    torch.distributed.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=size)
    without_flash.install()
    varlen.register()


def get_packed_attention_name() -> str:
    """Return the attention that runs use for packed rows here."""
    return "flash_attention_2" if find_spec("flash_attn") else varlen.NAME


def build_engine(
    machine: Machine, packed: bool = False, fused: bool = False, lora_rank: int = 0, tied: bool = True
) -> Any:
    """Build a new engine with the tiny model: fp32 weights, passes in the machine's dtype.

    Args:
        machine: the machine.
        packed: whether rows are packed without padding.
        fused: whether log-probs are computed in chunks of hidden states.
        lora_rank: rank of the adapters; 0 to train the whole model.
        tied: whether the model's head shares the weights of the embedding.

    Returns:
        verl's engine.
    """
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
    from verl.workers.engine.base import EngineRegistry

    join_group(machine)
    dtypes = {"param_dtype": machine.dtype, "reduce_dtype": "float32", "buffer_dtype": "float32"}
    resumable = ["model", "optimizer", "extra"]
    engine = EngineRegistry.new(
        model_type="language_model",
        backend="fsdp2",
        model_config=HFModelConfig(
            path=str(machine.make_model(tied=tied)),
            use_remove_padding=packed,
            lora_rank=lora_rank,
            lora_alpha=2 * LORA_RANK,
            override_config={"attn_implementation": get_packed_attention_name() if packed else "sdpa"},
        ),
        engine_config=FSDPEngineConfig(strategy="fsdp2", use_torch_compile=False, mixed_precision=dtypes),
        optimizer_config=FSDPOptimizerConfig(lr=1e-3, total_training_steps=10),
        checkpoint_config=CheckpointConfig(save_contents=[*resumable, "hf_model"], load_contents=resumable),
    )
    engine.initialize()
    if fused:
        fuse(engine)
    return engine


def make_batch(packed: bool = False, rows: Sequence[int] = range(ROWS), seed: int = 0) -> Any:
    """Make rows of a generated batch in the form in which verl's trainer sends them to a worker.

    Args:
        packed: see `build_engine`.
        rows: numbers of the rows, below ROWS; fewer are the share of one of several processes.
        seed: of the batch.

    Returns:
        A TensorDict of nested tensors, with verl's settings.
    """
    from verl.utils.tensordict_utils import get_tensordict

    generator = torch.Generator().manual_seed(seed)
    generated = [_row(generator) for _ in range(ROWS)]
    fields = {name: [generated[row][name] for row in rows] for name in generated[0]}
    nested = {name: torch.nested.as_nested_tensor(values, layout=torch.jagged) for name, values in fields.items()}
    settings = {
        "global_batch_size": ROWS,
        "temperature": 1.0,
        "use_remove_padding": packed,
        "use_dynamic_bsz": True,
        "max_token_len_per_gpu": 256,  # a few micro-batches
    }
    return get_tensordict(nested, settings)


def _row(generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Make a prompt of random length, a response of at most `RANKS` ranks, and an advantage per rank."""
    prompt_length = int(torch.randint(4, 60, (), generator=generator))
    ranks = int(torch.randint(1, RANKS + 1, (), generator=generator))
    prompt = torch.randint(3, 500, (prompt_length,), generator=generator)
    response = torch.randint(3, 500, (ranks * TOKENS_OF_A_RANK,), generator=generator)
    whole = torch.cat([prompt, response])
    mask = torch.ones_like(response)
    return {
        "input_ids": whole,
        "position_ids": torch.arange(len(whole)),
        "prompts": prompt,
        "responses": response,
        "response_mask": mask,
        "loss_mask": mask,
        "advantages": torch.randn(ranks, generator=generator).repeat_interleave(TOKENS_OF_A_RANK),
        "policy_units": torch.arange(ranks).repeat_interleave(TOKENS_OF_A_RANK) + 1,
    }


def run_update(engine: Any, batch: Any) -> dict[str, float]:
    """Do one optimizer step with the rank-level loss.

    Args:
        engine: from `build_engine`; its weights change.
        batch: from `make_batch`.

    Returns:
        `loss` and `grad_norm`.
    """
    from convrec.training.loss import rank_grpo_loss

    with engine.train_mode():
        output = engine.train_batch(batch, loss_function=partial(rank_grpo_loss, settings=RankLossSettings(RANKS)))
    loss = torch.tensor(output["loss"]).sum()
    return {"loss": float(loss), "grad_norm": float(output["metrics"]["grad_norm"])}


def compute_log_probs(engine: Any, batch: Any) -> torch.Tensor:
    """Compute the log-probs of all response tokens; verl stores each at the preceding position.

    Args:
        engine: from `build_engine`; its weights stay.
        batch: from `make_batch`.

    Returns:
        The log-probs of one row after the other, (tokens,), float32 on the CPU.
    """
    with engine.eval_mode():
        output = engine.infer_batch(batch)
    rows = zip(output["model_output"]["log_probs"].unbind(), batch["prompts"].unbind(), strict=True)
    return torch.cat([row[len(prompt) - 1 : -1].float().cpu() for row, prompt in rows])


def gather_parameters(engine: Any) -> dict[str, torch.Tensor]:
    """Return the full parameters on the CPU, gathered from the shards of all processes."""
    state = engine.module.state_dict()
    return {
        name: (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().cpu().clone()
        for name, value in state.items()
    }
