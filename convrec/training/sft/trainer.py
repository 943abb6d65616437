"""verl's SFT trainers as the engine of our loop: their common part, and the trainer for a single device."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.trainer import sft_trainer
from verl.utils import tensordict_utils
from verl.utils.memory_utils import aggressive_empty_cache

from convrec.checkpoints import saving
from convrec.cpu.platform import is_cpu_host
from convrec.runs import card
from convrec.training.log_prob_head import leave_out_prompts
from convrec.training.sft.loop import SFTLoop
from convrec.training.sft.prefetch import PrefetchedRows
from convrec.training.trackers import tracking
from convrec.training.worker import prepare_checkpoints, set_learning_rate

BATCHES_AHEAD = 2  # number of batches that are encoded while the device trains


def prepare_engine(engine: Any) -> None:
    """Set up verl's engine after it was built."""
    prepare_checkpoints(engine)
    # A CPU has memory for all logits of trained tokens; on a GPU they are computed twice to save memory.
    obstacle = leave_out_prompts(engine, chunked=not is_cpu_host())
    if obstacle and engine.rank == 0:
        print(f"logits are computed for prompts too, all at once: {obstacle}", flush=True)


class SFTEngine:
    """A mixin for verl's two SFT trainers: order of the data, atomic and best checkpoints, learning rate.

    In both trainers one process reads all data, so a run may be resumed by the other one.
    """

    has_nodes = False  # whether other nodes may write shards, which become visible later

    def __init__(self, config: Any) -> None:
        self.run_folder = Path(config.trainer.default_local_dir)
        self.row_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rows")
        super().__init__(config)
        # TOTAL_STEPS overrides the epochs; verl would end at the first of both, without the last checkpoint
        epochs = -(-self.total_training_steps // self.steps_per_epoch)
        config.trainer.total_epochs = max(config.trainer.total_epochs, epochs)
        if self.resume_global_step % self.steps_per_epoch == 0:
            # The state of a loader after the last batch of an epoch is restored as exhausted, and would count as the
            # next epoch. Without a state the loader starts the epoch that the loop sets in the sampler.
            self.train_dataloader.next_iter_state = None
        self._set_learning_rate()

    def fit(self) -> None:
        trainer = self.config.trainer
        config = OmegaConf.to_container(self.config, resolve=True)
        self.logger = tracking.open_trackers(
            self.run_folder, trainer.project_name, trainer.experiment_name, trainer.logger, config
        )
        try:
            SFTLoop(self, self.run_folder).fit()
        finally:
            self.row_thread.shutdown(cancel_futures=True)

    # ---- data ----

    def _build_dataloader(self) -> None:
        super()._build_dataloader()
        self.train_sampler.seed = self.config.data.seed  # verl ignores SEED and has 0
        # verl's Ray trainer ignores data.num_workers and has eight loading processes
        self.train_dataloader: Any = self._loader(self.train_dataset, self.train_sampler, self.global_batch_size)
        if self.val_dataset is not None:
            # verl would drop the rows that do not fill a batch, and would have no result if these are all rows. The
            # same number of smaller batches drops less than one row per batch and device.
            devices = self.config.trainer.nnodes * self.config.trainer.n_gpus_per_node
            batches = -(-len(self.val_dataset) // self.global_batch_size)
            rows = len(self.val_dataset) // batches // devices * devices
            self.val_dataloader = self._loader(self.val_dataset, self.val_sampler, rows)

    def begin_epoch(self, epoch: int, batches_done: int) -> None:
        """Set the sampler's epoch, and start to encode the rows that will be read first.

        Args:
            epoch: the epoch, from 0.
            batches_done: batches of this epoch that were trained before the run was resumed; their rows are skipped.
        """
        self.train_sampler.set_epoch(epoch=epoch)
        rows = self.train_dataloader.dataset
        if isinstance(rows, PrefetchedRows):
            rows.expect(islice(self.train_sampler, batches_done * self.global_batch_size, None))

    def _loader(self, dataset: Any, sampler: Any, batch_size: int) -> StatefulDataLoader:
        if not self.config.data.num_workers:  # otherwise processes of the loader encode the rows
            dataset = PrefetchedRows(dataset, self.row_thread, BATCHES_AHEAD * batch_size)
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
        self.max_checkpoints = handler.max_ckpt_to_keep
        handler.max_ckpt_to_keep = None  # verl would remove the last checkpoint before it writes the next one
        self._write_verls_checkpoint = handler.save_checkpoint
        handler.save_checkpoint = self._save_checkpoint

    def _save_checkpoint(self, step: int) -> None:
        saving.save(self.run_folder, step, partial(self._write_checkpoint, step), self.max_checkpoints)

    def _write_checkpoint(self, step: int) -> None:
        self._write_verls_checkpoint(step)
        folder = saving.step_folder(self.run_folder, step)
        if self.has_nodes and "model" in self.config.checkpoint.save_contents:
            saving.wait_for_shards(folder)
        exported = folder / "huggingface"
        if exported.is_dir():
            card.write_card(exported, self.run_folder, step)


class ConvRecSFTTrainer(SFTEngine, sft_trainer.SFTTrainer):
    """SFT on one device, in this process."""

    def _set_learning_rate(self) -> None:
        set_learning_rate(self.engine)

    def _init_engine(self) -> None:
        super()._init_engine()
        prepare_engine(self.engine)

    def begin_epoch(self, epoch: int, batches_done: int) -> None:
        super().begin_epoch(epoch, batches_done)
        aggressive_empty_cache(force_sync=True)

    def balance_batch(self, data: Any) -> Any:
        """Return the data unchanged: one device has all rows."""
        return data

    def train_batch(self, data: Any) -> dict[str, Any]:
        output = self.training_client.train_batch(data=data)
        self.training_client.step_profile()
        return dict(tensordict_utils.get(output, "metrics"))

    def infer_batch(self, data: Any) -> dict[str, Any]:
        return dict(tensordict_utils.get(self.training_client.infer_batch(data), "metrics"))
