"""The summary of a run: how far it is, when and with which versions it was started, and its settings."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from convrec.runs.folder import RL_MODEL, SFT_MODEL, setting
from convrec.runs.starts import read_starts

_TRAINING_DATA = "data.train_files"
_STEPS = "trainer.total_training_steps"

_RL = {
    "prompts per step": "data.train_batch_size",
    "rollouts per prompt": "actor_rollout_ref.rollout.n",
    "updates per batch (mu)": "actor_rollout_ref.actor.ppo_epochs",
    "learning rate": "actor_rollout_ref.actor.optim.lr",
    "KL coefficient": "actor_rollout_ref.actor.kl_loss_coef",
    "clip low": "actor_rollout_ref.actor.clip_ratio_low",
    "clip high": "actor_rollout_ref.actor.clip_ratio_high",
    "seed": "data.seed",
}
_JUDGE = {
    "initial model": RL_MODEL,
    "training data": _TRAINING_DATA,
    "judge reward": "reward.custom_reward_function.path",
    **_RL,
}
# Recipe -> name of a setting in the report -> its key in the run's config.
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "sft": {
        "initial model": SFT_MODEL,
        "training data": _TRAINING_DATA,
        "batch": "data.train_batch_size",
        "learning rate": "optim.lr",
        "seed": "trainer.seed",
    },
    "rank_grpo": {
        "initial model": RL_MODEL,
        "training data": _TRAINING_DATA,
        "advantages": "algorithm.adv_estimator",
        "policy loss": "actor_rollout_ref.actor.policy_loss.loss_mode",
        "returns": "convrec.reward",
        "parts of the reward": "convrec.rewards",
        "combination of parts": "convrec.reward_combination",
        "preset": "convrec.preset",
        "matching": "convrec.matching",
        "items": "convrec.num_items",
        "prompts without a hit": "convrec.repair",
        **_RL,
    },
    "judge_pointwise": _JUDGE,
    "judge_pairwise": _JUDGE,
}


def collect_facts(run_folder: Path, config: dict[str, Any], steps_made: int) -> dict[str, str]:
    """Return how far a run is, and when and with which versions it was started.

    Args:
        run_folder: the run's folder.
        config: the run's config.
        steps_made: the last step that it has trained.

    Returns:
        name -> text, without what the run did not record.
    """
    starts = read_starts(run_folder)
    planned = setting(config, _STEPS)
    last = starts[-1] if starts else {"versions": {}, "commit": None}
    times = [datetime.fromisoformat(start["time"]).astimezone(UTC) for start in starts]
    facts = {
        "steps": f"{steps_made} of {planned}" if planned else str(steps_made),
        "started": ", ".join(f"{time:%Y-%m-%d %H:%M} UTC" for time in times),
        "versions": ", ".join(f"{name} {version}" for name, version in last["versions"].items()),
        "commit": last["commit"] or "",
    }
    return {name: text for name, text in facts.items() if text}


def build_settings(recipe: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run that its report shows.

    Args:
        recipe: a key of SETTINGS.
        config: the run's config.

    Returns:
        name -> value, without those that the config lacks.
    """
    settings = {name: setting(config, key) for name, key in SETTINGS[recipe].items()}
    return {name: value for name, value in settings.items() if value is not None}
