"""When the old log-probs of Rank-GRPO are the new ones."""

import pytest
from omegaconf import OmegaConf

from convrec.rank_grpo.on_policy import is_on_policy

CONFIG = {
    "actor_rollout_ref": {"actor": {"ppo_epochs": 1, "ppo_mini_batch_size": 8}},
    "algorithm": {"adv_estimator": "rank_grpo", "rollout_correction": {"rollout_is": None, "bypass_mode": False}},
    "data": {"train_batch_size": 8},
}


def test_one_update_per_batch_is_on_policy() -> None:
    assert is_on_policy(OmegaConf.create(CONFIG))
    assert not is_on_policy(OmegaConf.create(CONFIG), parameter_sync_step=2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("actor_rollout_ref.actor.ppo_epochs", 2),
        ("actor_rollout_ref.actor.ppo_mini_batch_size", 4),
        ("algorithm.adv_estimator", "grpo"),
        ("algorithm.rollout_correction.rollout_is", "token"),
        ("algorithm.rollout_correction.bypass_mode", True),
    ],
)
def test_these_settings_need_old_log_probs(name: str, value: object) -> None:
    config = OmegaConf.create(CONFIG)
    OmegaConf.update(config, name, value)
    assert not is_on_policy(config)
