"""A checkpoint holds what verl logs later of its step; verl's own code computes both, TransferQueue stands in."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from verl.trainer.ppo.metric_utils import RolloutMoELoadBalanceMetricsAccumulator
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from convrec.checkpoints import manifest
from convrec.training.trainer_base import ConvRecMixin

PROMPT, RESPONSES = 3, [4, 2]
TAG = {"min_global_steps": 3, "max_global_steps": 3}


class Verls:
    _compute_metrics = PPOTrainer._compute_metrics

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> Any:
        metrics |= {"actor/kl": 0.25, "actor/grad_norm": 0.5}
        return self.batch

    def _save_checkpoint(self) -> None:
        assert (self.folder / "metrics.json").exists()  # before what makes the checkpoint one that can be resumed
        (self.folder / "actor").mkdir()
        (self.folder / "actor" / "shard").touch()

    def _get_n_gpus_for_throughput(self) -> int:
        return 1


class Trainer(ConvRecMixin, Verls):
    def __init__(self, run_folder: Path, batch: Any = None) -> None:
        self.run_folder, self.batch, self.keep, self.global_steps = run_folder, batch, None, 4
        self.folder = run_folder / "global_step_4"
        self.steps_per_epoch, self.total_training_steps, self.use_critic = 3, 9, False
        self._rollout_moe_lb_metrics_accumulator = RolloutMoELoadBalanceMetricsAccumulator()
        actor = {"actor": {"checkpoint": {"save_contents": []}}, "rollout": {}, "model": {}}
        self.config = OmegaConf.create(
            {"actor_rollout_ref": actor, "trainer": {"test_freq": 2, "val_before_train": False}}
        )
        OmegaConf.set_struct(self.config, True)


def nested(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def test_a_checkpoint_holds_what_verl_logs_of_its_step(queue: Callable[..., Any], tmp_path: Path) -> None:
    names = ("values", "advantages", "returns", "rm_scores", "token_level_rewards")
    fields = {name: nested([torch.rand(length) for length in RESPONSES]) for name in names}
    started = queue(
        tags=[TAG, TAG],
        prompts=nested([torch.arange(PROMPT)] * 2),
        responses=nested([torch.arange(length) for length in RESPONSES]),
        response_mask=nested([torch.ones(length, dtype=torch.long) for length in RESPONSES]),
        num_turns=torch.tensor([2, 2]),
        **fields,
    )
    trainer = Trainer(tmp_path, started.batch)
    metrics: dict[str, Any] = {}
    batch = trainer.step(metrics, {})
    trainer._save_checkpoint()
    known = json.loads((trainer.folder / "metrics.json").read_text())
    trainer._compute_metrics(batch, metrics, {"step": 7.0, "gen": 1.0}, global_steps=4, epoch=1)  # verl, later
    times = {name for name in metrics if name.startswith(("timing_", "perf/"))}
    assert known == pytest.approx({name: value for name, value in metrics.items() if name not in times})
    assert known["response_length/mean"] == 3.0
    assert known["actor/kl"] == 0.25
    assert set(manifest.read(trainer.folder)) == {"metrics.json", "actor/shard"}

    resumed = Trainer(tmp_path)
    resumed._make_up_validation()
    assert resumed.config.trainer.val_before_train
    resumed.global_steps = 0  # a start from nothing has nothing to make up for
    resumed.config.trainer.val_before_train = False
    resumed._make_up_validation()
    assert not resumed.config.trainer.val_before_train
