"""verl's trainers as the engine of our training loop: workers, checkpoints, metrics, validation. Only wiring.

`TrainingEngine` is a mixin for verl's synchronous and asynchronous trainers. It replaces verl's `fit` and `_step_once`
by convrec.training.loop, and adds the methods that the loop calls besides verl's own.
"""

import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
import torch
from omegaconf import DictConfig, OmegaConf, open_dict
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.protocol import DataProto
from verl.trainer.ppo.metric_utils import compute_throughout_metrics, compute_timing_metrics
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.replay_buffer import DAPO_FILTERED_REWARD_COUNTS_KEY
from verl.utils.debug.metrics import calculate_debug_metrics
from verl.utils.skip import SkipManager
from verl.utils.tracking import DapoFilteredRewardTableLogger

from convrec.checkpoints import saving
from convrec.rank_grpo.credit import has_log_prob
from convrec.rollout import failures
from convrec.rollout import queue as rollout_queue
from convrec.rollout.sampler import count_reported_rollouts
from convrec.runs import card
from convrec.runs.folder import lacks_validation
from convrec.runs.phases import Phases
from convrec.settings.run import Run, read_settings
from convrec.settings.training import RLConfig
from convrec.training import registration, validation
from convrec.training.batch import clear_rows, read_comparison, read_padding_flags, read_rollout_and_actor
from convrec.training.loop import TrainingLoop
from convrec.training.loss import NUM_PADDING
from convrec.training.rollout_check import check_rollout_is_policy, choose_bound
from convrec.training.trackers import tracking
from convrec.training.watch import liveness
from convrec.training.worker import ConvRecWorker

POLL_SECONDS = 0.05  # verl checks its replay buffer for rollouts every 2 s


class TrainingEngine:
    """A verl trainer that our loop drives. Its settings are in the config's `convrec` section.

    Attributes:
        method_class: class of the method; its `from_run` takes a run's config and tokenizer.
        verl_mode: name of the verl trainer that is extended; verl branches on it.
        worker: class of the FSDP workers.
    """

    method_class: Any
    verl_mode = "sync"
    worker: type = ConvRecWorker

    config: DictConfig
    timing_raw: dict[str, float]

    # ---- verl's set-up ----

    def __init__(self, config: DictConfig) -> None:
        registration.register()
        registration.register_rollout()
        super().__init__(config)
        self.replay_buffer.poll_interval = POLL_SECONDS
        failures.raise_on_failure(self.replay_buffer, lambda: self.agent_loop_manager.find_failure())
        self.settings: RLConfig = read_settings(config)
        self.run_folder = Path(config.trainer.default_local_dir)
        self.timing_raw = {}
        self.phases = None if self.settings.watchdog == "off" else Phases(self.settings.watchdog_seconds)
        self.validation_samples: list[dict[str, Any]] | None = None
        self.max_checkpoints = config.trainer.get("max_actor_ckpt_to_keep")
        with open_dict(config):
            # verl may remove the last checkpoint before the next one is written, and a resumed run forgets older ones
            config.trainer.max_actor_ckpt_to_keep = None

    @property
    def trainer_mode(self) -> str:
        """The name of the verl trainer that is extended: verl compares it with "sync"."""
        return self.verl_mode

    @trainer_mode.setter
    def trainer_mode(self, value: str) -> None: ...

    def init(self) -> None:
        """Start workers and servers, and watch that their processes stay alive.

        At the end weights are sent, which would wait without limit for a vLLM server that has died. The time of a start
        is unknown, so none of its phases has a limit.
        """
        with liveness.watch_processes(liveness.Watch(self._actors)):
            super().init()

    def _init_tokenizer(self) -> None:
        super()._init_tokenizer()
        self.method = self.method_class.from_run(self.config, self.tokenizer)

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        self.method.configure_datasets(self)

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef, Role.RefPolicy):
            if role in self.role_worker_mapping:
                self.role_worker_mapping[role] = ray.remote(self.worker)

    def _load_checkpoint(self) -> None:
        """Load the newest checkpoint, and set the workers' loss and learning rate.

        This is verl's first call after the workers exist, so they get the loss here; the learning rate comes after the
        optimizer's state has been loaded.
        """
        loss = self.method.loss_function()
        if loss is not None:
            self.actor_rollout_wg.set_loss_fn(loss)
        super()._load_checkpoint()
        schedule = [(int(step), float(lr)) for step, lr in self.settings.lr_schedule or ()]
        self.actor_rollout_wg.set_learning_rate(schedule, self.parameter_sync_step)
        failures.retry_failed_prompts()

    # ---- verl's entry point ----

    def fit(self, agent_loop_manager: Any) -> None:
        """Train the run to its end.

        Args:
            agent_loop_manager: sends prompts to the rollout workers.

        Raises:
            StopRequested: the run was asked to stop earlier.
            Diverged: a loss or a gradient norm is not finite.
            ProcessLost: a process or a node of the run died, or a phase hangs (NoProgress).
        """
        self.agent_loop_manager = agent_loop_manager
        trainer = self.config.trainer
        if lacks_validation(self.run_folder, self.global_steps, trainer.test_freq, self.total_training_steps):
            trainer.val_before_train = True
        self.loop = TrainingLoop(self, self.method, self.run_folder, self.phases)
        gc.freeze()  # else every collection would visit all imported objects, some 0.1 s each time
        SkipManager.init(self.config)
        try:
            with liveness.watch_processes(liveness.Watch(self._actors, self.phases)):
                self.loop.fit()
        finally:
            self._shutdown_dump_executor()

    def _step_once(self, metrics: dict[str, Any], timing_raw: dict[str, float], sample_batch_size: int) -> KVBatchMeta:
        return self.loop.update_once(metrics, sample_batch_size)

    # ---- methods for the loop ----

    def open_trackers(self) -> None:
        """Open the trackers of metrics and samples."""
        trainer = self.config.trainer
        names = {"project_name": trainer.project_name, "experiment_name": trainer.experiment_name}
        config = OmegaConf.to_container(self.config, resolve=True)
        self.logger = tracking.open_trackers(self.run_folder, **names, backends=trainer.logger, config=config)
        self.validation_generations_logger = tracking.open_samples_logger(self.run_folder, **names)
        self.dapo_filtered_reward_logger = DapoFilteredRewardTableLogger(**names)

    def begin_training(self) -> None:
        """Send the prompts again that were in flight when the checkpoint was written, and set up verl's profiler."""
        self.global_steps += 1
        SkipManager.set_step(self.global_steps)
        self._reissue_inflight_prompts()
        steps = self.config.global_profiler.steps
        self.prev_step_profile = False
        self.curr_step_profile = steps is not None and self.global_steps in steps
        self.next_step_profile = False

    def begin_step(self, step: int) -> None:
        """Set verl's step number and clear its times."""
        self.global_steps = step
        self.timing_raw = {}
        SkipManager.set_step(step)

    def sample_rollouts(self, metrics: dict[str, Any], num_prompts: int) -> KVBatchMeta:
        """Wait for the responses to some prompts.

        verl's `step` has already sent the prompts to the rollout workers when it calls the loop.

        Args:
            metrics: verl's metrics of the responses' age are added to it.
            num_prompts: number of prompts to wait for.

        Returns:
            A row for each response; with questions, for each turn.
        """
        self.on_sample_begin()
        batch, age_metrics = self.replay_buffer.sample(
            global_steps=self.global_steps, partition_id="train", batch_size=num_prompts
        )
        metrics.update(age_metrics)
        batch.extra_info["temperature"] = self.config.actor_rollout_ref.rollout.temperature
        self.on_sample_end()
        return batch

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        batch = super()._compute_old_log_prob(batch, metrics)
        if count_reported_rollouts(Run.from_config(self.config)) is not None:
            # verl has compared all tokens, including those without a log-prob from the rollout
            data = read_comparison(batch)
            data["response_mask"] = data["response_mask"].bool() & has_log_prob(data["rollout_log_probs"])
            metrics.update(calculate_debug_metrics(DataProto(batch=data)))
        return batch

    def check_rollout(self, batch: KVBatchMeta) -> None:
        """Check that vLLM's log-probs of the batch are those of the actor.

        Raises:
            RuntimeError: they are not.
        """
        if self.bypass_mode:  # otherwise the actor has just computed its log-probs
            temperature = self.config.actor_rollout_ref.rollout.temperature
            batch.extra_info.update(calculate_entropy=False, compute_loss=False, temperature=temperature)
            self.actor_rollout_wg.compute_log_prob(batch)
        check_rollout_is_policy(read_rollout_and_actor(batch), choose_bound(Run.from_config(self.config)))

    @property
    def bypass_mode(self) -> bool:
        """Return whether the old log-probs are the rollout's (verl's `rollout_correction.bypass_mode`)."""
        return bool(self.config.algorithm.rollout_correction.bypass_mode)

    def compute_step_metrics(self, step: int, batch: KVBatchMeta, metrics: dict[str, Any]) -> None:
        """Add verl's metrics of a step's rows.

        verl divides by the time of the step, which is not known yet and set to 1 s. The metrics that depend on it are
        LATE_METRICS, which `compute_time_metrics` replaces.

        Args:
            step: the step's number, from 1.
            batch: its rows.
            metrics: the metrics of the step, changed in place.
        """
        epoch = (step - 1) // self.steps_per_epoch
        unknown_times = {"step": 1.0}
        self._compute_metrics(batch, metrics, unknown_times, global_steps=step, epoch=epoch)

    def compute_time_metrics(self, batch: KVBatchMeta) -> dict[str, Any]:
        """Return verl's metrics of the times of the step that ends."""
        prompt_length_B = torch.tensor([float(tag["prompt_len"]) for tag in batch.tags])
        response_length_B = torch.tensor([float(tag["response_len"]) for tag in batch.tags])
        lengths = {"prompt_length": prompt_length_B, "response_length": response_length_B}
        data = DataProto(
            batch=TensorDict(lengths, batch_size=len(batch)),
            meta_info={"global_token_num": (prompt_length_B + response_length_B).int().tolist()},
        )
        times = compute_timing_metrics(data, self.timing_raw)
        return times | compute_throughout_metrics(data, self.timing_raw, self._get_n_gpus_for_throughput())

    def finish_step(self, step: int, batch: KVBatchMeta, metrics: dict[str, Any]) -> None:
        """Dump responses if `trainer.rollout_data_dir` is set, and remove the step's rows from TransferQueue.

        Args:
            step: the step's number.
            batch: its rows.
            metrics: its metrics; verl's counts of filtered rewards are logged as a table and removed from them.
        """
        folder = self.config.trainer.get("rollout_data_dir", None)
        if folder:
            self._log_rollout_data(batch, self.timing_raw, folder)
        clear_rows(batch)
        counts = metrics.pop(DAPO_FILTERED_REWARD_COUNTS_KEY, None)
        if counts:
            self.dapo_filtered_reward_logger.log(self.config.trainer.logger, counts, step)

    # ---- processes ----

    def _actors(self) -> dict[str, Any]:
        """Return name -> handle of every process of the run that has been started; verl adds them group by group."""
        groups: dict[str, list[Any]] = {}
        if hasattr(self, "actor_rollout_wg"):
            groups["training worker "] = self.actor_rollout_wg.workers
        if hasattr(self, "reward_loop_manager"):
            groups["reward worker "] = self.reward_loop_manager.reward_loop_workers
        if hasattr(self, "agent_loop_manager"):
            groups["agent-loop worker "] = self.agent_loop_manager.agent_loop_workers
        for replica in self._replicas():
            groups[f"vLLM server {replica.replica_rank}."] = replica.servers
        actors = {f"{name}{number}": actor for name, group in groups.items() for number, actor in enumerate(group)}
        return actors | rollout_queue.actors()

    def _replicas(self) -> list[Any]:
        return self.llm_server_manager.get_replicas() if hasattr(self, "llm_server_manager") else []

    # ---- checkpoints ----

    def free_training_devices(self) -> None:
        """Put the vLLM servers that share the training devices to sleep, as before an update.

        A checkpoint needs memory on these devices to load offloaded weights.
        """
        self.checkpoint_manager.sleep_replicas()

    def _save_checkpoint(self) -> None:
        saving.save(self.run_folder, self.global_steps, self._write_checkpoint, self.max_checkpoints)

    def _write_checkpoint(self) -> None:
        super()._save_checkpoint()
        folder = saving.step_folder(self.run_folder, self.global_steps) / "actor"
        if "model" in self.config.actor_rollout_ref.actor.checkpoint.save_contents:
            saving.wait_for_shards(folder)
        exported = folder / "huggingface"
        if exported.is_dir():
            card.write_card(exported, self.run_folder, self.global_steps)
            self.method.write_card(self, exported)

    # ---- validation ----

    def _validate(self) -> dict[str, float]:
        metrics = validation.validate_directly(self)
        if metrics is None:  # a prompt needs verl's agent loops
            metrics = super()._validate()
        saving.note_validation(self.run_folder, self.global_steps, metrics, self.max_checkpoints)
        return metrics

    def _val_metrics_update(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        return validation.add_means(super()._val_metrics_update, *args, **kwargs)

    # ---- a batch with an unknown number of rows ----

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        return dp_size if self.method.has_variable_batch else super()._get_required_batch_multiple(dp_size)

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        if not self.method.has_variable_batch:
            return super()._update_actor(batch, metrics)
        with self._one_mini_batch(batch):
            return super()._update_actor(batch, metrics)

    @contextlib.contextmanager
    def _one_mini_batch(self, batch: KVBatchMeta) -> Iterator[None]:
        """Make verl train all rows of a batch in one update.

        verl splits a batch into updates of `ppo_mini_batch_size * rollout.n` rows, which it reads from the config each
        time; it has no argument for it.
        """
        actor = self.config.actor_rollout_ref.actor
        rollout = self.config.actor_rollout_ref.rollout
        mini_batch_size = actor.ppo_mini_batch_size
        num_rollouts = rollout.n
        actor.ppo_mini_batch_size = len(batch)
        rollout.n = 1
        batch.extra_info[NUM_PADDING] = sum(read_padding_flags(batch))
        try:
            yield
        finally:
            actor.ppo_mini_batch_size = mini_batch_size
            rollout.n = num_rollouts
