"""SFT that is resumed sees the samples that an uninterrupted run sees, wherever it was stopped."""

import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from omegaconf import OmegaConf

from convrec.checkpoints import manifest, saving
from convrec.runs.folder import latest_step, next_metrics_file, read_metrics, tracked_step
from convrec.training.finite import Diverged
from convrec.training.trackers import tracking

SAMPLES, BATCH, EPOCHS = 13, 4, 3  # 3 steps an epoch, one sample left over in each
Train = Callable[..., list[list[int]]]
STEPS_PER_EPOCH = SAMPLES // BATCH


class Engine:
    """One process without a model."""

    rank = 1
    engine_config = SimpleNamespace(ulysses_sequence_parallel_size=1)
    model_config = SimpleNamespace(use_fused_kernels=False)
    module = torch.nn.Module()

    def __init__(self) -> None:
        self.optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
        self.optimizer_config = SimpleNamespace(lr=1e-3)
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda _: 1.0)
        model = SimpleNamespace(config=SimpleNamespace())
        self.checkpoint_manager = SimpleNamespace(model=model, load_checkpoint=lambda *_: None, trust_remote_code=False)

    def is_mp_src_rank_with_outputs(self) -> bool:
        return True

    def get_data_parallel_rank(self) -> int:
        return 0

    def get_data_parallel_size(self) -> int:
        return 1

    def get_data_parallel_group(self) -> None: ...

    def save_checkpoint(self, local_path: str, **_: Any) -> None: ...

    def load_checkpoint(self, path: str) -> None: ...


class Rows:
    """Notes which row was made by which thread."""

    def __init__(self) -> None:
        self.made: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        self.made.append((row, threading.current_thread().name))
        return {"input_ids": torch.tensor([row, row])}


pytestmark = pytest.mark.usefixtures("process_group")


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Train]:
    """Start or resume the run in tmp_path/run: verl's trainer, sampler, loader and checkpoints; a model of no weights.

    Returns the samples of each step trained. stop_after: the step in which it dies, after its checkpoint was written.
    stop_file_in: the step of this start in which somebody makes RUN/stop; stop_file_in_validation: in its first
    validation instead. val_losses: of the validations.
    """
    from verl.trainer import sft_trainer

    from convrec.training.sft import trainer as ours
    from convrec.training.sft.trainer import ConvRecSFTTrainer

    monkeypatch.setattr(ours, "aggressive_empty_cache", lambda **_: None)  # seconds of garbage collection
    logged: list[dict[str, float]] = []
    trainers: list[ConvRecSFTTrainer] = []

    monkeypatch.setattr(tracking, "FOLLOWERS", [lambda step, data: logged.append(data)])
    engines: list[Any] = []

    class Trainer(ConvRecSFTTrainer):
        def _build_config(self) -> None:
            self.model_config = SimpleNamespace(tokenizer=SimpleNamespace(pad_token_id=0))
            self.optimizer_config = SimpleNamespace()
            self.start_profile_step = self.end_profile_step = -1

        def _build_dataset(self) -> None:
            self.train_dataset = Rows()
            self.val_dataset = [{"input_ids": torch.tensor([i, i])} for i in range(val_rows)] or None

        def _build_engine(self) -> None:
            self.seen: list[list[int]] = []
            self.engine = engines.pop()
            self.training_client = SimpleNamespace(
                reset=lambda: None,
                step_profile=lambda: None,
                train_batch=self._train_batch,
                infer_batch=lambda data: sft_trainer.tu.get_tensordict({}, {"metrics": {"loss": loss_of(data)}}),
            )

        def _train_batch(self, data: Any) -> Any:
            self.seen.append([int(row[0]) for row in data["input_ids"].unbind()])
            if len(self.seen) == stop_in:
                ask_to_stop()
            loss = math.nan if len(self.seen) == nan_in else 1.5
            return sft_trainer.tu.get_tensordict({}, {"metrics": {"loss": loss}})

    def ask_to_stop() -> None:
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / "stop").touch()

    def loss_of(data: Any) -> float:
        if stops_in_validation:
            ask_to_stop()
        return losses.pop(0) if losses else float(len(data["input_ids"].unbind()))

    val_rows = 0
    stop_in: int | None = None
    stops_in_validation = False
    nan_in: int | None = None
    losses: list[float] = []

    def start(
        stop_after: int | None = None,
        seed: int = 3407,
        engine: Any = None,
        validation: int = 0,
        stop_file_in: int | None = None,
        stop_file_in_validation: bool = False,
        val_losses: Sequence[float] = (),
        diverges_in: int | None = None,
        **trainer: Any,
    ) -> list[list[int]]:
        nonlocal val_rows, stop_in, stops_in_validation, nan_in, losses
        val_rows = validation
        stop_in = stop_file_in
        stops_in_validation = stop_file_in_validation
        nan_in = diverges_in
        losses = list(val_losses)
        config = OmegaConf.create(
            {
                "model": {"use_remove_padding": True},
                "data": {
                    "seed": seed,
                    "train_batch_size": BATCH,
                    "pad_mode": "no_padding",
                    "num_workers": 0,
                    "use_dynamic_bsz": True,
                    "max_token_len_per_gpu": 64,
                    "micro_batch_size_per_gpu": None,
                },
                "trainer": {
                    "default_local_dir": str(tmp_path / "run"),
                    "device": "cpu",
                    "project_name": "p",
                    "experiment_name": "e",
                    "logger": ["file"],
                    "nnodes": 1,
                    "n_gpus_per_node": 1,
                    "total_epochs": EPOCHS,
                    "total_training_steps": None,
                    "save_freq": 1,
                    "test_freq": 100,
                    **trainer,
                },
            }
        )
        engines.append(engine or Engine())
        os.environ["VERL_FILE_LOGGER_PATH"] = str(next_metrics_file(tmp_path / "run"))  # as the launcher does
        one = Trainer(config)
        trainers.append(one)
        save = one.ckpt_handler.save_checkpoint

        def save_and_die(step: int) -> None:
            save(step=step)
            if step == stop_after:
                raise KeyboardInterrupt

        one.ckpt_handler.save_checkpoint = save_and_die
        if stop_after is None and stop_file_in is None and not stop_file_in_validation:
            one.fit()
        else:
            with pytest.raises(KeyboardInterrupt if stop_after else saving.StopRequested):
                one.fit()
        return one.seen

    start.logged = logged  # type: ignore[attr-defined]
    start.trainers = trainers  # type: ignore[attr-defined]
    with mock.patch.dict(os.environ):
        yield start
        tracking.finish()


@pytest.mark.parametrize(("rows", "taken"), [(1, [1]), (3, [3]), (4, [4]), (9, [3, 3, 3])])
def test_a_validation_smaller_than_a_batch_is_taken_whole(train: Any, rows: int, taken: list[int]) -> None:
    """The loss of this model is the number of rows of its batch; verl leaves out what does not fill one."""
    train(validation=rows, total_epochs=1, test_freq=-1)
    (loss,) = [data["val/loss"] for data in train.logged if "val/loss" in data]
    assert loss == sum(taken) / len(taken)


@pytest.mark.parametrize("stop_after", [2, STEPS_PER_EPOCH, 4, 2 * STEPS_PER_EPOCH])
def test_a_resumed_run_sees_what_an_uninterrupted_one_sees(train: Train, tmp_path: Path, stop_after: int) -> None:
    whole = train()
    assert len(whole) == EPOCHS * STEPS_PER_EPOCH
    assert whole[:STEPS_PER_EPOCH] != whole[STEPS_PER_EPOCH : 2 * STEPS_PER_EPOCH]  # each epoch has an order of its own
    (tmp_path / "run").rename(tmp_path / "whole")
    assert train(stop_after) + train() == whole


@pytest.mark.parametrize("stop_after", [None, 1, STEPS_PER_EPOCH, 4])
def test_prefetch_thread_makes_rows_in_reading_order(train: Any, stop_after: int | None) -> None:
    if stop_after:
        train(stop_after=stop_after)
    batches = train()
    made = train.trainers[-1].train_dataset.made
    assert {thread for _, thread in made} == {"rows_0"}
    read = [row for batch in batches for row in batch]
    remaining = iter(row for row, _ in made)
    assert all(row in remaining for row in read)  # in this order, with others between them
    assert len(made) <= len(read) + EPOCHS  # each epoch has one that fills no batch


def test_loader_with_worker_processes_does_not_prefetch() -> None:
    """A thread is not in a process that is forked."""
    from convrec.training.sft.trainer import SFTEngine

    engine = SimpleNamespace(config=OmegaConf.create({"data": {"num_workers": 1}}), collate_fn=list)
    rows = Rows()
    assert SFTEngine._loader(engine, rows, sampler=None, batch_size=BATCH).dataset is rows  # type: ignore[arg-type]


@pytest.mark.parametrize("step", [1, STEPS_PER_EPOCH, 4])
def test_a_stop_file_saves_at_the_end_of_the_step(train: Train, tmp_path: Path, step: int) -> None:
    whole = train(save_freq=100)
    (tmp_path / "run").rename(tmp_path / "whole")
    begun = train(save_freq=100, stop_file_in=step)
    assert len(begun) == step
    assert saving.complete_steps(tmp_path / "run") == [step]
    assert not (tmp_path / "run" / "stop").exists()
    assert begun + train(save_freq=100) == whole


@pytest.mark.parametrize(("save_freq", "saved"), [(100, [2]), (1, [1, 2])])
def test_a_stop_in_a_validation_saves_the_validated_step(
    train: Train, tmp_path: Path, save_freq: int, saved: list[int]
) -> None:
    often = {"save_freq": save_freq, "test_freq": 2, "validation": 4}
    whole = train(**often)
    (tmp_path / "run").rename(tmp_path / "whole")
    begun = train(stop_file_in_validation=True, **often)
    assert len(begun) == 2
    assert saving.complete_steps(tmp_path / "run") == saved
    assert saving.best_step(tmp_path / "run") == 2
    assert not (tmp_path / "run" / "stop").exists()
    assert begun + train(**often) == whole


@pytest.mark.parametrize("step", [1, 4])
def test_stop_between_tracker_and_manifest_leaves_no_checkpoint(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    whole = train()
    (tmp_path / "run").rename(tmp_path / "whole")

    def stop(folder: Path) -> None:
        if folder.name == f"global_step_{step}":
            assert tracked_step(tmp_path / "run") == step
            raise KeyboardInterrupt
        write(folder)

    write = manifest.write
    with monkeypatch.context() as patched:
        patched.setattr(manifest, "write", stop)
        begun = train(stop_after=step)
    assert latest_step(tmp_path / "run") == step - 1
    assert "is incomplete: the run was killed while writing it" in saving.choose_resume_step(tmp_path / "run")[0]
    assert begun[: step - 1] + train() == whole


def test_the_step_of_the_lowest_validation_loss_is_kept(train: Train, tmp_path: Path) -> None:
    train(validation=4, test_freq=2, max_ckpt_to_keep=1, val_losses=[2.0, 1.5, 1.7, 1.6, 1.8])
    assert saving.best_step(tmp_path / "run") == 4
    assert saving.complete_steps(tmp_path / "run") == [4, EPOCHS * STEPS_PER_EPOCH]


def test_resume_validates_a_last_step_saved_without_validation(train: Any, tmp_path: Path) -> None:
    steps = EPOCHS * STEPS_PER_EPOCH
    train(stop_after=steps, validation=4, test_freq=-1)
    assert saving.complete_steps(tmp_path / "run")[-1] == steps
    assert not any("val/loss" in data for data in train.logged)
    assert train(validation=4, test_freq=-1) == []
    assert [data["val/loss"] for data in train.logged if "val/loss" in data] == [4.0]
    assert saving.best_step(tmp_path / "run") == steps
    assert train(validation=4, test_freq=-1) == []
    assert sum("val/loss" in data for data in train.logged) == 1


def test_the_seed_is_that_of_the_order(train: Train, tmp_path: Path) -> None:
    orders = []
    for name, seed in (("first", 1), ("again", 1), ("other", 2)):
        orders.append(train(seed=seed))
        (tmp_path / "run").rename(tmp_path / name)
    first, again, other = orders
    assert first == again != other


def test_total_steps_win_over_epochs(train: Train, tmp_path: Path) -> None:
    assert len(train(total_epochs=1, total_training_steps=5)) == 5
    assert (tmp_path / "run" / "latest_checkpointed_iteration.txt").read_text() == "5"


def test_a_changed_learning_rate_is_taken(train: Train, training_worker: Callable[..., Any]) -> None:
    train(stop_after=2, engine=training_worker(lr=1e-3).engine)
    resumed = training_worker(lr=5e-4).engine
    train(engine=resumed)
    assert resumed.optimizer.param_groups[0]["lr"] == 5e-4


def test_tokens_are_counted_over_all_starts(train: Any, tmp_path: Path) -> None:
    """Each row of this data has two tokens."""
    train(stop_after=4)
    train()
    tokens = {row["step"]: row["train/total_tokens(B)"] for row in read_metrics(tmp_path / "run")}
    assert tokens == {step: step * 2 * BATCH / 1e9 for step in range(1, EPOCHS * STEPS_PER_EPOCH + 1)}


def test_a_loss_that_is_no_number_leaves_the_good_checkpoints(train: Any, tmp_path: Path) -> None:
    with pytest.raises(Diverged, match=r"step 3: train/loss is nan.*last good checkpoint is step 2"):
        train(diverges_in=3, max_ckpt_to_keep=1)
    assert saving.complete_steps(tmp_path / "run") == [2]
