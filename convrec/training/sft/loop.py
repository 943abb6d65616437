"""The loop of supervised fine-tuning, with its phases in order: batch, update, record, save, validate.

As in convrec.training.loop, verl is the engine and the order is ours. This process reads the data; the worker is this
process itself (one device) or the workers are Ray actors (several devices, or a cluster).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.tensorclass import NonTensorData
from tqdm import tqdm
from verl.utils import tensordict_utils

from convrec.checkpoints import saving
from convrec.runs.folder import VALIDATION_LOSS, lacks_validation, read_metrics
from convrec.training.finite import check_finite
from convrec.training.loop import Step, iter_steps

TOKENS = "train/total_tokens(B)"
TRAINING_METRICS = ("loss", "grad_norm", "lr", "mfu")  # verl's, logged as train/<name>


class SFTLoop:
    """Trains on demonstrations.

    Args:
        engine: the verl SFT trainer of convrec.training.sft, initialised, with its checkpoint loaded.
        run_folder: stop requests are files in this folder.
    """

    def __init__(self, engine: Any, run_folder: Path) -> None:
        self.engine = engine
        self.run_folder = run_folder
        self.num_tokens = count_trained_tokens(run_folder, engine.resume_global_step)

    def fit(self) -> None:
        """Train up to the last step.

        Raises:
            StopRequested: the run was asked to stop earlier.
            Diverged: a loss or a gradient norm is not finite.
        """
        engine = self.engine
        done = engine.resume_global_step
        total = engine.total_training_steps
        if lacks_validation(self.run_folder, done, engine.test_freq, total):
            self.validate(done)
        steps = iter_steps(done, total, engine.save_freq, engine.test_freq, always_finishes=True)
        batches = self.iter_batches(done)
        saving.save_on_signals(self.run_folder)
        for step in tqdm(steps, total=total, initial=done, desc="training"):
            metrics = self.update(step, next(batches))
            engine.logger.log(data=metrics, step=step.number)
            check_finite(step.number, metrics, self.run_folder)
            if self.finish_step(step) and not step.is_last:
                raise saving.StopRequested(step.number)

    def finish_step(self, step: Step) -> bool:
        """Save and validate if the step does so, and save if the run was asked to stop.

        Returns:
            Whether the run was asked to stop during the step. The step is then saved.
        """
        save = self.engine.ckpt_handler.save_checkpoint
        stop_requested = saving.consume_stop_request(self.run_folder)
        is_saved = step.saves or stop_requested
        if is_saved:
            save(step.number)
        metrics = self.validate(step.number) if step.validates else {}
        if saving.consume_stop_request(self.run_folder):
            stop_requested = True
            if not is_saved:
                save(step.number)
                saving.note_validation(self.run_folder, step.number, metrics, self.engine.max_checkpoints)
        return stop_requested

    def iter_batches(self, done: int) -> Iterator[Any]:
        """Yield batches from the position of the loaded checkpoint on, epoch by epoch, each in its own order."""
        engine = self.engine
        first_epoch, batches_done = divmod(done, engine.steps_per_epoch)
        for epoch in range(first_epoch, engine.config.trainer.total_epochs):
            engine.begin_epoch(epoch, batches_done if epoch == first_epoch else 0)
            yield from engine.train_dataloader

    def update(self, step: Step, batch: Any) -> dict[str, float]:
        """Train on a batch.

        Args:
            step: the step.
            batch: a batch of the loader.

        Returns:
            verl's metrics, with the number of tokens of the batch, and of the run so far in billions.
        """
        engine = self.engine
        data = self.to_tensordict(batch)
        lengths_B = [int(length) for length in engine._get_batch_seqlens(data=data)]
        # The lengths are NonTensorData, because tensordict would stack a list.
        tensordict_utils.assign_non_tensor(data, update_lr_scheduler=True, global_token_num=NonTensorData(lengths_B))
        data = engine.balance_batch(data)
        if step.number == engine.start_profile_step:
            engine.training_client.start_profile()
        metrics = engine.train_batch(data)
        if step.number == engine.end_profile_step:
            engine.training_client.stop_profile()
        metrics |= {f"train/{name}": metrics.pop(name) for name in TRAINING_METRICS if name in metrics}
        num_tokens = sum(lengths_B)
        self.num_tokens += num_tokens
        return metrics | {"train/global_tokens": num_tokens, TOKENS: self.num_tokens / 1e9}

    def validate(self, step: int) -> dict[str, float]:
        """Log the mean loss of the validation batches, and note whether the step's checkpoint is the best so far.

        Returns:
            The metrics; {} without validation data.
        """
        engine = self.engine
        if engine.val_dataloader is None:
            return {}
        losses = [engine.infer_batch(self.to_tensordict(batch))["loss"] for batch in engine.val_dataloader]
        metrics = {VALIDATION_LOSS: torch.mean(torch.tensor(losses)).item()}
        engine.logger.log(data=metrics, step=step)
        saving.note_validation(self.run_folder, step, metrics, engine.max_checkpoints)
        return metrics

    def to_tensordict(self, batch: Any) -> TensorDict:
        """Return a batch of the loader in the form that verl's workers read."""
        engine = self.engine
        data = engine.config.data
        settings = {
            "use_remove_padding": engine.config.model.use_remove_padding,
            "use_dynamic_bsz": data.use_dynamic_bsz,
            "max_token_len_per_gpu": data.max_token_len_per_gpu,
            "micro_batch_size_per_gpu": data.micro_batch_size_per_gpu,
            "temperature": 1.0,
            "global_batch_size": engine.global_batch_size,
            "pad_mode": data.pad_mode,
            "pad_token_id": engine.model_config.tokenizer.pad_token_id,
        }
        return tensordict_utils.get_tensordict(tensor_dict=batch, non_tensor_dict=settings)


def count_trained_tokens(run_folder: Path, done: int) -> int:
    """Count the tokens of all steps up to the checkpoint from which the run resumes.

    Args:
        run_folder: the run's folder, whose metrics have the count.
        done: the checkpoint's step; 0 for a new run.
    """
    counts = [row[TOKENS] for row in read_metrics(run_folder) if row["step"] <= done and row.get(TOKENS) is not None]
    return round(counts[-1] * 1e9) if counts else 0
