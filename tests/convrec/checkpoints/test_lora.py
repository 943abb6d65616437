"""Shards that 2 or 3 of verl's FSDP workers wrote are merged into one model; LoRA: base + alpha / r B A."""

import json
from pathlib import Path

import pytest
import torch

from convrec.checkpoints.models import resolve_model
from recipes.tiny_model import make_tiny_model
from tests.conftest import mark_complete
from tests.user_errors import refuses

RANK = 4
ALPHA = 8


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lora") / "base"
    return make_tiny_model(
        folder, ["USER: Alien (1979)\n"] * 40, vocab_size=600, hidden_size=64, num_layers=1, num_heads=2, num_kv_heads=1
    )


def save_shards(state: dict[str, torch.Tensor], folder: Path, world_size: int) -> None:
    """Save parameters as FSDP2 does: DTensors sharded along the first dimension, one file per process."""
    from torch.distributed.tensor import DTensor, Shard, init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    for rank in range(world_size):
        torch.distributed.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
        try:
            mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("fsdp",))
            shards = {
                name: DTensor.from_local(
                    value.chunk(world_size)[rank].clone(), mesh, [Shard(0)], run_check=False, shape=value.shape,
                    stride=value.stride(),
                )
                for name, value in state.items()
            }  # fmt: skip
            torch.save(shards, folder / f"model_world_size_{world_size}_rank_{rank}.pt")
        finally:
            torch.distributed.destroy_process_group()
    (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": world_size}))


@pytest.mark.long
def test_lora_shards_of_two_processes_are_merged(base: Path, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    adapted = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear"))
    torch.manual_seed(0)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            # Multiples of 1/8 up to 1/2 are exact in the merger's bfloat16.
            parameter.data = torch.randint(-4, 5, parameter.shape) / 8.0
    state = adapted.state_dict()

    actor = tmp_path / "run" / "global_step_3" / "actor"
    actor.mkdir(parents=True)
    save_shards(state, actor, world_size=2)
    (actor / "lora_train_meta.json").write_text(json.dumps({"r": RANK, "lora_alpha": ALPHA, "task_type": "CAUSAL_LM"}))
    model.config.save_pretrained(actor / "huggingface")
    AutoTokenizer.from_pretrained(base).save_pretrained(actor / "huggingface")
    # For LoRA, verl's `hf_model` writes weights under the adapter's names, which nothing can load.
    (actor / "huggingface" / "model.safetensors").write_bytes(b"unusable")
    mark_complete(tmp_path / "run", 3)
    (tmp_path / "run" / "config.yaml").write_text(f"actor_rollout_ref: {{model: {{path: {base}}}}}\n")

    merged = AutoModelForCausalLM.from_pretrained(resolve_model(tmp_path / "run"), dtype=torch.float32).state_dict()
    changed = 0
    for name, value in before.items():
        key = f"base_model.model.{name.removesuffix('.weight')}"
        expected = value
        if f"{key}.lora_A.default.weight" in state:
            update = state[f"{key}.lora_B.default.weight"] @ state[f"{key}.lora_A.default.weight"]
            expected = value + ALPHA / RANK * update
            changed += 1
        torch.testing.assert_close(merged[name], expected, rtol=0, atol=1e-5)
    assert changed == 7  # q, k, v, o, gate, up, down of the only layer


def test_shards_of_three_processes_are_merged(base: Path, tmp_path: Path) -> None:
    """Without LoRA; three processes cannot share 64 rows evenly."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)  # the merger writes bfloat16
    actor = tmp_path / "run" / "global_step_3" / "actor"
    actor.mkdir(parents=True)
    save_shards(model.state_dict(), actor, world_size=3)
    AutoConfig.from_pretrained(base).save_pretrained(actor / "huggingface")
    AutoTokenizer.from_pretrained(base).save_pretrained(actor / "huggingface")
    mark_complete(tmp_path / "run", 3)
    merged = AutoModelForCausalLM.from_pretrained(resolve_model(actor.parent), dtype=torch.bfloat16).state_dict()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(merged[name], value, rtol=0, atol=0)


def test_an_adapter_without_a_base_is_named(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with refuses("model.missing-base", tmp_path, "base_model_name_or_path"):
        resolve_model(tmp_path)
