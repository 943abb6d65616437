"""Faults that must stop a run of Rank-GRPO."""

import pytest

pytestmark = pytest.mark.long


def test_a_rollout_that_is_not_the_policy_stops_the_run(trained, recipe, copy_of_project, tmp_path):
    """The fault: vLLM gets the actor's weights and keeps its own."""
    copy = copy_of_project(
        "convrec/cpu/server.py", "        reload_weights(self.model_runner, weights_iterator=iter(weights))\n", ""
    )
    status, stderr, _ = recipe(tmp_path / "run", root=copy, MODEL_PATH=str(trained.out / "sft"), TOTAL_STEPS="1")
    assert status == 1
    assert "the rollout does not sample from the policy" in stderr


def test_a_worker_of_another_source_stops_the_run(trained, recipe, copy_of_project, tmp_path):
    stale = copy_of_project(
        "convrec/training/registration.py", "    register_policy_loss(NAME)(_require_trainer)\n", ""
    )
    status, stderr, _ = recipe(
        tmp_path / "run",
        f"+ray_kwargs.ray_init.runtime_env.env_vars.PYTHONPATH={stale}",
        MODEL_PATH=str(trained.out / "sft"),
        TOTAL_STEPS="1",
    )
    assert status == 1
    assert "has another version of convrec than the driver" in stderr
    assert str(stale) in stderr
