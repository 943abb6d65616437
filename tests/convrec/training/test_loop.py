"""The order of the training loop, with an engine that records its calls."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from convrec.checkpoints import saving
from convrec.runs import supervisor
from convrec.runs.phases import Phases
from convrec.training.finite import Diverged
from convrec.training.loop import Step, TrainingLoop, iter_steps
from convrec.training.rank_trainer import RankGRPOTrainer


class Engine:
    """A fake of a verl trainer: records calls in `done`, and metrics in `logged`."""

    parameter_sync_step = 1
    use_reference_policy = True
    max_checkpoints = None

    def __init__(self, total: int, done: int = 0, **trainer: Any) -> None:
        settings = {"val_before_train": False, "save_freq": 2, "test_freq": 2} | trainer
        self.config = OmegaConf.create({"trainer": settings})
        self.total_training_steps = total
        self.global_steps = done
        self.timing_raw: dict[str, float] = {}
        self.done: list[str] = []
        self.logged: list[tuple[int, dict[str, Any]]] = []
        self.logger = SimpleNamespace(log=lambda data, step: self.logged.append((step, data)))

    def __getattr__(self, name: str) -> Any:
        """verl's hooks, and what only has to happen. AttributeError for what no trainer of ours has."""
        if name not in dir(RankGRPOTrainer):
            raise AttributeError(name)
        return lambda *_: None

    def begin_step(self, step: int) -> None:
        self.global_steps = step
        self.timing_raw = {}
        self.done.append(f"step {step}")

    def step(self, metrics: dict[str, Any], seconds: dict[str, float]) -> str:
        return self.loop.update_once(metrics, 8)  # type: ignore[no-any-return]

    def sample_rollouts(self, metrics: dict[str, Any], num_prompts: int) -> str:
        self.done.append("sample")
        metrics["training/age"] = num_prompts
        return "batch"

    def _balance_batch(self, batch: str, metrics: dict[str, Any]) -> str:
        self.done.append("balance")
        return batch

    def _compute_old_log_prob(self, batch: str, metrics: dict[str, Any]) -> str:
        self.done.append("old")
        return batch

    def check_rollout(self, batch: str) -> None:
        self.done.append("check")

    def _compute_ref_log_prob(self, batch: str, metrics: dict[str, Any]) -> str:
        self.done.append("reference")
        return batch

    def _update_actor(self, batch: str, metrics: dict[str, Any]) -> str:
        self.done.append("update")
        metrics |= {"actor/kl": 0.25, "perf/mfu/actor": 0.1, "counts": {0.5: 3}}
        return batch

    def compute_step_metrics(self, step: int, batch: str, metrics: dict[str, Any]) -> None:
        metrics |= {"training/global_step": step, "timing_s/step": 1.0}

    def compute_time_metrics(self, batch: str) -> dict[str, Any]:
        return {f"timing_s/{name}": seconds for name, seconds in self.timing_raw.items()}

    def free_training_devices(self) -> None:
        self.done.append("free")

    def _save_checkpoint(self) -> None:
        self.done.append("save")

    def on_step_end(self) -> None:
        self.done.append("synchronise")

    def _consume_sync_metrics(self) -> dict[str, float]:
        return {"sync/ratio": 0.5}

    def _validate(self) -> dict[str, float]:
        self.done.append("validate")
        return {"val/ndcg": 0.3}


class Method:
    """Assigns no credit; records its calls."""

    def __init__(self, skips_old_log_probs: bool = False) -> None:
        self.is_on_policy = skips_old_log_probs

    def skips_old_log_probs(self, updates_per_step: int) -> bool:
        return self.is_on_policy

    def assign_credit(self, engine: Engine, batch: Any, metrics: dict[str, Any]) -> Any:
        engine.done.append("credit")
        return batch

    def finish_metrics(self, step: int, metrics: dict[str, Any]) -> None:
        metrics["finished"] = step


def make_loop(engine: Engine, run_folder: Path, method: Any = None, phases: Phases | None = None) -> TrainingLoop:
    engine.loop = TrainingLoop(engine, method or Method(), run_folder, phases)
    return engine.loop  # type: ignore[no-any-return]


def test_the_order_of_a_step(tmp_path: Path) -> None:
    engine = Engine(total=2)
    make_loop(engine, tmp_path).fit()
    update = ["reference", "credit", "update"]
    assert engine.done == [
        *["step 1", "sample", "balance", "old", "check", *update, "synchronise"],
        *["step 2", "sample", "balance", "old", *update, "save", "synchronise", "validate"],
    ]


def test_old_log_probs_are_skipped_on_policy_after_first_batch(tmp_path: Path) -> None:
    engine = Engine(total=3, save_freq=-1, test_freq=-1)
    make_loop(engine, tmp_path, Method(skips_old_log_probs=True)).fit()
    assert engine.done.count("old") == 1
    assert engine.done.index("old") < engine.done.index("step 2")
    assert engine.done.count("check") == 1


def test_early_metrics_are_logged_once_before_the_checkpoint(tmp_path: Path) -> None:
    engine = Engine(total=2)
    saved_after: list[int] = []
    engine._save_checkpoint = lambda: saved_after.append(len(engine.logged))  # type: ignore[method-assign]
    make_loop(engine, tmp_path).fit()
    first, first_late, second, second_late = engine.logged
    known = {"training/age": 8, "actor/kl": 0.25, "finished": 1, "training/global_step": 1}
    assert first == (1, known)
    assert first_late[1].keys() >= {"timing_s/step", "timing_s/gen", "perf/mfu/actor", "sync/ratio"}
    assert saved_after == [3]
    assert second == (2, known | {"finished": 2, "training/global_step": 2})
    assert second_late[1]["val/ndcg"] == 0.3
    for (_, early), (_, late) in ((first, first_late), (second, second_late)):
        assert not early.keys() & late.keys()


def test_times_are_those_of_the_step_that_ends(tmp_path: Path) -> None:
    engine = Engine(total=1)
    make_loop(engine, tmp_path).fit()
    late = engine.logged[-1][1]
    parts = ("gen", "old_log_prob", "ref", "adv", "update_actor", "save_checkpoint")
    assert {f"timing_s/{name}" for name in (*parts, "testing")} < late.keys()
    assert sum(late[f"timing_s/{name}"] for name in parts) <= late["timing_s/step"] < 1.0


@pytest.mark.parametrize("stopped_in", [1, 2])
def test_a_stop_request_saves_once_at_the_end_of_the_step(tmp_path: Path, stopped_in: int) -> None:
    """Step 2 would have been saved anyway."""
    engine = Engine(total=5)
    loop = make_loop(engine, tmp_path)

    def ask_to_stop(batch: Any, metrics: dict[str, Any]) -> Any:
        if engine.global_steps == stopped_in:
            (tmp_path / saving.STOP).touch()
        return batch

    engine._update_actor = ask_to_stop  # type: ignore[method-assign]
    with pytest.raises(saving.StopRequested, match=f"after step {stopped_in}"):
        loop.fit()
    assert engine.done.count("save") == 1
    assert engine.done.index("save") < len(engine.done) - 1 - engine.done[::-1].index("synchronise")
    assert not (tmp_path / saving.STOP).exists()
    assert engine.logged[-1][0] == stopped_in


@pytest.mark.parametrize(
    ("asked_in", "save_freq", "end"),
    [
        ("_validate", 100, ["synchronise", "validate", "free", "save"]),
        ("_validate", 1, ["save", "synchronise", "validate"]),
        ("_save_checkpoint", 1, ["save", "synchronise", "validate"]),
        ("on_step_end", 100, ["synchronise", "validate", "free", "save"]),
    ],
)
def test_a_late_stop_saves_its_step_and_trains_no_other(
    tmp_path: Path, asked_in: str, save_freq: int, end: list[str]
) -> None:
    """Saving after the rollout has received its weights needs the memory of the training devices again."""
    engine = Engine(total=5, save_freq=save_freq, test_freq=1)
    call = getattr(engine, asked_in)

    def ask_to_stop() -> Any:
        (tmp_path / saving.STOP).touch()
        return call()

    setattr(engine, asked_in, ask_to_stop)
    with pytest.raises(saving.StopRequested, match="after step 1"):
        make_loop(engine, tmp_path).fit()
    assert engine.done[-len(end) :] == end
    assert engine.done.count("save") == 1
    assert not (tmp_path / saving.STOP).exists()
    assert engine.logged[-1][0] == 1
    assert {"timing_s/save_checkpoint", "timing_s/testing", "val/ndcg"} <= engine.logged[-1][1].keys()


def test_a_step_saved_after_its_validation_may_be_best(tmp_path: Path) -> None:
    engine = Engine(total=5, save_freq=100, test_freq=2)
    validate = engine._validate

    def ask_to_stop() -> dict[str, float]:
        (tmp_path / saving.STOP).touch()
        return validate()

    def write() -> None:
        folder = saving.step_folder(tmp_path, engine.global_steps)
        folder.mkdir()
        (folder / "weights").write_text("1.5")
        saving.write_tracker(tmp_path, engine.global_steps)

    engine._validate = ask_to_stop  # type: ignore[method-assign]
    engine._save_checkpoint = lambda: saving.save(  # type: ignore[method-assign]
        tmp_path, engine.global_steps, write
    )
    with pytest.raises(saving.StopRequested, match="after step 2"):
        make_loop(engine, tmp_path).fit()
    assert saving.complete_steps(tmp_path) == [2]
    assert saving.best_step(tmp_path) == 2


def test_a_signal_requests_a_checkpoint_from_the_first_step_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor knows when steps begin; signals before the first step end the run."""
    notes: list[tuple[str, dict[str, str]]] = []
    engine = Engine(total=1, val_before_train=True)
    monkeypatch.setattr(supervisor, "note", lambda **what: notes.append((engine.done[-1], what)))
    make_loop(engine, tmp_path).fit()
    ((after, what),) = notes
    assert after == "validate"
    assert engine.done[:2] == ["validate", "step 1"]
    assert what["stop"] == str(tmp_path / saving.STOP)


def test_stop_request_in_the_last_step_finishes_the_run(tmp_path: Path) -> None:
    engine = Engine(total=1)
    (tmp_path / saving.STOP).touch()
    make_loop(engine, tmp_path).fit()
    assert engine.done.count("save") == 1


def test_a_resumed_run_trains_the_remaining_steps(tmp_path: Path) -> None:
    engine = Engine(total=4, done=3)
    make_loop(engine, tmp_path).fit()
    assert [name for name in engine.done if name.startswith("step")] == ["step 4"]


def test_validation_before_training_logs_the_loaded_step(tmp_path: Path) -> None:
    engine = Engine(total=3, done=2, val_before_train=True, val_only=True)
    make_loop(engine, tmp_path).fit()
    assert engine.done == ["validate"]
    assert engine.logged == [(2, {"val/ndcg": 0.3})]


def test_the_current_phase_is_watched_under_verls_name(tmp_path: Path) -> None:
    engine = Engine(total=1)
    phases = Phases(smallest_limit=300)
    seen: dict[str, str] = {}

    def watch(method: str) -> None:
        call = getattr(engine, method)

        def noted(*arguments: Any) -> Any:
            seen[method] = phases.current[0]
            return call(*arguments)

        setattr(engine, method, noted)

    names = {
        "sample_rollouts": "gen",
        "_balance_batch": "balance_batch",
        "_compute_old_log_prob": "old_log_prob",
        "_compute_ref_log_prob": "ref",
        "_update_actor": "update_actor",
        "_save_checkpoint": "save_checkpoint",
        "on_step_end": "update_weights",
        "_validate": "testing",
    }
    for method in names:
        watch(method)
    make_loop(engine, tmp_path, phases=phases).fit()
    assert seen == names
    assert phases.durations.keys() == {*names.values(), "adv"}


def test_steps_are_saved_and_validated_when_due_and_at_the_end() -> None:
    steps = list(iter_steps(done=2, total=5, save_every=2, validate_every=3))
    assert steps == [
        Step(3, is_last=False, saves=False, validates=True),
        Step(4, is_last=False, saves=True, validates=False),
        Step(5, is_last=True, saves=True, validates=True),
    ]


@given(st.integers(0, 9), st.integers(0, 9), st.integers(-1, 9), st.integers(-1, 9), st.booleans())
def test_the_steps_of_any_run(done: int, total: int, save: int, validate: int, always_finishes: bool) -> None:
    steps = list(iter_steps(done, total, save, validate, always_finishes))
    assert [step.number for step in steps] == list(range(done + 1, total + 1))
    assert [step.is_last for step in steps] == [step.number == total for step in steps]
    for step in steps:
        for is_due, every in ((step.saves, save), (step.validates, validate)):
            by_frequency = every > 0 and (step.number % every == 0 or step.is_last)
            assert is_due == (by_frequency or (step.is_last and always_finishes))


@pytest.mark.parametrize("name", ["actor/policy_loss", "actor/grad_norm", "actor/kl_loss"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_ends_the_run_unsaved(tmp_path: Path, name: str, value: float) -> None:
    engine = Engine(total=2, save_freq=1)
    engine._update_actor = lambda batch, metrics: metrics.update({name: value}) or batch  # type: ignore[method-assign]
    with pytest.raises(Diverged, match=f"step 1: {name} is {value}.*There is no checkpoint yet"):
        make_loop(engine, tmp_path).fit()
    assert engine.logged[0][1][name] == pytest.approx(value, nan_ok=True)
    assert "save" not in engine.done
