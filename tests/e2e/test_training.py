"""Rank-GRPO runs that the demo does not cover: tied heads, mu = 2, baselines, and faults that must stop a run."""

import pytest
from transformers import AutoModelForCausalLM

from convrec.checkpoints import resolve_model
from convrec.runs import read_metrics
from convrec.tiny_model import make_tiny_model


def test_tied_head_and_two_updates_a_batch(demo, recipe, tmp_path_factory, tiny_texts):
    """The head tied to the embedding is what vLLM's CPU build forgets on a weight update."""
    folder = tmp_path_factory.mktemp("tied")
    tied = make_tiny_model(folder / "model", **tiny_texts, tie_word_embeddings=True)
    status, stderr, log = recipe(
        folder / "run", MODEL_PATH=str(tied), TOTAL_STEPS="3", MU="2", LR="1e-2", REWARD="log_decay"
    )
    assert status == 0, stderr + log[-3000:]
    rows = [row for row in read_metrics(folder / "run") if "actor/policy_loss" in row]
    assert len(rows) == 3
    for row in rows:
        assert row["actor/rollout_diff_max"] < 1e-3
        assert row["timing_s/old_log_prob"] > 0.01  # mu > 1 needs the pass
    assert rows[-1]["actor/ratio_max/all"] > 1.0  # the second update of a batch is off-policy
    assert rows[-1]["actor/kl"] > 0


@pytest.mark.parametrize("algorithm", ["grpo", "gspo"])
def test_baselines_run_in_the_same_program_and_their_shards_are_merged(demo, recipe, tmp_path, algorithm):
    status, stderr, log = recipe(
        tmp_path / "run",
        "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra]",
        MODEL_PATH=str(demo.out / "sft"),
        TOTAL_STEPS="2",
        LR="1e-3",
        TRAIN_BATCH_SIZE="16",  # the model has hardly been trained: enough lists that some hit
        ROLLOUT_N="8",
        ALGORITHM=algorithm,
    )
    assert status == 0, stderr + log[-3000:]
    rows = [row for row in read_metrics(tmp_path / "run") if "actor/pg_loss" in row]
    assert [row["step"] for row in rows] == [1, 2]
    assert all("rank_grpo/return@1" in row for row in rows)
    assert max(row["actor/grad_norm"] for row in rows) > 0
    before = AutoModelForCausalLM.from_pretrained(resolve_model(demo.out / "sft")).state_dict()
    after = AutoModelForCausalLM.from_pretrained(resolve_model(tmp_path / "run"), dtype="float32").state_dict()
    moved = max((after[name] - before[name]).abs().max().item() for name in before)
    assert 1e-4 < moved < 2e-2  # two steps of Adam at lr 1e-3, and verl's merger rounds to bf16


def test_a_rollout_that_is_not_the_policy_stops_the_run(demo, recipe, copy_of_project, tmp_path, tiny_texts):
    """The fault: after a weight update vLLM's CPU build keeps sampling from the tied head it was started with."""
    copy = copy_of_project("convrec/vllm_cpu.py", "        repack_tied_head(self.model_runner.model)\n", "")
    tied = make_tiny_model(tmp_path / "model", **tiny_texts, tie_word_embeddings=True)
    status, stderr, _ = recipe(tmp_path / "run", root=copy, MODEL_PATH=str(tied), TOTAL_STEPS="1")
    assert status == 1
    assert "the rollout does not sample from the policy" in stderr


def test_a_worker_without_the_registrations_stops_the_run(demo, recipe, copy_of_project, tmp_path):
    stale = copy_of_project("convrec/registration.py", "    register_policy_loss(NAME)(_needs_the_trainer)\n", "")
    status, stderr, _ = recipe(
        tmp_path / "run",
        f"+ray_kwargs.ray_init.runtime_env.env_vars.PYTHONPATH={stale}",
        MODEL_PATH=str(demo.out / "sft"),
        TOTAL_STEPS="1",
    )
    assert status == 1
    assert "lacks the policy_loss `rank_grpo`" in stderr
    assert str(stale) in stderr
