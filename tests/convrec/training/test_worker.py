"""On verl's FSDP engine: the learning rate by trainer steps and after a resume; weights in the rollout's dtype; whose
head gives the log-probs."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from verl.workers.engine_workers import ActorRolloutRefWorker

from convrec.training import registration, worker
from convrec.training.worker import ConvRecWorker, convert_sent_weights, prepare_checkpoints
from tests.convrec.training.conftest import ALONE, MEETING, build_training_worker

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


@pytest.mark.parametrize(
    ("fused", "trie", "called"), [(True, None, "fuse"), (True, "trie", "constrain"), (False, None, "")]
)
def test_the_head_is_ours_in_actor_and_reference(
    monkeypatch: pytest.MonkeyPatch, fused: bool, trie: str | None, called: str
) -> None:
    """verl's kernels would read a head that is not the embedding where FSDP2 has not gathered it."""
    found = []
    monkeypatch.setattr(ActorRolloutRefWorker, "init_model", lambda self: None)
    monkeypatch.setattr(registration, "check_worker", lambda: None)
    monkeypatch.setattr(worker, "prepare_process", lambda: None)
    monkeypatch.setattr(worker, "load_trie", lambda rollout: trie)
    for name in ("fuse", "constrain"):
        monkeypatch.setattr(worker, name, lambda engine, *_, name=name: found.append((name, engine)))
    one: Any = object.__new__(ConvRecWorker)
    one.config = SimpleNamespace(rollout={}, model=SimpleNamespace(use_fused_kernels=fused))
    one._is_actor, one.rollout = False, None
    one.actor, one.ref = SimpleNamespace(engine="actor"), SimpleNamespace(engine="ref")
    one.init_model()
    assert found == ([(called, "actor"), (called, "ref")] if called else [])
