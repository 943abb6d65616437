"""verl's SFT trainer, fixed where epochs begin and end and where a run is resumed: nothing but wiring."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.trainer import sft_trainer

from convrec.checkpoints import saving
from convrec.checkpoints.files import world_size
from convrec.checkpoints.reshard import load_any_world_size
from convrec.training.worker import report_new_rate, set_learning_rate


class ConvRecSFTTrainer(sft_trainer.SFTTrainer):
    val_dataloader: Any

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if self.resume_global_step % self.steps_per_epoch == 0:
            # a loader's state saved after an epoch's last batch comes back exhausted, and `fit` would count that as the
            # next epoch; without a state the loader begins the epoch that `fit` gives the sampler
            self.train_dataloader.next_iter_state = None
        rates = set_learning_rate(self.engine)
        if self.rank == 0:
            report_new_rate(self.resume_global_step, *rates)

    def _build_dataloader(self) -> None:
        super()._build_dataloader()
        self.train_sampler.seed = self.config.data.seed  # verl leaves it at 0, whatever SEED is
        if self.val_dataset is not None and not len(self.val_dataloader):
            # fewer rows than a batch: verl would take none of them, and the validation loss would be no number
            sampler = DistributedSampler(
                self.val_dataset,
                shuffle=False,
                num_replicas=self.engine.get_data_parallel_size(),
                rank=self.engine.get_data_parallel_rank(),
            )
            self.val_dataloader = StatefulDataLoader(
                self.val_dataset, batch_size=len(sampler), sampler=sampler, collate_fn=self.collate_fn
            )

    def _init_engine(self) -> None:
        """TOTAL_STEPS wins over epochs: verl would end at whichever comes first, without the last checkpoint."""
        super()._init_engine()
        epochs = -(-self.total_training_steps // self.steps_per_epoch)
        self.config.trainer.total_epochs = max(self.config.trainer.total_epochs, epochs)
        load_any_world_size(self.engine.checkpoint_manager)

    def _build_ckpt_handler(self) -> None:
        super()._build_ckpt_handler()
        handler = self.ckpt_handler
        keep, handler.max_ckpt_to_keep = handler.max_ckpt_to_keep, None  # verl removes the last one before the next
        write, load_place = handler.save_checkpoint, handler._load_dataloader_state

        def save(step: int) -> None:
            if self.rank == 0:
                saving.save(Path(handler.default_local_dir), step, partial(write, step), keep)
            else:
                write(step)

        def load_place_in_data(folder: str) -> None:
            if world_size(Path(folder)) in (None, torch.distributed.get_world_size()):
                return load_place(folder)
            # the same place in every process, counted in batches; in rows it depends on how many share a batch
            state = torch.load(Path(folder, "data_0.pt"), weights_only=True)
            state["_sampler_iter_state"]["samples_yielded"] = (
                state["_sampler_iter_yielded"] * self.train_batch_size_per_dp
            )
            self.train_dataloader.load_state_dict(state)

        handler.save_checkpoint, handler._load_dataloader_state = save, load_place_in_data
