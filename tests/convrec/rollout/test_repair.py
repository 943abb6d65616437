"""`convrec.repair` in the agent loop's worker, in groups and, as asynchronous training has it, response by response.

What answers the worker's calls: test_groups.World.
"""

import asyncio
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.rank_grpo.repair import NOT_SAMPLED
from convrec.rollout.repair import REPAIRED, RepairedGroups
from tests.convrec.rollout.test_groups import World, plain, samples, tokenizer  # noqa: F401  a fixture

TITLES = [("Alien", 1979), ("Heat", 1995), ("Jaws", 1975), ("Up", 2009)]


@pytest.fixture
def catalog(tmp_path: Any) -> str:
    path = tmp_path / "catalog.parquet"
    pq.write_table(pa.table({"title": [t for t, _ in TITLES], "year": [y for _, y in TITLES]}), path)
    return str(path)


def rows() -> list[dict[str, Any]]:
    """The first prompt wants Heat, which lists of the World have; the others Up: no list has it, or it was seen."""
    first, second, third = samples()
    second["reward_model"]["ground_truth"] = {"groundtruth": [["Up", 2009]], "seen": []}
    third["reward_model"]["ground_truth"] = {"groundtruth": [["Up", 2009]], "seen": ["Up"]}
    return [dict(row, extra_info={"index": row["index"]}) for row in (first, second, third)]


def world(
    tokenizer: Any,  # noqa: F811
    catalog: str,
    in_groups: bool = True,
    repair: str = "zero",
    step: int = 4,
    validate: bool = False,
    before: Any = None,
) -> World:
    ours = {"repair": repair, "repair_ranks": None, "catalog_file": catalog, "num_items": 3}
    with pytest.MonkeyPatch.context() as patch:
        made = World(tokenizer, catalog, patch, in_groups, **ours)
        made.worker.rollout_config.response_length = 40
        if before:
            before(made, patch)
        return made.run(validate, step, rows())


def extra(row: tuple[dict, dict]) -> dict[str, Any]:
    return plain(row[1]["extra_fields"])


def repaired_keys(found: World) -> list[str]:
    return [key for key, row in found.rows.items() if row[1] and REPAIRED in extra(row)]


@pytest.mark.parametrize("in_groups", [True, False])
def test_one_list_of_a_prompt_without_a_hit_gets_one(tokenizer: Any, catalog: str, in_groups: bool) -> None:  # noqa: F811
    found, before = (world(tokenizer, catalog, in_groups, repair) for repair in ("zero", "none"))
    (key,) = repaired_keys(found)
    assert key.startswith("train/u1_")
    assert repaired_keys(before) == []
    for other, (tag, fields) in before.rows.items():  # all others are as they were, to the last bit
        assert found.rows.keys() == before.rows.keys()
        if other != key:
            assert found.rows[other][0] == tag
            for name in fields.keys() - {"metrics"}:  # seconds
                assert plain(found.rows[other][1][name]) == plain(fields[name]), (other, name)

    tag, fields = found.rows[key]
    old = before.rows[key][1]
    responses, old_responses = (plain(row["responses"]) for row in (fields, old))
    lines, old_lines = (
        tokenizer.decode(ids, skip_special_tokens=True).split("\n") for ids in (responses, old_responses)
    )
    (rank,) = [k for k, (line, other) in enumerate(zip(lines, old_lines, strict=True)) if line != other]
    assert lines[rank] == "Up (2009)"
    info = extra((tag, fields))["reward_extra_info"]  # by the reward function
    assert info["rank_returns"] == info["relevance"] == [int(k == rank) for k in range(3)]
    assert info["dcg"] == plain(fields["rm_scores"])[-1] == pytest.approx([1, 0.6309, 0.5][rank], abs=1e-4)
    assert extra((tag, fields))[REPAIRED] == extra((tag, old))["reward_extra_info"]
    # lengths are of the new list, and log-probs end where its tokens do
    assert tag["response_len"] == len(responses) == len(fields["response_mask"]) == len(fields["loss_mask"])
    assert tag["seq_len"] == len(fields["input_ids"]) == len(fields["position_ids"])
    assert plain(fields["input_ids"])[tag["prompt_len"] :] == responses
    log_probs, old_log_probs = (plain(row["rollout_log_probs"]) for row in (fields, old))
    kept = log_probs.index(NOT_SAMPLED)
    assert log_probs == old_log_probs[:kept] + [NOT_SAMPLED] * (len(responses) - kept)
    assert responses[:kept] == old_responses[:kept]
    assert (rank == 0) == (kept == 0)


def test_both_ways_and_a_resumed_run_repair_alike_and_steps_differ(tokenizer: Any, catalog: str) -> None:  # noqa: F811
    found = {}
    for name, arguments in {"groups": {}, "again": {}, "alone": {"in_groups": False}}.items():
        made = world(tokenizer, catalog, **arguments)
        found[name] = [(key, plain(made.rows[key][1]["responses"])) for key in repaired_keys(made)]
    assert found["groups"] == found["again"] == found["alone"]
    drawn = {tuple(repaired_keys(world(tokenizer, catalog, step=step))) for step in range(8)}
    assert len(drawn) > 1


def test_a_validation_is_never_repaired(tokenizer: Any, catalog: str) -> None:  # noqa: F811
    assert repaired_keys(world(tokenizer, catalog, validate=True)) == []
    assert repaired_keys(world(tokenizer, catalog, in_groups=False, validate=True)) == []


@pytest.mark.parametrize("in_groups", [True, False])
def test_a_reward_that_does_not_see_the_title_ends_the_run(tokenizer: Any, catalog: str, in_groups: bool) -> None:  # noqa: F811
    def blind(made: World, patch: pytest.MonkeyPatch) -> None:
        score = made.score
        made.score = lambda **row: score(**row) | {"relevance": [0, 0, 0]}

    failed = world(tokenizer, catalog, in_groups, before=blind)
    assert failed.rows["train/u1"][0]["status"] == "failure"
    assert "which got a wanted title" in str(asyncio.run(failed.worker.failure()))


def test_nobody_waits_for_a_response_that_failed(tokenizer: Any, catalog: str) -> None:  # noqa: F811
    worker = RepairedGroups.__mro__[1]  # Ray copies verl's methods
    verls = worker._run_agent_loop  # type: ignore[attr-defined]

    async def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs["session_id"] == 1 and kwargs["uid"] == "u1":
            raise ValueError("no answer")
        return await verls(self, *args, **kwargs)

    def failing(made: World, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(worker, "_run_agent_loop", run)

    failed = world(tokenizer, catalog, in_groups=False, before=failing)
    assert failed.rows["train/u1"][0]["status"] == "failure"
    assert failed.rows["train/u0"][0]["status"] == "finished"
    assert failed.worker.siblings == {}
