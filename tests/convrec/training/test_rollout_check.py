"""The comparison of rollout and actor on the sampled tokens."""

import pytest
import torch

from convrec.rank_grpo.credit import NOT_REPORTED, NOT_SAMPLED
from convrec.training.rollout_check import (
    BF16_BOUND,
    FP32_BOUND,
    check_rollout_is_policy,
    choose_bound,
    warn_about_drift,
)
from tests.convrec.settings.test_run import run_with

ROLLOUT = torch.tensor([[-1.0, -2.0, 0.0], [-0.5, NOT_SAMPLED, -0.25], [NOT_REPORTED] * 3])
MASK = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 1, 1]])


def batch(difference: float) -> dict[str, torch.Tensor]:
    actor = ROLLOUT + difference
    actor[0, 2] = -40.0  # not in the loss
    actor[1, 1] = -50.0  # a repair put it in
    return {"rollout_log_probs": ROLLOUT, "log_probs": actor, "loss_mask": MASK}


def test_a_rollout_that_differs_from_the_actor_ends_the_run() -> None:
    with pytest.raises(RuntimeError, match=r"does not sample from the policy.* is 0.2 .*rollout_check_bound=0.1"):
        check_rollout_is_policy(batch(0.2), bound=0.1)


def test_a_difference_below_the_bound_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    check_rollout_is_policy(batch(-0.05), bound=0.1)
    assert "2 of 3 responses compared, mean |d log p| 0.05, max 0.05" in capsys.readouterr().out


def test_a_batch_without_a_log_prob_to_compare_ends_the_run() -> None:
    data = batch(0.0) | {"rollout_log_probs": torch.full_like(ROLLOUT, NOT_REPORTED)}
    with pytest.raises(RuntimeError, match="no token to compare"):
        check_rollout_is_policy(data, bound=0.1)


@pytest.mark.parametrize(
    ("overrides", "bound"),
    [
        (("param_dtype=fp32", "dtype=float32"), FP32_BOUND),
        (("param_dtype=bf16", "dtype=bfloat16"), BF16_BOUND),
        (("param_dtype=fp32", "dtype=bfloat16"), BF16_BOUND),
        (("param_dtype=bf16", "dtype=float32"), BF16_BOUND),
        (("param_dtype=fp32", "dtype=float32", "quantization=fp8"), BF16_BOUND),
    ],
)
def test_the_bound_fits_the_dtypes_of_actor_and_rollout(overrides: tuple[str, ...], bound: float) -> None:
    passes, *rollout = overrides
    arguments = [f"actor_rollout_ref.actor.fsdp_config.mixed_precision.{passes}"]
    arguments += [f"actor_rollout_ref.rollout.{override}" for override in rollout]
    assert choose_bound(run_with("rank_grpo", *arguments, host="cpu")) == bound
    assert choose_bound(run_with("rank_grpo", *arguments, "convrec.rollout_check_bound=0.5", host="cpu")) == 0.5


@pytest.mark.parametrize(
    "older", ["algorithm.rollout_correction.bypass_mode=true", "trainer.v1.trainer_mode=separate_async"]
)
def test_older_rollouts_have_the_wider_bound(older: str) -> None:
    in_fp32 = ["actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32"]
    in_fp32 += ["actor_rollout_ref.rollout.dtype=float32"]
    assert choose_bound(run_with("rank_grpo", *in_fp32, older, host="cpu")) == BF16_BOUND


def test_a_nan_difference_ends_the_run() -> None:
    with pytest.raises(RuntimeError):
        check_rollout_is_policy(batch(float("nan")), bound=0.1)


@pytest.mark.parametrize(("mean", "warns"), [(0.2, True), (float("nan"), True), (0.05, False), (None, False)])
def test_a_rollout_that_drifts_is_warned_about(
    caplog: pytest.LogCaptureFixture, mean: float | None, warns: bool
) -> None:
    warn_about_drift(7, {} if mean is None else {"actor/rollout_diff_mean": mean}, bound=0.1)
    assert ("step 7" in caplog.text) == warns
