"""The training loop, with its phases in order. Read this file first.

    driver: this process               rollout workers and vLLM           FSDP workers
    ---------------------------------------------------------------------------------------------------
    sample        prompts      ------> responses, scored by the reward
                               <------ a row per response, in TransferQueue
    old           row keys     ---------------------------------------->  log-probs before the update
    reference     row keys     ---------------------------------------->  log-probs of the initial model
    credit        ranks, returns, advantages, units: computed here, written to TransferQueue
    update        row keys     ---------------------------------------->  loss, gradients, optimizer
    record        metrics, before the checkpoint from which a resumed run continues
    save                       ---------------------------------------->  shards; then our manifest, here
    synchronise                        vLLM wakes  <--------------------  weights
    validate      prompts      ------> greedy answers, scored

verl's `step` sends the prompts and then calls `update_once`, which waits for the responses. The driver waits at every
arrow that leaves it, except with `separate_async`, where rollout workers sample ahead. If rollout and training share
their devices, vLLM sleeps from the end of `sample` to `synchronise`, and training uses the memory.

verl is the engine: its trainer (convrec.training.trainer) owns workers, servers, queues and shards, and each phase
above is one call to it. The order is ours. Names on `engine` with a leading underscore are verl's own, pinned by
tests/test_upstream.py; `on_*` are verl's hooks, which its asynchronous trainer and its profiler use.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Protocol

from omegaconf import DictConfig
from tqdm import tqdm
from transfer_queue import KVBatchMeta

from convrec.checkpoints import saving
from convrec.runs.phases import Phases
from convrec.training.finite import check_finite

logger = logging.getLogger(__name__)

# Metrics of a step that are only known after it has ended.
LATE_METRICS = ("timing_s/", "timing_per_token_ms/", "perf/")


@dataclass(frozen=True)
class Step:
    """A step of a run.

    Attributes:
        number: counts from 1.
        is_last: the last step of the run.
        saves: ends with a checkpoint.
        validates: ends with a validation.
    """

    number: int
    is_last: bool
    saves: bool
    validates: bool


def iter_steps(
    done: int, total: int, save_every: int, validate_every: int, always_finishes: bool = False
) -> Iterator[Step]:
    """Yield the steps after step `done`, up to step `total`.

    Args:
        done: step of the checkpoint from which the run resumes; 0 without one.
        total: number of the last step.
        save_every: steps between checkpoints; the last step is saved too. Without checkpoints if not positive.
        validate_every: steps between validations; the last step is validated too. Without validations if not positive.
        always_finishes: save and validate the last step even if the frequencies are not positive.
    """
    for number in range(done + 1, total + 1):
        is_last = number == total
        yield Step(
            number=number,
            is_last=is_last,
            saves=_is_due(number, save_every) or (is_last and (save_every > 0 or always_finishes)),
            validates=_is_due(number, validate_every) or (is_last and (validate_every > 0 or always_finishes)),
        )


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


class Method(Protocol):
    """The part of training that differs between lists (convrec.training.rank_method) and judges.

    `from_run`, `configure_datasets`, `loss_function` and `write_card` are called by convrec.training.trainer.

    Attributes:
        has_variable_batch: the number of rows of a step is not known in advance, and all of them are one update.
    """

    has_variable_batch: bool

    @classmethod
    def from_run(cls, config: DictConfig, tokenizer: Any) -> "Method":
        """Return the method of a run, whose policy has this tokenizer."""

    def configure_datasets(self, engine: Any) -> None:
        """Configure the engine's new datasets and loaders."""

    def loss_function(self) -> Callable[..., Any] | None:
        """Return the loss for verl's workers; None means verl's own."""

    def skips_old_log_probs(self, updates_per_step: int) -> bool:
        """Return whether the update itself computes the old log-probs, so that they need no separate pass."""

    def assign_credit(self, engine: Any, meta: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Write the advantages that the loss reads.

        Args:
            engine: the verl trainer.
            meta: the step's rows.
            metrics: the metrics of the step, to which those of the credit are added.

        Returns:
            The rows with the new fields.
        """

    def finish_metrics(self, step: int, metrics: dict[str, Any]) -> None:
        """Change the metrics of a step after its update.

        Args:
            step: the step's number.
            metrics: the metrics of the step, changed in place.
        """

    def write_card(self, engine: Any, folder: Path) -> None:
        """Write a model card next to exported weights, if the run's card is not enough."""


class TrainingLoop:
    """Trains with reinforcement learning.

    Args:
        engine: the verl trainer of convrec.training.trainer, initialised, with its checkpoint loaded.
        method: assigns credit to tokens.
        run_folder: stop requests are files in this folder.
        phases: watched by another thread, which ends a run that hangs; None turns this off.
    """

    def __init__(self, engine: Any, method: Method, run_folder: Path, phases: Phases | None = None) -> None:
        self.engine = engine
        self.method = method
        self.run_folder = run_folder
        self.phases = phases
        self.rollout_is_checked = False

    def fit(self) -> None:
        """Train up to the last step.

        Raises:
            StopRequested: the run was asked to stop earlier.
            Diverged: a loss or a gradient norm is not finite.
        """
        engine = self.engine
        settings = engine.config.trainer
        engine.open_trackers()
        if settings.val_before_train:
            engine.logger.log(data=self.validate(), step=engine.global_steps)
            if settings.get("val_only", False):
                return

        done = engine.global_steps
        steps = iter_steps(done, engine.total_training_steps, settings.save_freq, settings.test_freq)
        engine.begin_training()
        engine.on_train_begin()
        saving.save_on_signals(self.run_folder)
        for step in tqdm(steps, total=engine.total_training_steps, initial=done, desc="training"):
            stop_requested = self.run_step(step)
            if stop_requested and not step.is_last:
                raise saving.StopRequested(step.number)
        engine.on_train_end()

    def run_step(self, step: Step) -> bool:
        """Train one step; save and validate if the step does so, and save if the run was asked to stop.

        Returns:
            Whether the run was asked to stop during the step. The step is then saved.
        """
        engine = self.engine
        engine.begin_step(step.number)
        metrics: dict[str, Any] = {}
        with self.phase("step", is_watched=False):
            engine.on_step_begin()
            engine._start_profiling()
            # verl sends the next prompts and calls `update_once` through `_step_once`: once, or `parameter_sync_step`
            # times in its asynchronous trainer.
            batch = engine.step(metrics, engine.timing_raw)
            engine._stop_profiling()
            self.record(step, batch, metrics)
            check_finite(step.number, metrics, self.run_folder)
            stop_requested = saving.consume_stop_request(self.run_folder)
            is_saved = step.saves or stop_requested
            if is_saved:
                self.save()
            late_metrics = self.synchronise_weights()
        if step.validates:
            late_metrics |= self.validate()
        if saving.consume_stop_request(self.run_folder):
            stop_requested = True
            if not is_saved:
                self.save_after_sync(step, late_metrics)
        self.finish_step(step, batch, metrics, late_metrics)
        return stop_requested

    def update_once(self, metrics: dict[str, Any], num_prompts: int) -> KVBatchMeta:
        """Sample a batch and update the policy on it, in the order of the diagram above.

        Args:
            metrics: the metrics of the batch are added to it.
            num_prompts: number of prompts to train on.

        Returns:
            The rows of the batch.
        """
        engine = self.engine
        with self.phase("gen"):
            batch = engine.sample_rollouts(metrics, num_prompts)
        with self.phase("balance_batch", is_timed=False):
            batch = engine._balance_batch(batch, metrics)
        with self.phase("old_log_prob"):
            batch = self.compute_old_log_probs(batch, metrics)
        if engine.use_reference_policy:
            with self.phase("ref"):
                batch = engine._compute_ref_log_prob(batch, metrics)
        with self.phase("adv"):
            batch = self.method.assign_credit(engine, batch, metrics)
        with self.phase("update_actor"):
            batch = engine._update_actor(batch, metrics)
        self.method.finish_metrics(engine.global_steps, metrics)
        return batch

    def compute_old_log_probs(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Compute log-probs of the policy before the update, unless the update itself computes them.

        They are always computed for the first batch after a start, to check that the rollout samples from the policy.

        Args:
            batch: the step's rows.
            metrics: verl's metrics of the pass are added to it.

        Returns:
            The rows, with the log-probs if they were computed.

        Raises:
            RuntimeError: the rollout of the first batch does not sample from the policy.
        """
        if self.rollout_is_checked and self.method.skips_old_log_probs(self.engine.parameter_sync_step):
            return batch
        batch = self.engine._compute_old_log_prob(batch, metrics)
        # The reference's pass comes later and overwrites the field in which the check reads the actor's log-probs.
        if not self.rollout_is_checked:
            self.engine.check_rollout(batch)
            self.rollout_is_checked = True
        return batch

    def record(self, step: Step, batch: KVBatchMeta, metrics: dict[str, Any]) -> None:
        """Log the step before saving it: a resumed run continues after the checkpoint and never logs it again."""
        self.engine.compute_step_metrics(step.number, batch, metrics)
        early_metrics = {
            name: value
            for name, value in metrics.items()
            if isinstance(value, Real) and not name.startswith(LATE_METRICS)
        }
        self.engine.logger.log(data=early_metrics, step=step.number)

    def save(self) -> None:
        """Write a checkpoint, before the synchronisation of weights wakes vLLM, which fills the GPU again."""
        with self.phase("save_checkpoint"):
            self.engine._save_checkpoint()

    def save_after_sync(self, step: Step, metrics: dict[str, Any]) -> None:
        """Save a step after the rollout has already received its weights, because the run was asked to stop.

        Args:
            step: the step that ends.
            metrics: its late metrics; if they have a validation, the step may be the best one so far.
        """
        self.engine.free_training_devices()
        self.save()
        saving.note_validation(self.run_folder, step.number, metrics, self.engine.max_checkpoints)

    def synchronise_weights(self) -> dict[str, Any]:
        """Send the new weights to the rollout, and return verl's metrics of it, with its time."""
        with self.phase("update_weights", is_timed=False):
            self.engine.on_step_end()
        return dict(self.engine._consume_sync_metrics())

    def validate(self) -> dict[str, Any]:
        """Return the metrics of greedy answers to the validation prompts."""
        with self.phase("testing"):
            self.engine.on_validate_begin()
            metrics = self.engine._validate()
            self.engine.on_validate_end()
        return metrics

    def finish_step(
        self, step: Step, batch: KVBatchMeta, metrics: dict[str, Any], late_metrics: dict[str, Any]
    ) -> None:
        """Log the metrics that were not known before the checkpoint, and remove the step's rows."""
        late_metrics |= {name: value for name, value in metrics.items() if name.startswith(LATE_METRICS)}
        late_metrics |= self.engine.compute_time_metrics(batch)
        self.engine.finish_step(step.number, batch, metrics)
        self.engine.logger.log(data=late_metrics, step=step.number)

    @contextlib.contextmanager
    def phase(self, name: str, is_timed: bool = True, is_watched: bool = True) -> Iterator[None]:
        """Time a part of a step as `timing_s/<name>`, and let the watchdog know in which part the run is.

        Args:
            name: verl's name of the part.
            is_timed: log the time; it is summed if the part occurs several times in a step.
            is_watched: the watchdog limits the time of the part.
        """
        watched = self.phases.phase(name) if self.phases and is_watched else contextlib.nullcontext()
        start = time.perf_counter()
        with watched:
            yield
        if is_timed:
            seconds = self.engine.timing_raw
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start
