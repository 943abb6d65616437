"""The loss in verl's FSDP engine, from the trainer's advantages to the number that is logged."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from convrec.lists.token_ranks import table_from_bytes
from convrec.training.loss import rank_grpo_loss
from convrec.training.rank_trainer import RankGRPOMixin

EOS, LINE = 0, 1  # token ids; from 2 on they are words
# two prompts, two responses each: exact, truncated, short, too long
RESPONSES = [[2, LINE, 3, 4, EOS], [2, 3, 4, 5, 6, 7, 8, 9, 2], [5, EOS], [2, LINE, 3, LINE, 4, 4, EOS]]
RETURNS = [[1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 1.0]]

Update = Callable[..., tuple[float, dict[str, Any]]]


class Trainer(RankGRPOMixin):
    def __init__(self, preset: str, mask_truncated: bool, rewards: Any = None, combination: str = "sum") -> None:
        self.is_rank_level, self.tokenizer, self.stop_token_ids = True, SimpleNamespace(pad_token_id=None), [EOS]
        self.vocab_table = table_from_bytes([b"", b"\n", *[b" word%d" % number for number in range(2, 10)]])
        self.config = OmegaConf.create(
            {
                "algorithm": {"rollout_correction": {"rollout_is": None}},
                "actor_rollout_ref": {"actor": {"clip_ratio_low": 0.06, "clip_ratio_high": 0.08, "use_kl_loss": False}},
            }
        )
        self.settings = OmegaConf.create(
            {
                "preset": preset,
                "mask_truncated": mask_truncated,
                "constrained": False,
                "num_items": 2,
                "rewards": rewards,
                "reward_combination": combination,
                "overflow_penalty": -0.1,
                "underflow_penalty": -0.1,
            }
        )


def nested(rows: list[list[int]]) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


@pytest.mark.parametrize("combination", ["sum", "normalised"])
def test_a_reward_of_parts_reaches_the_advantages(queue: Callable[..., Any], combination: str) -> None:
    rare = [[0.0, 0.0], [0.0, 0.02], [0.0, 0.0], [0.0, 0.0]]

    def advantages(rewards: Any, parts: list[Any]) -> tuple[torch.Tensor, dict[str, float]]:
        infos: list[dict[str, Any]] = []
        for of_parts in zip(*parts, strict=True):
            total = [
                sum(c * part[k] for c, part in zip((rewards or {"": 1}).values(), of_parts, strict=True))
                for k in (0, 1)
            ]
            infos.append({"rank_returns": total, "part_returns": list(of_parts), "score": 0.0})
        started = queue(
            tags=[{}] * 4,
            uid=["a", "a", "b", "b"],
            responses=nested(RESPONSES),
            response_mask=nested([[1] * len(row) for row in RESPONSES]),
            extra_fields=[{"reward_extra_info": info} for info in infos],
        )
        metrics: dict[str, float] = {}
        Trainer("paper", False, rewards, combination)._compute_advantage(started.batch, metrics)
        return started.fields["advantages"].values(), metrics

    plain, metrics = advantages(None, [RETURNS])
    assert not any("part" in name for name in metrics)
    same, metrics = advantages({"relevance": 1}, [RETURNS])
    assert torch.equal(same, plain)  # to the last digit
    assert metrics["rank_grpo/part/relevance/signal"] == 0.5  # of 2 prompts x 2 ranks: rank 1 of a, rank 2 of b
    both, metrics = advantages({"relevance": 1, "rare": 1}, [RETURNS, rare])
    assert metrics["rank_grpo/part/rare/return"] == pytest.approx(0.02 / 8)
    assert not torch.equal(both, plain)  # rank 2 of the first prompt has signal now


@pytest.fixture
def update(queue: Callable[..., Any], training_worker: Callable[..., Any]) -> Update:
    """An update of a fresh model: (verl's loss, the fields of the batch)."""
    from verl.utils.tensordict_utils import get, get_tensordict

    def run(
        preset: str, mask_truncated: bool, responses: list[list[int]] = RESPONSES, micro_batch: int = 4
    ) -> tuple[float, dict[str, Any]]:
        trainer = Trainer(preset, mask_truncated)
        prompts, mask = [[7, 8]] * 4, nested([[1] * len(row) for row in responses])
        extra = [{"reward_extra_info": {"rank_returns": row, "score": sum(row)}} for row in RETURNS]
        started = queue(
            tags=[{}] * 4,
            uid=["a", "a", "b", "b"],
            prompts=nested(prompts),
            responses=nested(responses),
            response_mask=mask,
            loss_mask=mask,
            extra_fields=extra,
        )
        trainer._compute_advantage(started.batch, {})

        started.fields["input_ids"] = nested([a + b for a, b in zip(prompts, responses, strict=True)])
        started.fields["position_ids"] = nested([list(range(2 + len(row))) for row in responses])
        names = ("input_ids", "position_ids", "prompts", "responses", "response_mask", "loss_mask", "advantages")
        data = get_tensordict(
            {name: started.fields[name] for name in (*names, "policy_units")},
            {"global_batch_size": 4, "temperature": 1.0},
        )
        micro_batches = []

        def loss_fn(**arguments: Any) -> Any:
            micro_batches.append(len(arguments["data"]))
            return rank_grpo_loss(**arguments, settings=trainer._loss_settings())

        worker = training_worker(micro_batch=micro_batch)
        worker.set_loss_fn(loss_fn)
        metrics = get(worker.train_batch(data), "metrics")
        assert micro_batches == [micro_batch] * (4 // micro_batch)
        return metrics["loss"], started.fields

    return run


@pytest.mark.parametrize("micro_batch", [4, 2, 1])
def test_the_references_token_mean_is_over_the_rows_that_are_kept(update: Update, micro_batch: int) -> None:
    """As in TRL's GRPO trainer, whose completion_mask is 0 in truncated rows. Strictly on-policy, so that w = 1."""
    loss, fields = update("reference", True, micro_batch=micro_batch)
    kept = [0, 2, 3]
    advantages = fields["advantages"].unbind()
    total = sum(float(advantages[row].sum()) for row in kept)
    assert loss == pytest.approx(-total / sum(len(RESPONSES[row]) for row in kept), abs=1e-6)
    assert fields["loss_mask"].unbind()[1].eq(0).all()
    all_rows, _ = update("reference", False, micro_batch=micro_batch)
    assert abs(all_rows - loss) > 0.01


def test_rows_that_are_kept_or_dropped_in_the_paper_weigh_as_before(update: Update) -> None:
    loss, fields = update("paper", True)
    means = 0.0
    for advantages, units in zip(fields["advantages"].unbind(), fields["policy_units"].unbind(), strict=True):
        means += sum(float(advantages[units == unit].mean()) for unit in units.unique() if unit)
    assert loss == pytest.approx(-means / (4 * 2), abs=1e-6)  # 1 / (G N) of the whole batch


def test_a_mini_batch_of_dropped_rows_trains_nothing(update: Update) -> None:
    loss, fields = update("reference", True, responses=[[2, 3, 4]] * 4)
    assert fields["loss_mask"].values().eq(0).all()
    assert loss == 0
