"""verl's options that touch ranks, each in a whole run of two steps, beside the run without any.

On a CPU rollout and actor agree to 1e-4 nats, so that weights of the mismatch are 1 and change nothing.
"""

import re

import pytest

from convrec.runs.folder import read_metrics
from convrec.training.rollout_check import BF16_BOUND, FP32_BOUND

pytestmark = pytest.mark.slow  # four starts of a minute: not in CI

CORRECTION = "algorithm.rollout_correction"
NAMES = ("actor/policy_loss", "actor/grad_norm", "actor/kl", "rank_grpo/dcg", "critic/advantages/max")


@pytest.fixture(scope="module")
def two_steps(recipe, trained, own_data, tmp_path_factory):
    """Metrics of the two steps by option's overrides; on prompts of which most want many titles."""
    folder = tmp_path_factory.mktemp("options")

    def train(name: str, *overrides: str) -> list[dict]:
        run = folder / name
        variables = own_data | {"MODEL_PATH": str(trained.out / "sft"), "TOTAL_STEPS": "2", "LR": "1e-3"}
        status, error, log = recipe(run, "convrec.deterministic=true", *overrides, **variables)
        assert status == 0, error + log[-3000:]
        rows = [row for row in read_metrics(run) if "actor/policy_loss" in row]
        assert [row["step"] for row in rows] == [1, 2]
        return rows

    train.folder = folder
    train.plain = train("plain")
    assert max(row["critic/advantages/max"] for row in train.plain) > 0
    return train


def test_mismatch_weights_are_one_where_rollout_and_actor_agree(two_steps):
    """The weights of each level: tests/convrec/training/test_loss.py."""
    for row, plain in zip(two_steps("rank", f"{CORRECTION}.rollout_is=rank"), two_steps.plain, strict=True):
        assert row["rollout_corr/rollout_is_mean"] == pytest.approx(1, abs=1e-3)
        for name in NAMES:
            assert row[name] == pytest.approx(plain[name], rel=1e-3, abs=1e-5), name


def test_a_share_of_log_probs_trains_what_all_do(two_steps):
    rows = two_steps("all", "convrec.rollout_check_share=1")
    compares = ("actor/rollout_diff", "training/rollout_", "timing", "perf/", "actor/perf")
    for row, plain in zip(rows, two_steps.plain, strict=True):
        assert row.keys() == plain.keys()
        same = [name for name in row if not name.startswith(compares)]
        assert {name: row[name] for name in same} == {name: plain[name] for name in same}
    assert two_steps.plain[0]["training/rollout_probs_diff_max"] < 1e-3
    assert two_steps.plain[0]["actor/rollout_diff_mean"] != rows[0]["actor/rollout_diff_mean"]
    weights, others = (
        (two_steps.folder / name / "global_step_2/actor/huggingface/model.safetensors").read_bytes()
        for name in ("plain", "all")
    )
    assert weights == others
    log = (two_steps.folder / "plain" / "run.log").read_text(encoding="utf-8")
    compared, num_responses = map(int, re.search(r"rollout against actor: (\d+) of (\d+) responses", log).groups())
    assert 0 < compared < num_responses


def test_dynamic_sampling_trains_on_groups_that_differ(two_steps):
    rows = two_steps("dynamic", "algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=reward")
    # else there is nothing to draw again
    assert max(row["rank_grpo/zero_std/all_ranks"] for row in two_steps.plain) > 0
    assert [row["rank_grpo/zero_std/all_ranks"] for row in rows] == [0, 0]
    assert sum(row.get("training/filter_groups/evicted_samples", 0) for row in rows) > 0


def test_fused_log_probs_are_those_of_whole_logits(two_steps):
    """The model's head is not its embedding: FSDP2 gathers it by itself."""
    for row, plain in zip(
        two_steps("fused", "actor_rollout_ref.model.use_fused_kernels=true"), two_steps.plain, strict=True
    ):
        for name in NAMES:
            assert row[name] == pytest.approx(plain[name], rel=1e-3, abs=1e-5), name


@pytest.mark.parametrize("more", [(), ("actor_rollout_ref.actor.ppo_epochs=2",)])
def test_repair_changes_training_but_not_the_logged_policy(two_steps, more):
    """The first step samples what the plain run does. With mu 2 old log-probs are the actor's, of repaired lists."""
    first, second = two_steps(f"repair {len(more)}", "convrec.repair=zero", *more)
    plain = two_steps.plain[0]
    assert first["rank_grpo/no_hit"] >= first["rank_grpo/repaired"] > 0
    for name in (
        "rank_grpo/no_hit",
        "rank_grpo/dcg",
        "rank_grpo/recall",
        "rank_grpo/zero_std/all",
        "rank_grpo/return@1",
    ):
        assert first[name] == plain[name], name
    assert first["critic/advantages/max"] > 0
    assert first["actor/policy_loss"] != plain["actor/policy_loss"]
    assert first["rank_grpo/sampled_tokens"] < 1
    for row in (first, second):
        assert row["actor/rollout_diff_max"] < 1e-2
        assert not any(name.startswith("training/rollout_") for name in row)


def test_in_bf16_rollout_and_actor_differ_by_its_rounding(two_steps):
    """Each bound is far above what its dtype gives, and below what weights that have not arrived give (.3)."""
    passes = "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=bf16"
    for row, plain in zip(two_steps("bf16", passes), two_steps.plain, strict=True):
        assert plain["actor/rollout_diff_mean"] < FP32_BOUND / 10
        assert FP32_BOUND / 100 < row["actor/rollout_diff_mean"] < BF16_BOUND / 3
