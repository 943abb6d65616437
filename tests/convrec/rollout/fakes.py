"""A rollout worker whose calls through Ray are answered in this process; tests/e2e goes through Ray.

vLLM is a function that writes texts, TransferQueue a dict, and the reward worker verl's reward manager with our reward
function.
"""

import asyncio
import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoTokenizer
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from convrec.rollout.agent_loop import ConvRecAgentLoopWorker
from convrec.rollout.reward_manager import GroupRewardManager
from recipes.tiny_model import make_tiny_model
from reward.catalog_match import compute_score
from tests.queue_calls import replace_queue

CONVERSATIONS = ["I liked Alien (1979) and Heat (1995)", "Something funny, please", "A film with robots in it?"]
LISTS = ["Alien (1979)\nHeat (1995)", "Heat (1995)\nHeat (1995)\nJaws (1975)", ""]
FILMS = [("Alien", 1979), ("Heat", 1995), ("Jaws", 1975)]


class FakeActor:
    """A Ray actor with these coroutine functions as its remote methods."""

    def __init__(self, **methods: Any) -> None:
        for name, method in methods.items():
            setattr(self, name, SimpleNamespace(remote=method))


@cache
def tiny_tokenizer() -> Any:
    """Return the tokenizer of a tiny model, which knows the conversations' words."""
    with TemporaryDirectory() as name:
        folder = Path(name) / "tiny"
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


def write_catalog(folder: Path, films: list[tuple[str, int]] = FILMS) -> str:
    """Write the films as a catalog; return its path."""
    path = folder / "catalog.parquet"
    columns = {"title": [title for title, _ in films], "year": [year for _, year in films]}
    pq.write_table(pa.table(columns), path)
    return str(path)


def make_samples(is_validation: bool = True) -> list[dict[str, Any]]:
    """Return rows of the data set; the reward function returns rank returns of training rows only."""
    return [
        {
            "uid": f"u{index}",
            "raw_prompt": [{"role": "user", "content": text}],
            "data_source": "test",
            "reward_model": {"ground_truth": {"groundtruth": [["Heat", 1995]], "seen": []}},
            "extra_info": {"index": index, "validate": True} if is_validation else {"index": index},
            "index": index,
        }
        for index, text in enumerate(CONVERSATIONS)
    ]


def write_list(place: int, request: dict[str, Any]) -> str:
    """Return one of LISTS, by the length of the prompt and the seed."""
    return LISTS[(len(request["prompt_ids"]) + request["sampling_params"]["seed"]) % 3]


def to_plain(value: Any) -> Any:
    """Return a field of TransferQueue as Python has it."""
    return value.tolist() if isinstance(value, torch.Tensor) else getattr(value, "data", value)


class RolloutWorld:
    """A rollout worker and what it calls.

    Attributes:
        worker: ours, made without verl's `__init__`, which needs Ray.
        write_text: (place in its call, request) -> the text that vLLM answers.
        score: the reward function.
        rows: what is in TransferQueue: "partition/key" -> (tag, fields).
        calls: names of the calls, in order.
        seeds: of vLLM's requests, in order.
        affinities: ids by which a server was asked for; equal ones get the same server.
        scored: arguments of the reward function, for each time it was called.
    """

    def __init__(
        self,
        catalog: str,
        monkeypatch: pytest.MonkeyPatch,
        in_groups: bool = True,
        response_length: int = 12,
        **settings: Any,
    ) -> None:
        """Make the worker; `settings` are further ones of the section `convrec`."""
        self.write_text: Callable[[int, dict[str, Any]], str] = write_list
        self.score: Callable[..., Any] = lambda **row: compute_score(catalog_path=catalog, num_items=3, **row)
        self.rows: dict[str, tuple[dict, dict]] = {}
        self.calls: list[str] = []
        self.seeds: list[int] = []
        self.affinities: list[str] = []
        self.scored: list[dict[str, Any]] = []
        self.tokenizer = tiny_tokenizer()
        self.manager = GroupRewardManager(OmegaConf.create({}), self.tokenizer, self._call_reward)
        replace_queue(monkeypatch, async_kv_batch_put=self._put, async_kv_put=self._put_one)
        self.worker = self._make_worker(self._make_config(response_length, settings), in_groups)

    # ---- the worker ----

    def _make_config(self, response_length: int, settings: dict[str, Any]) -> Any:
        rollout = {
            "name": "vllm",
            "n": 3,
            "val_kwargs": {"n": 1},
            "prompt_length": 60,
            "response_length": response_length,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": -1,
            "calculate_log_probs": True,
            "full_determinism": False,
            "multi_turn": {},
            "agent": {"default_agent_loop": "single_turn_agent"},
        }
        reward = {
            "reward_manager": {"name": "GroupRewardManager"},
            "reward_model": {"enable": False},
            "custom_reward_function": {"path": "pkg://reward.catalog_match"},
        }
        return OmegaConf.create(
            {
                "actor_rollout_ref": {"rollout": rollout, "actor": {"ppo_epochs": 1, "ppo_mini_batch_size": 3}},
                "algorithm": {
                    "adv_estimator": "rank_grpo",
                    "rollout_correction": {"rollout_is": None, "bypass_mode": False},
                },
                "trainer": {"v1": {"trainer_mode": "rank_grpo"}},
                "data": {
                    "seed": 5,
                    "apply_chat_template_kwargs": {},
                    "max_prompt_length": 300,
                    "train_batch_size": 3,
                },
                "reward": reward,
                "convrec": {"deterministic": True, "reward_timeout": 5.0, "rollout_check_share": 1.0, **settings},
            }
        )

    def _make_worker(self, config: Any, in_groups: bool) -> Any:
        balancer = FakeActor(
            acquire_server=self._acquire,
            release_server=lambda server_id: self.calls.append("release"),
            require_acquire_fields=_no_fields,
            require_release_fields=_no_fields,
        )
        worker: Any = ConvRecAgentLoopWorker.__new__(ConvRecAgentLoopWorker)
        worker.config = config
        worker.rollout_config = config.actor_rollout_ref.rollout
        worker.llm_client = LLMServerClient(config, balancer)
        worker.tokenizer = self.tokenizer
        worker.processor = None
        worker.hf_model_type = "qwen2"
        worker.mm_processor_kwargs = {}
        worker.dataset_cls = RLHFDataset
        worker.tools = []
        worker.distillation_enabled = False
        worker.teacher_client = None
        worker.reward_loop_worker_handles = [FakeActor(compute_score=self._score)]
        worker.first_failure = None
        worker.waiting = []
        worker.siblings = {}
        if not in_groups:
            worker._can_be_grouped = lambda sample: False
        return worker

    # ---- what it calls ----

    async def _acquire(self, request_id: str) -> tuple[str, FakeActor]:
        self.affinities.append(request_id)
        return "0", FakeActor(generate=self._generate, generate_group=self._generate_group)

    async def _generate(
        self, prompt_ids: list[int], sampling_params: dict, request_id: str, place: int = 0, **_: Any
    ) -> TokenOutput:
        self.calls.append("generate")
        self.seeds.append(sampling_params["seed"])
        text = self.write_text(place, {"prompt_ids": prompt_ids, "sampling_params": sampling_params})
        is_asked = sampling_params["logprobs"]
        sampling_params["logprobs"] = 0 if is_asked else None  # verl's server changes the dict that it gets
        ids = [*self.tokenizer.encode(text), self.tokenizer.eos_token_id]
        log_probs = [-position / 10 for position in range(len(ids))] if is_asked else None
        return TokenOutput(token_ids=ids, log_probs=log_probs, extra_fields={"global_steps": 4})

    async def _generate_group(self, requests: list[dict]) -> list[TokenOutput]:
        self.calls.append("generate_group")
        return [await self._generate(**request, place=place) for place, request in enumerate(requests)]

    def _call_reward(self, **row: Any) -> Any:
        self.scored.append(row)
        return self.score(**row)

    async def _score(self, data: Any) -> Any:
        self.calls.append("score a group" if isinstance(data, list) else "score")
        return await self.manager.run_single(copy.deepcopy(data))  # with Ray, it is another process

    async def _put(self, keys: list[str], partition_id: str, fields: Any = None, tags: Any = None) -> None:
        for place, key in enumerate(keys):
            tag, row = self.rows.setdefault(f"{partition_id}/{key}", ({}, {}))
            tag.update(tags[place])
            if fields is not None:
                row.update({name: fields[name][place] for name in fields.keys()})  # noqa: SIM118  a TensorDict

    async def _put_one(self, key: str, partition_id: str, tag: dict) -> None:
        await self._put([key], partition_id, tags=[tag])

    # ---- what calls it ----

    def run(self, validate: bool = False, step: int = 4, samples: list[dict[str, Any]] | None = None) -> "RolloutWorld":
        """Roll the samples out into TransferQueue, as verl's `generate_sequences` starts them."""

        async def run_prompts() -> None:
            self.manager.loop = asyncio.get_running_loop()
            tasks = []
            for sample in samples or make_samples():
                prompt = {**sample, "agent_name": "single_turn_agent", "global_steps": step}
                trajectory = {"step": step, "sample_index": sample["index"], "rollout_n": 0, "validate": validate}
                params = {"temperature": 1.0, "logprobs": True}
                tasks.append(asyncio.create_task(self.worker._run_prompt(prompt, params, trajectory, False)))
            await asyncio.gather(*tasks)

        asyncio.run(run_prompts())
        return self

    def generate_sequences(self, batch: Any) -> None:
        """Roll a batch out, as verl's agent-loop manager does, and wait for it."""

        async def run_batch() -> None:
            self.manager.loop = asyncio.get_running_loop()
            self.worker.background_tasks = set()
            await self.worker.generate_sequences(batch)
            await asyncio.gather(*self.worker.background_tasks)

        asyncio.run(run_batch())

    def validate(self, samples: list[dict], global_steps: int) -> Any:
        """Return what our agent-loop manager returns of its workers."""

        async def run_validation() -> Any:
            self.manager.loop = asyncio.get_running_loop()
            self.worker.__dict__.pop("sampler", None)  # verl's agent in it keeps the event loop of its start
            return await self.worker.validate(samples, global_steps)

        return asyncio.run(run_validation())


async def _no_fields() -> list[str]:
    return []
