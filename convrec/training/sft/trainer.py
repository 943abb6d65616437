"""What our SFT adds to verl's two trainers, and the one for a single device: nothing but wiring."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from torchdata.stateful_dataloader import StatefulDataLoader
from verl.trainer import sft_trainer

from convrec.checkpoints import saving
from convrec.cpu.platform import is_cpu_host
from convrec.runs import card
from convrec.runs.folder import read_metrics
from convrec.training.log_prob_head import leave_out_prompts
from convrec.training.worker import prepare_checkpoints, set_learning_rate


def prepare_engine(engine: Any) -> None:
    """verl's, after it was built."""
    prepare_checkpoints(engine)
    if is_cpu_host():
        leave_out_prompts(engine)


class SFTMixin:
    """Over verl's SFT trainers: the order of the data, whole checkpoints, the best of them, stops, the learning rate.

    In both of them one process reads all the data, so that a run may change from one to the other.
    """

    has_nodes = False  # shards may be written elsewhere, and be seen later

    def __init__(self, config: Any) -> None:
        self.run_folder = Path(config.trainer.default_local_dir)
        super().__init__(config)
        self.saved_step = self.resume_global_step
        # TOTAL_STEPS wins over epochs: verl would end at whichever comes first, without the last checkpoint
        epochs = -(-self.total_training_steps // self.steps_per_epoch)
        config.trainer.total_epochs = max(config.trainer.total_epochs, epochs)
        if self.resume_global_step % self.steps_per_epoch == 0:
            # a loader's state saved after an epoch's last batch comes back exhausted, and `fit` would count that as the
            # next epoch; without a state the loader begins the epoch that `fit` gives the sampler
            self.train_dataloader.next_iter_state = None
        self._set_learning_rate()

    # ---- data ----

    def _build_dataloader(self) -> None:
        super()._build_dataloader()
        self.train_sampler.seed = self.config.data.seed  # verl leaves it at 0, whatever SEED is
        # verl's Ray trainer has eight loading processes, whatever data.num_workers is
        self.train_dataloader: Any = self._loader(self.train_dataset, self.train_sampler, self.global_batch_size)
        if self.val_dataset is not None:
            # verl would leave out what does not fill a batch, and have no number where that is all: as many batches,
            # each smaller, leave out fewer rows than there are batches for each device
            devices = self.config.trainer.nnodes * self.config.trainer.n_gpus_per_node
            batches = -(-len(self.val_dataset) // self.global_batch_size)
            rows = len(self.val_dataset) // batches // devices * devices
            self.val_dataloader = self._loader(self.val_dataset, self.val_sampler, rows)

    def _loader(self, dataset: Any, sampler: Any, batch_size: int) -> StatefulDataLoader:
        return StatefulDataLoader(
            dataset,
            batch_size=batch_size,
            sampler=sampler,
            collate_fn=self.collate_fn,
            num_workers=self.config.data.num_workers,
            drop_last=True,
        )

    # ---- checkpoints ----

    def _build_ckpt_handler(self) -> None:
        super()._build_ckpt_handler()
        handler = self.ckpt_handler
        keep, handler.max_ckpt_to_keep = handler.max_ckpt_to_keep, None  # verl removes the last one before the next
        write = handler.save_checkpoint

        def save(step: int) -> None:
            saving.save(self.run_folder, step, partial(write_with_card, step), keep)
            self.saved_step = step
            for row in read_metrics(self.run_folder):  # verl keeps a validation's loss to itself, and logs it before
                if row["step"] == step and row.get("val/loss") is not None:
                    saving.note_validation(self.run_folder, step, {"val/loss": row["val/loss"]}, keep)

        def write_with_card(step: int) -> None:
            write(step)
            folder = saving.step_folder(self.run_folder, step)
            if self.has_nodes and "model" in self.config.checkpoint.save_contents:
                saving.wait_for_shards(folder)
            if (exported := folder / "huggingface").is_dir():
                card.write_card(exported, self.run_folder, step)

        handler.save_checkpoint = save

    # ---- stops ----

    def fit(self) -> None:
        self.train_dataloader = BetweenSteps(self.train_dataloader, self.resume_global_step, self._stop_if_asked)
        super().fit()

    def _stop_if_asked(self, step: int) -> None:
        # as in RL, a start trains a step at least
        if step == self.resume_global_step or not saving.take_stops(self.run_folder):
            return
        if self.saved_step != step:
            self.ckpt_handler.save_checkpoint(step)
        raise saving.StopRequested(step)


class BetweenSteps:
    """A loader that calls `between` with the number of the last step before it takes the next one's batch: until then
    its state is that of the last step."""

    def __init__(self, loader: Any, step: int, between: Callable[[int], None]) -> None:
        self.loader = loader
        self.step = step
        self.between = between

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        self.between(self.step)
        for batch in self.loader:
            self.step += 1
            yield batch
            self.between(self.step)


class ConvRecSFTTrainer(SFTMixin, sft_trainer.SFTTrainer):
    """On one device, in this process."""

    def _set_learning_rate(self) -> None:
        set_learning_rate(self.engine)

    def _init_engine(self) -> None:
        super()._init_engine()
        prepare_engine(self.engine)
