"""Repaired rows: they train as they are, but do not count as samples of the policy in any metric."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from convrec.features.repair.rollout import REPAIRED
from convrec.rank_grpo.credit import NOT_SAMPLED, SAMPLED_TOKENS
from convrec.rank_grpo.policy_loss import RankLossSettings
from convrec.training.loss import rank_grpo_loss
from tests.convrec.conftest import nested
from tests.convrec.training.conftest import EOS, LINE, rank_method

# two prompts, two responses each; the second response to `a`, which nobody hits, has got a title at rank 2
UID = ["a", "a", "b", "b"]
RESPONSES = [[2, LINE, 3, EOS], [2, LINE, 5, 6, EOS], [2, LINE, 3, EOS], [4, LINE, 4, EOS]]
RELEVANCE = [[0, 0], [0, 1], [1, 0], [0, 0]]
SAMPLED_RELEVANCE = [[0, 0], [0, 0], [1, 0], [0, 0]]
ROLLOUT = [[-1.0] * 4, [-1.0, -1.0, *[NOT_SAMPLED] * 3], [-1.0] * 4, [-1.0] * 4]


def info(relevance: list[int]) -> dict[str, Any]:
    return {"rank_returns": [float(rel) for rel in relevance], "relevance": relevance, "hits": sum(relevance)} | {
        "part_returns": [[float(rel) for rel in relevance]]
    }


def started(queue: Callable[..., Any], repaired: bool = True, **fields: Any) -> Any:
    extra: list[dict[str, Any]] = [
        {"reward_extra_info": info(one)} for one in (RELEVANCE if repaired else SAMPLED_RELEVANCE)
    ]
    if repaired:
        extra[1][REPAIRED] = info(SAMPLED_RELEVANCE[1])
    return queue(
        tags=[{}] * 4,
        uid=UID,
        responses=nested(RESPONSES),
        response_mask=nested([[1] * len(row) for row in RESPONSES]),
        rollout_log_probs=nested(ROLLOUT),
        extra_fields=extra,
        **fields,
    )


@pytest.mark.parametrize("rewards", [None, {"relevance": 1}])
def test_metrics_use_sampled_rows_and_advantages_repaired_ones(queue: Callable[..., Any], rewards: Any) -> None:
    logged, advantages = {}, {}
    for repair in ("zero", "none"):
        method = rank_method(rewards=rewards, reward_combination="sum", repair=repair)
        batch = started(queue, repaired=repair == "zero")
        method.assign_credit(None, batch.batch, logged.setdefault(repair, {}))
        advantages[repair] = batch.fields["advantages"].unbind()
    own = {"rank_grpo/repaired": 0.5, SAMPLED_TOKENS: pytest.approx(14 / 17)}
    assert {name: logged["zero"].pop(name) for name in own} == own
    of_training = {"rank_grpo/part/relevance/advantage"}
    assert {name: value for name, value in logged["zero"].items() if name not in of_training} == {
        name: value for name, value in logged["none"].items() if name not in of_training
    }
    assert logged["zero"]["rank_grpo/no_hit"] == logged["zero"]["rank_grpo/zero_std/all_ranks"] == 0.5
    # two rollouts, returns 0 and 1 at rank 2: std .7071, so +-.5 / .7072
    a = 0.5 / (0.5**0.5 + 1e-4)
    assert advantages["zero"][0].tolist() == pytest.approx([0, 0, -a, -a])
    assert advantages["zero"][1].tolist() == pytest.approx([0, 0, a, a, a])
    assert not any(row.any() for row in advantages["none"][:2])
    for row in (2, 3):  # a prompt with signal, to the last bit
        assert torch.equal(advantages["zero"][row], advantages["none"][row])
        assert advantages["none"][row].any()


@pytest.mark.parametrize("level", ["token", "rank", "sequence"])
def test_rollout_correction_skips_unsampled_tokens(queue: Callable[..., Any], level: str) -> None:
    correction = {"rollout_is": level, "rollout_is_threshold": 5.0, "rollout_is_batch_normalize": False}
    method = rank_method(repair="zero", algorithm={"rollout_correction": correction})
    old = [[-0.9] * len(row) for row in RESPONSES]  # each sampled token: exp(.1)
    batch = started(queue, old_log_probs=nested(old))
    method.assign_credit(None, batch.batch, {})
    weights = batch.fields["rollout_is_weights"].unbind()[1].tolist()
    sampled = {"token": np.exp([0.1, 0.1, 0, 0, 0]), "rank": np.exp([0.2, 0.2, 0, 0, 0]), "sequence": np.exp([0.2] * 5)}
    assert weights == pytest.approx(sampled[level].tolist())


def test_entropy_and_difference_are_means_over_sampled_tokens(queue: Callable[..., Any]) -> None:
    from verl.utils.tensordict_utils import get_tensordict

    method = rank_method(repair="zero")
    batch, metrics = started(queue, prompts=nested([[7, 8]] * 4)), dict[str, float]()
    batch.fields["loss_mask"] = batch.fields["response_mask"]
    method.assign_credit(None, batch.batch, metrics)
    # log-probs of the actor, verl's layout: the token's own at the place before it
    log_probs = [[0.0] + [-1.5] * len(row) + [0.0] for row in RESPONSES]
    log_probs[1][3:6] = [-9.0] * 3  # what the repair has put in surprises the policy
    names = ("prompts", "responses", "loss_mask", "advantages", "policy_units", "rollout_log_probs")
    counts = {"batch_num_tokens": 17, "global_batch_size": 4, "dp_size": 1}
    data = get_tensordict({name: batch.fields[name] for name in names}, counts)
    _, parts = rank_grpo_loss({"log_probs": nested(log_probs)}, data, settings=RankLossSettings(num_ranks=2))

    metrics |= {f"actor/{name}": metric.aggregate() for name, metric in parts.items()}
    method.finish_metrics(1, metrics)
    assert metrics["actor/entropy"] == pytest.approx(1.5)
    assert metrics["actor/rollout_diff_mean"] == pytest.approx(0.5)
    assert metrics["actor/rollout_diff_max"] == pytest.approx(0.5)
