"""Rollouts in groups put into TransferQueue what verl's agent loop, response by response, would put there.

vLLM, TransferQueue and the reward's worker are called through Ray, which the end-to-end tests do; here their calls are
answered in this process, the reward's by verl's reward manager with our reward function.
"""

import asyncio
import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from omegaconf import OmegaConf

from convrec.rollout.groups import GROUP, groups_of
from convrec.rollout.responses import Prompt
from convrec.training.validation import ValidatesDirectly

CONVERSATIONS = ["I liked Alien (1979) and Heat (1995)", "Something funny, please", "A film with robots in it?"]


def prompts_of(sizes: list[int]) -> list[Prompt]:
    return [Prompt({"uid": str(place)}, {}, {}, n) for place, n in enumerate(sizes)]


def test_groups_keep_the_order_and_hold_at_most_so_many_responses() -> None:
    found = [[prompt.n for prompt in group] for group in groups_of(prompts_of([8] * 9 + [1, GROUP + 1, 2]))]
    assert found == [[8] * 4, [8] * 4, [8, 1], [GROUP + 1], [2]]
    assert list(groups_of([])) == []


class Answers:
    """What answers a worker's calls: a method's name -> an object with `remote`, as of a Ray actor."""

    def __init__(self, **methods: Any) -> None:
        for name, method in methods.items():
            setattr(self, name, SimpleNamespace(remote=method))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import AutoTokenizer

    from recipes.tiny_model import make_tiny_model

    folder = tmp_path_factory.mktemp("model") / "tiny"
    make_tiny_model(
        folder,
        CONVERSATIONS,
        ["Alien (1979)", "Heat (1995)"],
        vocab_size=600,
        hidden_size=64,
        num_heads=2,
        num_kv_heads=1,
    )
    return AutoTokenizer.from_pretrained(folder)


class World:
    """A worker, and what it has put into TransferQueue: key -> (tag, fields)."""

    def __init__(
        self, tokenizer: Any, catalog: str, monkeypatch: pytest.MonkeyPatch, in_groups: bool, **ours: Any
    ) -> None:
        """ours: further settings of `convrec`."""
        import transfer_queue as tq
        from verl.utils.dataset.rl_dataset import RLHFDataset
        from verl.workers.rollout.llm_server import LLMServerClient
        from verl.workers.rollout.replica import TokenOutput

        from convrec.rollout.agent_loop import ConvRecAgentLoopWorker
        from convrec.rollout.reward_manager import GroupRewardManager
        from reward.catalog_match import compute_score

        self.rows: dict[str, tuple[dict, dict]] = {}
        self.calls: list[str] = []
        self.score = lambda **row: compute_score(catalog_path=catalog, num_items=3, **row)
        self.scored: list[dict] = []  # what the reward function was called with
        lists = ["Alien (1979)\nHeat (1995)", "Heat (1995)\nHeat (1995)\nJaws (1975)", ""]

        async def generate(prompt_ids: list[int], sampling_params: dict, request_id: str, **_: Any) -> TokenOutput:
            self.calls.append("generate")
            text = lists[(len(prompt_ids) + sampling_params["seed"]) % 3]
            sampling_params["logprobs"] = 0  # verl's server changes what it is given
            ids = [*tokenizer.encode(text), tokenizer.eos_token_id]
            log_probs = [-place / 10 for place in range(len(ids))]
            return TokenOutput(token_ids=ids, log_probs=log_probs, extra_fields={"global_steps": 4})

        async def generate_group(requests: list[dict]) -> list[TokenOutput]:
            self.calls.append("generate_group")
            return [await generate(**request) for request in requests]

        async def acquire(request_id: str) -> tuple[str, Any]:
            return "0", Answers(generate=generate, generate_group=generate_group)

        async def no_fields() -> list[str]:
            return []

        def reward(**row: Any) -> Any:
            self.scored.append(row)
            return self.score(**row)

        self.manager = manager = GroupRewardManager(OmegaConf.create({}), tokenizer, reward)

        async def score(data: Any) -> Any:
            self.calls.append("score a group" if isinstance(data, list) else "score")
            return await manager.run_single(copy.deepcopy(data))  # another process, to Ray

        async def put(keys: list[str], partition_id: str, fields: Any = None, tags: Any = None) -> None:
            for place, key in enumerate(keys):
                tag, row = self.rows.setdefault(f"{partition_id}/{key}", ({}, {}))
                tag.update(tags[place])
                if fields is not None:
                    row.update({name: fields[name][place] for name in fields.keys()})  # noqa: SIM118  a TensorDict

        async def put_one(key: str, partition_id: str, tag: dict) -> None:
            await put([key], partition_id, tags=[tag])

        monkeypatch.setattr(tq, "async_kv_batch_put", put)
        monkeypatch.setattr(tq, "async_kv_put", put_one)
        rollout = {"name": "vllm", "n": 3, "val_kwargs": {"n": 1}, "prompt_length": 60, "response_length": 12}
        rollout |= {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "calculate_log_probs": True}
        rollout |= {"full_determinism": False, "multi_turn": {}, "agent": {"default_agent_loop": "single_turn_agent"}}
        config = OmegaConf.create(
            {
                "actor_rollout_ref": {"rollout": rollout},
                "data": {"seed": 5, "apply_chat_template_kwargs": {}, "max_prompt_length": 300},
                "reward": {
                    "reward_manager": {"name": "GroupRewardManager"},
                    "reward_model": {"enable": False},
                    "custom_reward_function": {"path": "pkg://reward.catalog_match"},
                },
                "convrec": {"deterministic": True, "reward_timeout": 5.0, **ours},
            }
        )
        worker = ConvRecAgentLoopWorker.__new__(ConvRecAgentLoopWorker)
        balancer = Answers(
            acquire_server=acquire,
            release_server=lambda server_id: self.calls.append("release"),
            require_acquire_fields=no_fields,
            require_release_fields=no_fields,
        )
        worker.config, worker.rollout_config = config, config.actor_rollout_ref.rollout
        worker.llm_client = LLMServerClient(config, balancer)
        worker.tokenizer, worker.processor, worker.hf_model_type = tokenizer, None, "qwen2"
        worker.mm_processor_kwargs, worker.dataset_cls, worker.tools = {}, RLHFDataset, []
        worker.distillation_enabled, worker.teacher_client = False, None
        worker.reward_loop_worker_handles = [Answers(compute_score=score)]
        worker.first_failure, worker.waiting, worker.single_turn = None, [], None
        worker.siblings = {}
        if not in_groups:
            monkeypatch.setattr(worker, "_goes_in_groups", lambda sample: False)
        self.worker = worker

    def run(self, validate: bool = False, step: int = 4, rows: list[dict[str, Any]] | None = None) -> "World":
        async def all_prompts() -> None:
            self.manager.loop = asyncio.get_running_loop()
            tasks = []
            for sample in rows or samples():
                prompt = {**sample, "agent_name": "single_turn_agent", "global_steps": step}
                trajectory = {"step": step, "sample_index": sample["index"], "rollout_n": 0, "validate": validate}
                params = {"temperature": 1.0, "logprobs": True}
                tasks.append(asyncio.create_task(self.worker._run_prompt(prompt, params, trajectory, False)))
            await asyncio.gather(*tasks)

        asyncio.run(all_prompts())
        return self

    # ---- as the agent-loop manager ----

    def generate_sequences(self, batch: Any) -> None:
        async def all_prompts() -> None:
            self.manager.loop = asyncio.get_running_loop()
            self.worker.background_tasks = set()
            await self.worker.generate_sequences(batch)
            await asyncio.gather(*self.worker.background_tasks)

        asyncio.run(all_prompts())

    def validate(self, some: list[dict], global_steps: int) -> Any:
        async def all_prompts() -> Any:
            self.manager.loop, self.worker.single_turn = asyncio.get_running_loop(), None  # it keeps its loop
            return await self.worker.validate(some, global_steps)

        return asyncio.run(all_prompts())


def samples() -> list[dict[str, Any]]:
    """Rows of the data set."""
    return [
        {
            "uid": f"u{place}",
            "raw_prompt": [{"role": "user", "content": text}],
            "data_source": "test",
            "reward_model": {"ground_truth": {"groundtruth": [["Heat", 1995]], "seen": []}},
            "extra_info": {"index": place, "validate": True},
            "index": place,
        }
        for place, text in enumerate(CONVERSATIONS)
    ]


@pytest.fixture
def catalog(tmp_path: Any) -> str:
    path = tmp_path / "catalog.parquet"
    pq.write_table(pa.table({"title": ["Alien", "Heat", "Jaws"], "year": [1979, 1995, 1975]}), path)
    return str(path)


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor) else getattr(value, "data", value)


def arguments(row: dict) -> str:
    return json.dumps(row, default=lambda value: value.tolist(), sort_keys=True)


@pytest.mark.parametrize("validate", [False, True])
def test_groups_put_what_verl_puts(tokenizer: Any, catalog: str, validate: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        expected = World(tokenizer, catalog, patch, in_groups=False).run(validate)
    with pytest.MonkeyPatch.context() as patch:
        found = World(tokenizer, catalog, patch, in_groups=True).run(validate)
    assert "generate_group" not in expected.calls
    assert found.calls.count("generate_group") == found.calls.count("score a group") == 1
    assert found.rows.keys() == expected.rows.keys()
    assert len(found.rows) == 3 + (3 if validate else 9)
    assert sorted(map(arguments, found.scored)) == sorted(map(arguments, expected.scored))
    scores = set()
    for key, (tag, fields) in expected.rows.items():
        assert found.rows[key][0] == tag, key
        assert found.rows[key][1].keys() == fields.keys(), key
        for name, value in fields.items():
            if name != "metrics":  # seconds
                assert plain(found.rows[key][1][name]) == plain(value), (key, name)
        if fields:
            scores.add(plain(fields["extra_fields"])["reward_extra_info"]["dcg"])
    assert len(scores) > 1


def test_a_reward_that_raises_fails_the_prompts_of_its_group_and_is_named(tokenizer: Any, catalog: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        world = World(tokenizer, catalog, patch, in_groups=True)

        def score(**row: Any) -> float:
            if row["extra_info"]["index"] == 1:
                raise ValueError("no such judge")
            return 0.5

        world.score = score
        world.run()
    assert {world.rows[f"train/u{place}"][0]["status"] for place in range(3)} == {"failure"}
    failure = asyncio.run(world.worker.failure())
    assert failure is not None
    assert "the reward of sample 1 failed (ValueError: no such judge), 3 times" in failure


def driver(world: World, tokenizer: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A trainer that validates, whose agent-loop manager is `world`, and whose TransferQueue has what `world` has."""
    import transfer_queue as tq
    from transfer_queue import KVBatchMeta
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    from convrec.training.judge_trainer import JudgeTrainer

    def sample(**_: Any) -> tuple[KVBatchMeta, None]:
        keys = [key.removeprefix("val/") for key, (_, fields) in world.rows.items() if fields]
        return KVBatchMeta(keys, [{} for _ in keys], "val"), None

    def get(keys: list[str], partition_id: str, select_fields: list[str]) -> Any:
        fields = [world.rows[f"{partition_id}/{key}"][1] for key in keys]
        data = list_of_dict_to_tensordict([{name: row[name] for name in select_fields} for row in fields])
        return data

    monkeypatch.setattr(tq, "kv_batch_get", get)
    monkeypatch.setattr(tq, "kv_batch_put", lambda **_: None)
    monkeypatch.setattr(tq, "kv_clear", lambda **_: world.rows.clear())
    trainer = JudgeTrainer.__new__(JudgeTrainer)
    columns = {name: np.array([None] * 3, dtype=object) for name in samples()[0] if name != "uid"}
    for place, row in enumerate(samples()):
        for name, values in columns.items():
            values[place] = row[name]
    trainer.config = OmegaConf.merge(
        world.worker.config,
        {"trainer": {"log_val_generations": 2, "validation_data_dir": str(folder), "logger": ["file"]}},
    )
    trainer.tokenizer, trainer.val_dataloader, trainer.validation_samples = tokenizer, [columns], None
    trainer.agent_loop_manager, trainer.replay_buffer = world, SimpleNamespace(sample=sample)
    trainer.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[None])
    trainer.global_steps, trainer.logged = 4, []
    trainer.validation_generations_logger = SimpleNamespace(log=lambda *what: trainer.logged.append(what))
    trainer._init_dump_executor()
    return trainer


def steady(metrics: dict[str, float]) -> dict[str, float]:
    """Without verl's bootstraps, which depend on which of a prompt's answers came first."""
    return {name: value for name, value in metrics.items() if "/best@" not in name and "/worst@" not in name}


@pytest.mark.parametrize("answers", [1, 2])
def test_a_validation_without_transfer_queue_is_verls(
    tokenizer: Any, catalog: str, tmp_path: Path, answers: int
) -> None:
    """Metrics, logged samples and written generations; with several answers a prompt also verl's bootstraps."""
    found = []
    for directly in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            world = World(tokenizer, catalog, patch, in_groups=directly)
            world.worker.rollout_config.val_kwargs = {"n": answers, "temperature": 1.0, "top_p": 1.0, "top_k": -1}
            trainer = driver(world, tokenizer, tmp_path / str(directly), patch)
            validate = trainer._validate_directly if directly else super(ValidatesDirectly, trainer)._validate
            metrics = [validate(), validate()]  # the second with what the first has kept
            trainer._shutdown_dump_executor()
            written = [json.loads(line) for line in (tmp_path / str(directly) / "4.jsonl").read_text().splitlines()]
        assert steady(metrics[0]) == pytest.approx(steady(metrics[1]))
        assert all(row.pop("uid") for row in written)
        found.append((metrics[0], trainer.logged, sorted(map(str, written))))
        assert world.rows == {}
        assert ("generate_group" in world.calls) == directly
    expected, direct = found
    assert steady(direct[0]) == pytest.approx(steady(expected[0]), abs=1e-6)  # verl sums the scores in float32
    assert direct[0].keys() == expected[0].keys()
    assert direct[0]["val/recall"] > 0
    for (_, theirs, _), (_, ours, _) in zip(expected[1], direct[1], strict=True):
        compared = 2 if answers == 1 else 1  # which of a prompt's answers is logged is chance
        assert [row[:compared] for row in ours] == [row[:compared] for row in theirs]
    assert len(direct[2]) == 3 * answers


def test_a_validation_goes_verls_way_where_a_prompt_does(tokenizer: Any, catalog: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        world = World(tokenizer, catalog, patch, in_groups=True)
        some = [{**sample, "agent_name": "tool_agent"} for sample in samples()]
        assert world.validate(some, 4) is None
        assert world.calls == []
