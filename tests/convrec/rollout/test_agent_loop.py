"""Our rollout worker puts into TransferQueue what verl's worker, response by response, would put there.

Its failures stop the run, and its validation has verl's numbers. tests/convrec/rollout/fakes.py answers its calls.
"""

import asyncio
import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from convrec.rank_grpo.credit import NOT_REPORTED
from convrec.rollout.agent_loop import ConvRecAgentLoopWorker
from convrec.training.validation import add_means, validate_directly
from tests.convrec.rollout.fakes import RolloutWorld, make_samples, to_plain, write_catalog
from tests.convrec.rollout.test_failures import FakeQueue, make_buffer
from tests.queue_calls import replace_queue


@pytest.fixture
def catalog(tmp_path: Path) -> str:
    return write_catalog(tmp_path)


# ---- training ----


def canonical_json(row: dict) -> str:
    return json.dumps(row, default=lambda value: value.tolist(), sort_keys=True)


@pytest.mark.parametrize("validate", [False, True])
def test_groups_put_what_verl_puts(catalog: str, validate: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        expected = RolloutWorld(catalog, patch, in_groups=False).run(validate)
    with pytest.MonkeyPatch.context() as patch:
        found = RolloutWorld(catalog, patch).run(validate)
    assert "generate_group" not in expected.calls
    assert found.calls.count("generate_group") == found.calls.count("score a group") == 1
    assert found.rows.keys() == expected.rows.keys()
    assert len(found.rows) == 3 + (3 if validate else 9)
    assert sorted(map(canonical_json, found.scored)) == sorted(map(canonical_json, expected.scored))
    scores = set()
    for key, (tag, fields) in expected.rows.items():
        assert found.rows[key][0] == tag, key
        assert found.rows[key][1].keys() == fields.keys(), key
        for name, value in fields.items():
            if name != "metrics":  # seconds
                assert to_plain(found.rows[key][1][name]) == to_plain(value), (key, name)
        if fields:
            scores.add(to_plain(fields["extra_fields"])["reward_extra_info"]["dcg"])
    assert len(scores) > 1


def test_a_share_of_the_lists_has_log_probs(catalog: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        world = RolloutWorld(catalog, patch, rollout_check_share=0.3).run()
    for index in range(3):
        log_probs = [to_plain(world.rows[f"train/u{index}_{n}_0"][1]["rollout_log_probs"]) for n in range(3)]
        assert max(log_probs[0]) <= 0
        assert {*log_probs[1], *log_probs[2]} == {NOT_REPORTED}


def test_a_reward_that_raises_fails_its_group_and_is_named(catalog: str) -> None:
    def score(**row: Any) -> float:
        if row["extra_info"]["index"] == 1:
            raise ValueError("no such judge")
        return 0.5

    with pytest.MonkeyPatch.context() as patch:
        world = RolloutWorld(catalog, patch)
        world.score = score
        world.run()
    assert {world.rows[f"train/u{index}"][0]["status"] for index in range(3)} == {"failure"}
    failure = asyncio.run(world.worker.failure())
    assert failure is not None
    assert "the reward of sample 1 failed (ValueError: no such judge), 3 times" in failure.reason


# ---- one by one, as verl does ----


async def raise_error(*_: Any) -> None:
    raise ValueError("no catalog")


async def hang(*_: Any) -> None:
    await asyncio.sleep(60)


@pytest.mark.parametrize("kind", [ReplayBuffer, ReplayBufferAsync])
@pytest.mark.parametrize(
    ("reward", "reason"), [(raise_error, r"failed \(ValueError: no catalog\)"), (hang, r"took more than 0\.05 s")]
)
def test_a_reward_that_fails_verls_way_stops_at_the_buffer(
    kind: type[ReplayBuffer], reward: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worker and buffer are verl's with ours over them; the agent loop, of tools, is its reward alone."""
    verls = AgentLoopWorkerTQ.__ray_metadata__.modified_class

    async def score_alone(self: Any, *_: Any, **kwargs: Any) -> None:
        await self._compute_score([], kwargs)

    monkeypatch.setattr(verls, "_run_agent_loop", score_alone)
    monkeypatch.setattr(verls, "_compute_score", reward)
    queue = FakeQueue(monkeypatch, "train", a="pending", b="finished")
    worker: Any = ConvRecAgentLoopWorker.__new__(ConvRecAgentLoopWorker)
    worker.first_failure = None
    worker.siblings = {}
    worker.tokenizer = None
    settings = {"deterministic": False, "reward_timeout": 0.05}
    worker.config = OmegaConf.create({"convrec": settings, "actor_rollout_ref": {"rollout": {"n": 2}}})
    asyncio.run(
        worker._run_prompt({"uid": "a", "index": 7, "agent_name": "tool_agent"}, {}, trajectory={"validate": False})
    )
    assert queue.tags["a"]["status"] == "failure"
    with pytest.raises(RuntimeError, match=rf"1 prompts could not .*: the reward of sample 7 {reason}.*, 3 times"):
        make_buffer(kind, worker.first_failure).sample(1, "train", 1)


def test_questions_are_not_sampled_verls_way(catalog: str) -> None:
    settings = {"ask": ["decade"], "max_turns": 2, "num_items": 3, "catalog_file": catalog}
    with pytest.MonkeyPatch.context() as patch:
        world = RolloutWorld(catalog, patch, in_groups=False, **settings).run()
    assert world.rows["train/u0"][0]["status"] == "failure"
    assert "cannot be sampled in groups" in str(asyncio.run(world.worker.failure()))
    assert "generate" not in world.calls


# ---- validation ----


class StubEngine:
    """A trainer that validates. Its agent-loop manager is a world, as is what it finds in TransferQueue.

    Attributes:
        trainer: verl's, made without its `__init__`, which needs Ray.
        logged: what it handed to the trackers.
    """

    def __init__(self, world: RolloutWorld, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        self.logged: list[Any] = []
        replace_queue(
            monkeypatch,
            kv_batch_get=self._get,
            kv_batch_put=lambda **_: None,
            kv_clear=lambda **_: world.rows.clear(),
        )
        settings = {"log_val_generations": 2, "validation_data_dir": str(folder), "logger": ["file"]}
        trainer: Any = PPOTrainerSync.__new__(PPOTrainerSync)
        trainer.config = OmegaConf.merge(world.worker.config, {"trainer": settings})
        trainer.tokenizer = world.tokenizer
        trainer.val_dataloader = [collate(make_samples())]
        trainer.validation_samples = None
        trainer.agent_loop_manager = world
        trainer.replay_buffer = SimpleNamespace(sample=self._sample)
        trainer.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[None])
        trainer.global_steps = 4
        trainer.validation_generations_logger = SimpleNamespace(log=lambda *what: self.logged.append(what))
        trainer._val_metrics_update = partial(add_means, trainer._val_metrics_update)
        trainer._init_dump_executor()
        self.trainer = trainer

    def _sample(self, **_: Any) -> tuple[KVBatchMeta, None]:
        keys = [key.removeprefix("val/") for key, (_, fields) in self.world.rows.items() if fields]
        return KVBatchMeta(keys, [{} for _ in keys], "val"), None

    def _get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> Any:
        rows = [self.world.rows[f"{partition_id}/{key}"][1] for key in keys]
        return list_of_dict_to_tensordict([{name: row[name] for name in select_fields} for row in rows])

    def validate(self, directly: bool) -> dict[str, float]:
        """Validate our way, or verl's."""
        metrics = validate_directly(self.trainer) if directly else self.trainer._validate()
        assert metrics is not None
        return metrics


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Return samples as verl's data loader has them, which knows no uids."""
    columns = {name: np.array([None] * len(samples), dtype=object) for name in samples[0] if name != "uid"}
    for row, sample in enumerate(samples):
        for name, values in columns.items():
            values[row] = sample[name]
    return columns


def without_bootstraps(metrics: dict[str, float]) -> dict[str, float]:
    """Return metrics without verl's bootstraps, which depend on which of a prompt's answers came first."""
    return {name: value for name, value in metrics.items() if "/best@" not in name and "/worst@" not in name}


@pytest.mark.parametrize("answers", [1, 2])
def test_validation_without_transfer_queue_equals_verls(catalog: str, tmp_path: Path, answers: int) -> None:
    """Metrics, logged samples and written generations; with several answers per prompt also verl's bootstraps."""
    results = []
    for directly in (False, True):
        folder = tmp_path / str(directly)
        with pytest.MonkeyPatch.context() as patch:
            world = RolloutWorld(catalog, patch, in_groups=directly)
            world.worker.rollout_config.val_kwargs = {"n": answers, "temperature": 1.0, "top_p": 1.0, "top_k": -1}
            engine = StubEngine(world, folder, patch)
            first = engine.validate(directly)
            second = engine.validate(directly)  # with what the first has kept
            engine.trainer._shutdown_dump_executor()
            written = [json.loads(line) for line in (folder / "4.jsonl").read_text().splitlines()]
        assert without_bootstraps(first) == pytest.approx(without_bootstraps(second))
        assert all(row.pop("uid") for row in written)
        results.append((first, engine.logged, sorted(map(str, written))))
        assert world.rows == {}
        assert ("generate_group" in world.calls) == directly
    (verls, verls_logged, _), (ours, our_logged, our_written) = results
    # verl sums the scores in float32
    assert without_bootstraps(ours) == pytest.approx(without_bootstraps(verls), abs=1e-6)
    assert ours.keys() == verls.keys()
    assert ours["val/recall"] > 0
    for (_, their_rows, _), (_, our_rows, _) in zip(verls_logged, our_logged, strict=True):
        compared = 2 if answers == 1 else 1  # which of a prompt's answers is logged is chance
        assert [row[:compared] for row in our_rows] == [row[:compared] for row in their_rows]
    assert len(our_written) == 3 * answers


def test_a_validation_goes_verls_way_where_a_prompt_does(catalog: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        world = RolloutWorld(catalog, patch)
        samples = [{**sample, "agent_name": "tool_agent"} for sample in make_samples()]
        assert world.validate(samples, 4) is None
        assert world.calls == []
