"""On verl's FSDP engine: the learning rate by trainer steps and after a resume; weights in the rollout's dtype; whose
head gives the log-probs."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PretrainedConfig
from verl.workers.engine_workers import ActorRolloutRefWorker

from convrec.checkpoints import plain_load
from convrec.features.constrained.catalog_trie import build_catalog_trie, save_catalog_trie
from convrec.features.constrained.choices import Choices
from convrec.features.constrained.rollout import CONSTRAINT
from convrec.features.constrained.vllm_lists import TRIE
from convrec.titles.catalog import Catalog
from convrec.titles.matching import Matcher
from convrec.training import registration
from convrec.training.worker import ConvRecWorker, convert_sent_weights, prepare_checkpoints
from tests.convrec.features.constrained.test_choices import sampled
from tests.convrec.training.conftest import ALONE, MEETING, build_training_worker
from tests.convrec.training.engine_process import batch_of

SCHEDULE = [(0, 1e-3), (3, 1e-4), (5, 1e-5)]
WANTED = [1e-3] * 2 + [1e-4] * 2 + [1e-5] * 4  # of steps 1 to 8

Start = Callable[..., Any]


@pytest.fixture
def start(training_worker: Callable[..., Any]) -> Start:
    """The engine of a start of a run."""

    def build(checkpoint: Path | None = None, schedule: Any = (), updates_per_step: int = 1, **optimizer: Any) -> Any:
        worker = object.__new__(ConvRecWorker)
        worker.actor = training_worker(**optimizer)
        if checkpoint:
            worker.actor.load_checkpoint(str(checkpoint))
        worker.set_learning_rate(schedule, updates_per_step)
        return worker.actor.engine

    return build


def train(engine: Any, updates: int) -> list[float]:
    """The learning rates that these updates were made with, which are those that the engine reports."""
    rates = []
    for _ in range(updates):
        rates.append(engine.optimizer.param_groups[0]["lr"])
        engine.optimizer.step()
        assert engine.lr_scheduler_step() == rates[-1]
    return rates


def test_a_schedules_step_is_the_trainers(start: Start) -> None:
    assert train(start(schedule=SCHEDULE), 8) == WANTED
    twice = train(start(schedule=SCHEDULE, updates_per_step=2), 16)
    assert twice[::2] == twice[1::2] == WANTED


CONSTANT: dict[str, Any] = {"lr": 1e-3}
COSINE = {"lr": 1e-3, "lr_scheduler_type": "cosine", "lr_warmup_steps": 2}
SCHEDULED = {"schedule": SCHEDULE}


@pytest.mark.parametrize(
    ("saved", "resumed"),
    [
        (SCHEDULED, SCHEDULED),
        (COSINE, COSINE),
        (CONSTANT, CONSTANT | {"lr": 5e-4}),
        (COSINE, COSINE | {"lr": 5e-4}),
        (COSINE, COSINE | {"total_training_steps": 20}),
        (SCHEDULED, {"schedule": [(0, 2e-3), (6, 2e-4)]}),
        (SCHEDULED, CONSTANT | {"lr": 5e-4}),
        (CONSTANT, SCHEDULED),
    ],
)
def test_a_resumed_run_trains_with_the_rates_of_its_settings(
    start: Start, tmp_path: Path, saved: dict[str, Any], resumed: dict[str, Any]
) -> None:
    first = start(**saved)
    train(first, 4)
    first.save_checkpoint(str(tmp_path), global_step=4)
    whole = train(start(**resumed), 8)
    assert train(start(checkpoint=tmp_path, **resumed), 4) == whole[4:]


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("is_prepared", [True, False])
def test_model_naming_custom_code_is_saved_as_its_builtin_class(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_prepared: bool
) -> None:
    """As Phi-3's folder does, beside transformers' own class. Without us verl fails while it saves."""
    for name, value in (ALONE | MEETING).items():
        monkeypatch.setenv(name, value)
    shutil.copytree(model_folder, tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    code = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"auto_map": code}))
    worker = build_training_worker(tmp_path / "model")
    worker.engine.checkpoint_manager.checkpoint_save_contents = ["model", "hf_model"]
    if not is_prepared:
        with pytest.raises(TypeError, match="'<' not supported between instances of 'NoneType' and 'str'"):
            worker.save_checkpoint(str(tmp_path / "step"), global_step=1)
        return
    prepare_checkpoints(worker.engine)
    worker.save_checkpoint(str(tmp_path / "step"), global_step=1)
    assert "auto_map" not in json.loads((tmp_path / "step" / "huggingface" / "config.json").read_text())
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "step" / "huggingface").num_parameters() > 0


def test_rollout_gets_weights_in_its_dtype_and_adapters_as_is(start: Start) -> None:
    """Rounded once, as vLLM would when it loads them: the rollout's weights are the same bits as before."""
    engine = start()
    expected = {name: weight.detach().clone() for name, weight in engine.get_per_tensor_param()[0]}
    convert_sent_weights(engine, torch.bfloat16)
    sent = dict(engine.get_per_tensor_param(layered_summon=False, base_sync_done=True)[0])
    assert sent.keys() == expected.keys()
    assert all(weight.dtype == torch.float32 for weight in expected.values())
    assert all(torch.equal(sent[name], weight.to(torch.bfloat16)) for name, weight in expected.items())

    adapter = [("lora_A", torch.ones(2))]
    engine = SimpleNamespace(get_per_tensor_param=lambda base_sync_done: (adapter, {"r": 2}))
    convert_sent_weights(engine, torch.bfloat16)
    assert engine.get_per_tensor_param(base_sync_done=True)[0] is adapter


class EngineOfHead:
    """verl's engine, as far as it concerns the head: the model, and what it is given of a micro-batch."""

    def __init__(self) -> None:
        self.module = torch.nn.Module()
        self.module.model = torch.nn.Module()
        self.module.model.config = PretrainedConfig()
        self.module.lm_head = torch.nn.Linear(4, 8, bias=False)

    def forward_backward_batch(self, data: Any) -> None:
        pytest.fail("nothing is computed")

    def prepare_model_inputs(self, micro_batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"input_ids": micro_batch["input_ids"], "temperature": 1.0}, {}


@pytest.fixture
def one(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A worker whose model verl does not build, which needs Ray and vLLM, on a host with an accelerator."""
    monkeypatch.setattr(ActorRolloutRefWorker, "init_model", lambda self: None)
    monkeypatch.setenv(plain_load.VARIABLE, "1")  # which the worker sets for good
    for name in ("VERL_PLATFORM", registration.DRIVERS_DIGEST):
        monkeypatch.delenv(name, raising=False)
    one: Any = object.__new__(ConvRecWorker)
    one._is_actor, one.rollout = False, None
    one.actor, one.ref = (SimpleNamespace(engine=EngineOfHead()) for _ in range(2))
    return one


@pytest.mark.parametrize(
    ("fused", "constrained", "computed"), [(True, False, tuple), (True, True, Choices), (False, False, type(None))]
)
def test_the_head_is_ours_in_actor_and_reference(
    one: Any, tmp_path: Path, line_tokenizer: Any, fused: bool, constrained: bool, computed: type
) -> None:
    """verl's kernels would read a head that is not the embedding where FSDP2 has not gathered it."""
    catalog = Catalog.from_items([("Heat", 1995), ("Up", 2009)])
    trie = build_catalog_trie(Matcher(catalog), line_tokenizer, "\n")
    save_catalog_trie(tmp_path / "trie.npz", trie)
    settings = {"vllm": {"additional_config": {TRIE: str(tmp_path / "trie.npz")}}} if constrained else {}
    one.config = SimpleNamespace(rollout={"engine_kwargs": settings}, model=SimpleNamespace(use_fused_kernels=fused))
    one.init_model()
    response = sampled(trie, 2, [], random.Random(1))
    mask = [1] * len(response)
    rows = {"input_ids": [[7, *response]], "responses": [response], "response_mask": [mask], CONSTRAINT: [[2]]}
    for part in (one.actor, one.ref):
        inputs, _ = part.engine.prepare_model_inputs(micro_batch=batch_of(rows))
        request = inputs.get("head_request", SimpleNamespace(arguments=(None,)))
        assert type(request.arguments[0]) is computed


def test_a_worker_of_another_version_builds_no_model(one: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ActorRolloutRefWorker, "init_model", lambda self: pytest.fail("a model is built"))
    monkeypatch.setenv(registration.DRIVERS_DIGEST, "0123456789abcdef")
    with pytest.raises(RuntimeError, match="another version of convrec"):
        one.init_model()
