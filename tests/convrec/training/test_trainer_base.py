"""What a trainer's start checks and sets, with verl's own code around it; workers and TransferQueue are stand-ins."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from verl.trainer.ppo.metric_utils import RolloutMoELoadBalanceMetricsAccumulator
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from convrec.checkpoints import manifest, saving
from convrec.rank_grpo.repair import NOT_SAMPLED
from convrec.rollout import agent_loop
from convrec.runs.folder import ENDED, TRAINED, latest_step, tracked_step
from convrec.training.trainer_base import PHASES, ConvRecMixin
from tests.convrec.training.conftest import nested

PROMPT, RESPONSES = 3, [4, 2]


class Verls:
    _compute_old_log_prob = PPOTrainer._compute_old_log_prob

    def _load_checkpoint(self) -> None:
        self.global_steps = 4


class Trainer(ConvRecMixin, Verls):
    def __init__(self, workers: Any, bypass_mode: bool = False, lr_schedule: Any = None) -> None:
        self.actor_rollout_wg, self.rollout_is_checked, self.parameter_sync_step = workers, False, 2
        self.config = OmegaConf.create(
            {
                "algorithm": {"rollout_correction": {"bypass_mode": bypass_mode}},
                "actor_rollout_ref": {
                    "actor": {"loss_agg_mode": "token-mean", "loss_scale_factor": None},
                    "rollout": {"temperature": 1.0, "calculate_log_probs": False},
                },
            }
        )
        self.settings = OmegaConf.create({"rollout_check_bound": 0.1, "lr_schedule": lr_schedule})


class Saving(ConvRecMixin):
    """verl's step, checkpoint and metrics without workers."""

    _compute_metrics = PPOTrainer._compute_metrics

    def __init__(self, run_folder: Path, batch: Any) -> None:
        self.run_folder, self.batch, self.keep, self.global_steps, self.steps_per_epoch = run_folder, batch, None, 4, 3
        self.use_critic, self._rollout_moe_lb_metrics_accumulator = False, RolloutMoELoadBalanceMetricsAccumulator()
        actor = {"actor": {"checkpoint": {"save_contents": []}}, "rollout": {}, "model": {}}
        self.config = OmegaConf.create({"actor_rollout_ref": actor})
        self.logged: list[dict[str, float]] = []
        self.logger = SimpleNamespace(log=lambda data, step, backend: self.logged.append(data))

    def _get_n_gpus_for_throughput(self) -> int:
        return 1


class SavingVerls:
    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> Any:
        metrics |= {"actor/kl": 0.25, "counts": {0.5: 3}}
        return self.batch

    def _save_checkpoint(self) -> None:
        assert self.logged  # before what makes the checkpoint one that can be resumed
        (self.run_folder / "global_step_4").mkdir(parents=True)
        saving.write_tracker(self.run_folder, 4)


def test_what_verl_logs_at_the_end_of_a_step_is_logged_before_its_checkpoint_but_for_times(
    queue: Callable[..., Any], tmp_path: Path
) -> None:
    names = ("values", "advantages", "returns", "rm_scores", "token_level_rewards")
    started = queue(
        tags=[{"min_global_steps": 3, "max_global_steps": 3}] * 2,
        prompts=nested([torch.arange(PROMPT)] * 2),
        responses=nested([torch.arange(length) for length in RESPONSES]),
        response_mask=nested([torch.ones(length, dtype=torch.long) for length in RESPONSES]),
        num_turns=torch.tensor([2, 2]),
        **{name: nested([torch.rand(length) for length in RESPONSES]) for name in names},
    )
    trainer = type("Trainer", (Saving, SavingVerls), {})(tmp_path, started.batch)
    metrics: dict[str, Any] = {}
    batch = trainer.step(metrics, {})
    trainer._save_checkpoint()
    trainer._compute_metrics(batch, metrics, {"step": 7.0, "gen": 1.0}, global_steps=4, epoch=1)  # verl, later
    of_the_end = {name for name in metrics if name.startswith(("timing_", "perf/"))} | {"counts"}
    (known,) = trainer.logged
    assert known == pytest.approx({name: value for name, value in metrics.items() if name not in of_the_end})
    assert (known[TRAINED], known["response_length/mean"], known["actor/kl"]) == (4, 3.0, 0.25)
    assert ENDED in of_the_end


def test_a_stop_between_verls_tracker_and_our_manifest_leaves_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every RL recipe. tests/e2e/test_interrupted_saves.py kills whole runs there."""

    def stop(folder: Path) -> None:
        assert tracked_step(tmp_path) == 4
        raise KeyboardInterrupt

    trainer = type("Trainer", (Saving, SavingVerls), {"_log_step": lambda self: self.logged.append({})})(tmp_path, None)
    monkeypatch.setattr(manifest, "write", stop)
    with pytest.raises(KeyboardInterrupt):
        trainer._save_checkpoint()
    assert latest_step(tmp_path) == 0
    (warning,) = saving.choose_resume_step(tmp_path)
    assert "global_step_4 was cut off while it was written" in warning


@pytest.mark.parametrize("bypass_mode", [False, True])
def test_the_rollout_is_compared_with_the_actor(queue: Callable[..., Any], bypass_mode: bool) -> None:
    rollout = [-torch.rand(length) for length in RESPONSES]
    if not bypass_mode:
        rollout[0][0] = NOT_SAMPLED
    mask = nested([torch.ones(length, dtype=torch.long) for length in RESPONSES])
    started = queue(tags=[{}, {}], rollout_log_probs=nested(rollout), response_mask=mask, loss_mask=mask)

    def off_by(difference: float) -> Any:
        def compute_log_prob(batch: Any) -> Any:
            """Log-probs of the tokens after each of prompt and response, as verl's workers write them."""
            assert not batch.extra_info["compute_loss"]
            rows = [
                torch.cat([torch.full((PROMPT - 1,), 9.0), row + difference, torch.tensor([9.0])]) for row in rollout
            ]
            if not bypass_mode:  # a token that a repair has put in
                rows[0][PROMPT - 1] = -50.0
            started.fields |= {"log_probs": nested(rows), "entropy": nested(rows)}
            return batch

        return SimpleNamespace(compute_log_prob=compute_log_prob)

    with pytest.raises(RuntimeError, match=r"does not sample from the policy.* is 0.2 .*rollout_check_bound=0.1"):
        Trainer(off_by(0.2), bypass_mode)._compute_old_log_prob(started.batch, {})
    trainer = Trainer(off_by(0.05), bypass_mode)
    trainer._compute_old_log_prob(started.batch, {})
    assert trainer.rollout_is_checked
    wanted = torch.cat(rollout) + (0 if bypass_mode else 0.05)
    if not bypass_mode:
        wanted[0] = -50.0
    torch.testing.assert_close(started.fields["old_log_probs"].values(), wanted)
    if bypass_mode:  # from the second batch on the actor computes nothing
        trainer.actor_rollout_wg = None
        trainer._compute_old_log_prob(started.batch, {})


def test_the_learning_rate_is_set_once_the_checkpoint_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_loop, "retry_failed_prompts", lambda: None)
    asked = []

    def set_learning_rate(*arguments: Any) -> None:
        asked.append((trainer.global_steps, *arguments))

    workers = SimpleNamespace(set_learning_rate=set_learning_rate)
    trainer = Trainer(workers, lr_schedule=[[0, "1e-3"], [3, "5e-4"]])
    trainer._load_checkpoint()
    assert asked == [(4, [(0, 1e-3), (3, 5e-4)], 2)]


def test_phases_of_a_step_are_timed_under_verls_names() -> None:
    trainer = Trainer(None)
    trainer.settings = OmegaConf.create({"watchdog": "end", "watchdog_seconds": 300})
    trainer.replay_buffer = SimpleNamespace(sample=lambda: phases.current[0])
    assert all(hasattr(PPOTrainer, method) for method in PHASES)
    for method in PHASES:
        setattr(trainer, method, lambda: phases.current[0])
    phases = trainer._phases()
    assert trainer.replay_buffer.sample() == "gen"
    assert {method: getattr(trainer, method)() for method in PHASES} == PHASES
    assert set(phases.durations) == {"gen", *PHASES.values()}
    trainer.settings.watchdog = "off"
    assert trainer._phases() is None
