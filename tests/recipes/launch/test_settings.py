"""What makes a run fast at full scale is on without asking (docs/explanation/performance.md, last table)."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from recipes.launch.settings import compose
from recipes.preflight import host

RL = {
    "actor_rollout_ref.actor.use_dynamic_bsz": True,
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": True,
    "actor_rollout_ref.ref.log_prob_use_dynamic_bsz": True,
    "actor_rollout_ref.model.use_remove_padding": True,
    "actor_rollout_ref.model.use_fused_kernels": True,
    "actor_rollout_ref.rollout.enable_prefix_caching": True,
    "actor_rollout_ref.rollout.enable_chunked_prefill": True,
    "actor_rollout_ref.rollout.enforce_eager": False,
    "actor_rollout_ref.model.enable_gradient_checkpointing": True,
}
SFT = {"data.use_dynamic_bsz": True, "model.use_remove_padding": True}
RECIPES = {"rank_grpo": RL, "judge_pointwise": RL, "judge_pairwise": RL, "sft": SFT}


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_text("")
    return str(tmp_path)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("flash_attention", [True, False])
def test_fast_settings_of_a_gpu_node(
    recipe: str, flash_attention: bool, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "num_accelerators", lambda: 8)
    monkeypatch.setattr(host, "has_flash_attention", lambda: flash_attention)
    monkeypatch.setenv("MODEL_PATH", model)
    config = compose(recipe, [])
    expected = RECIPES[recipe]
    assert {name: OmegaConf.select(config, name) for name in expected} == expected
    model_config = config.model if "model" in config else config.actor_rollout_ref.model
    assert model_config.override_config.get("attn_implementation") == (None if flash_attention else "varlen")
    assert config.trainer.n_gpus_per_node == 8
