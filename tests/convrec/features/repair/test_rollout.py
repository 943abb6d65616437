"""`convrec.repair` in a rollout worker: in groups, and response by response as in asynchronous training."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from convrec.features.repair.rollout import REPAIRED
from convrec.rank_grpo.credit import NOT_SAMPLED
from convrec.rollout.agent_loop import ConvRecAgentLoopWorker
from tests.convrec.rollout.fakes import FILMS, RolloutWorld, make_samples, to_plain, write_catalog


@pytest.fixture
def catalog(tmp_path: Path) -> str:
    return write_catalog(tmp_path, [*FILMS, ("Up", 2009)])


def make_rows() -> list[dict[str, Any]]:
    """Return three prompts: Heat is relevant for the first and listed; Up for the others, listed never, seen in one."""
    first, second, third = make_samples(is_validation=False)
    second["reward_model"]["ground_truth"] = {"groundtruth": [["Up", 2009]], "seen": []}
    third["reward_model"]["ground_truth"] = {"groundtruth": [["Up", 2009]], "seen": ["Up"]}
    return [first, second, third]


def roll_out(
    catalog: str,
    in_groups: bool = True,
    repair: str = "zero",
    step: int = 4,
    validate: bool = False,
    change: Callable[[RolloutWorld, pytest.MonkeyPatch], None] | None = None,
) -> RolloutWorld:
    settings = {"repair": repair, "repair_ranks": None, "catalog_file": catalog, "num_items": 3}
    with pytest.MonkeyPatch.context() as patch:
        world = RolloutWorld(catalog, patch, in_groups, response_length=40, **settings)
        if change:
            change(world, patch)
        return world.run(validate, step, make_rows())


def extra_fields(row: tuple[dict, dict]) -> dict[str, Any]:
    return to_plain(row[1]["extra_fields"])


def repaired_keys(world: RolloutWorld) -> list[str]:
    return [key for key, row in world.rows.items() if row[1] and REPAIRED in extra_fields(row)]


def changed_line(world: RolloutWorld, old_ids: list[int], new_ids: list[int]) -> tuple[int, str]:
    """Return rank and text of the one line that differs."""
    old_text, new_text = (world.tokenizer.decode(ids, skip_special_tokens=True) for ids in (old_ids, new_ids))
    lines = zip(old_text.split("\n"), new_text.split("\n"), strict=True)
    (change,) = [(rank, new) for rank, (old, new) in enumerate(lines) if old != new]
    return change


@pytest.mark.parametrize("in_groups", [True, False])
def test_one_list_of_a_prompt_without_a_hit_gets_one(catalog: str, in_groups: bool) -> None:
    repaired = roll_out(catalog, in_groups)
    before = roll_out(catalog, in_groups, repair="none")
    (key,) = repaired_keys(repaired)
    assert key.startswith("train/u1_")
    assert repaired_keys(before) == []
    assert repaired.rows.keys() == before.rows.keys()
    for other, (old_tag, old_row) in before.rows.items():  # all others are bitwise unchanged
        if other != key:
            assert repaired.rows[other][0] == old_tag
            for name in old_row.keys() - {"metrics"}:  # seconds
                assert to_plain(repaired.rows[other][1][name]) == to_plain(old_row[name]), (other, name)

    tag, fields = repaired.rows[key]
    old = before.rows[key][1]
    responses = to_plain(fields["responses"])
    old_responses = to_plain(old["responses"])
    rank, line = changed_line(repaired, old_responses, responses)
    assert line == "Up (2009)"
    info = extra_fields((tag, fields))["reward_extra_info"]  # from the reward function
    assert info["rank_returns"] == info["relevance"] == [int(k == rank) for k in range(3)]
    assert info["dcg"] == to_plain(fields["rm_scores"])[-1] == pytest.approx([1, 0.6309, 0.5][rank], abs=1e-4)
    assert extra_fields((tag, fields))[REPAIRED] == extra_fields((tag, old))["reward_extra_info"]
    # lengths are those of the new list, and log-probs end with its tokens
    assert tag["response_len"] == len(responses) == len(fields["response_mask"]) == len(fields["loss_mask"])
    assert tag["seq_len"] == len(fields["input_ids"]) == len(fields["position_ids"])
    assert to_plain(fields["input_ids"])[tag["prompt_len"] :] == responses
    log_probs = to_plain(fields["rollout_log_probs"])
    num_kept = log_probs.index(NOT_SAMPLED)
    old_log_probs = to_plain(old["rollout_log_probs"])
    assert log_probs == old_log_probs[:num_kept] + [NOT_SAMPLED] * (len(responses) - num_kept)
    assert responses[:num_kept] == old_responses[:num_kept]
    assert (rank == 0) == (num_kept == 0)


def test_both_ways_and_a_resumed_run_repair_the_same_lists(catalog: str) -> None:
    repairs = []
    for in_groups in (True, True, False):
        world = roll_out(catalog, in_groups)
        repairs.append([(key, to_plain(world.rows[key][1]["responses"])) for key in repaired_keys(world)])
    assert repairs[0]
    assert repairs[0] == repairs[1] == repairs[2]


def test_steps_repair_different_rollouts(catalog: str) -> None:
    assert len({tuple(repaired_keys(roll_out(catalog, step=step))) for step in range(8)}) > 1


@pytest.mark.parametrize("in_groups", [True, False])
def test_validation_is_never_repaired(catalog: str, in_groups: bool) -> None:
    assert repaired_keys(roll_out(catalog, in_groups, validate=True)) == []


@pytest.mark.parametrize("in_groups", [True, False])
def test_a_reward_that_misses_the_title_ends_the_run(catalog: str, in_groups: bool) -> None:
    def make_blind(world: RolloutWorld, patch: pytest.MonkeyPatch) -> None:
        score = world.score
        world.score = lambda **row: score(**row) | {"relevance": [0, 0, 0]}

    world = roll_out(catalog, in_groups, change=make_blind)
    assert world.rows["train/u1"][0]["status"] == "failure"
    assert "got a relevant title, but the reward function counts no hit" in str(asyncio.run(world.worker.failure()))


def test_a_failed_response_does_not_leave_others_waiting(catalog: str) -> None:
    verls_worker: Any = ConvRecAgentLoopWorker.__mro__[1]  # Ray copies verl's methods
    run_agent_loop = verls_worker._run_agent_loop

    async def fail_one(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs["session_id"] == 1 and kwargs["uid"] == "u1":
            raise ValueError("no answer")
        return await run_agent_loop(self, *args, **kwargs)

    def make_failing(world: RolloutWorld, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(verls_worker, "_run_agent_loop", fail_one)

    world = roll_out(catalog, in_groups=False, change=make_failing)
    assert world.rows["train/u1"][0]["status"] == "failure"
    assert world.rows["train/u0"][0]["status"] == "finished"
    assert world.worker.siblings == {}
