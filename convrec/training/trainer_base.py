"""What every trainer of ours adds to verl's: worker, start-up checks, checkpoints, watching. Nothing but wiring."""

import gc
import logging
from collections.abc import Sequence
from copy import deepcopy
from numbers import Real
from pathlib import Path
from typing import Any

import ray
import transfer_queue as tq
from omegaconf import DictConfig, open_dict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.utils import Role
from verl.workers.utils.padding import response_from_nested

from convrec.checkpoints import saving
from convrec.rank_grpo.repair import NOT_SAMPLED
from convrec.rollout import agent_loop as rollout
from convrec.rollout import queue as rollout_queue
from convrec.runs import card
from convrec.runs.folder import lacks_validation
from convrec.runs.phases import Phases
from convrec.training import registration
from convrec.training.registration import register_rollout
from convrec.training.validation import ValidatesDirectly
from convrec.training.watch import liveness
from convrec.training.worker import ConvRecWorker

logger = logging.getLogger(__name__)

PHASES = {  # method -> the name that verl's `timing_s/` has for it
    "_balance_batch": "balance_batch",
    "_compute_old_log_prob": "old_log_prob",
    "_compute_ref_log_prob": "ref",
    "_compute_advantage": "adv",
    "_update_actor": "update_actor",
    "_save_checkpoint": "save_checkpoint",
    "on_step_end": "update_weights",
    "_validate": "testing",
}
KNOWN_AT_THE_END = ("timing_s/", "timing_per_token_ms/", "perf/")
POLL_SECONDS = 0.05  # verl asks its replay buffer every 2 s whether the rollouts are there


class ConvRecMixin(ValidatesDirectly):
    """Over any of verl's v1 trainers. Settings are in the config's `convrec` section."""

    config: DictConfig
    verls_mode = "sync"
    worker: type = ConvRecWorker
    _rollout_moe_lb_metrics_accumulator: Any

    # ---- wiring into verl's set-up ----

    def __init__(self, config: DictConfig) -> None:
        registration.register()
        register_rollout()
        super().__init__(config)
        self.replay_buffer.poll_interval = POLL_SECONDS
        rollout.stop_on_failure(self.replay_buffer, lambda: self.agent_loop_manager.first_failure())
        self.settings = config.convrec
        self.watch = liveness.Watch(self._actors, self._phases())
        self.rollout_is_checked = False
        self.run_folder = Path(config.trainer.default_local_dir)
        self.keep = config.trainer.get("max_actor_ckpt_to_keep")
        with open_dict(config):
            # verl may remove the last checkpoint before the next is written, and forgets older ones when resumed
            config.trainer.max_actor_ckpt_to_keep = None
        self.saved_step = 0
        self.is_stopping = False

    @property
    def trainer_mode(self) -> str:
        """verl branches on the mode's name; to it this is one of its own trainers."""
        return self.verls_mode

    @trainer_mode.setter
    def trainer_mode(self, value: str) -> None: ...

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef, Role.RefPolicy):
            if role in self.role_worker_mapping:
                self.role_worker_mapping[role] = ray.remote(self.worker)

    def _load_checkpoint(self) -> None:
        self._prepare_workers()
        super()._load_checkpoint()
        schedule = [(int(step), float(lr)) for step, lr in self.settings.lr_schedule or ()]
        self.actor_rollout_wg.set_learning_rate(schedule, self.parameter_sync_step)
        rollout.retry_failed_prompts()

    def _prepare_workers(self) -> None:
        """For what a method gives its workers, once they are known to run this code."""

    def _init_dataloader(self) -> None:
        """TOTAL_STEPS wins over epochs: verl would end at whichever comes first, without the last checkpoint."""
        super()._init_dataloader()
        epochs = -(-self.total_training_steps // max(1, self.steps_per_epoch))
        self.config.trainer.total_epochs = max(self.config.trainer.total_epochs, epochs)

    # ---- what a run needs to be alive ----

    def init(self) -> None:
        """Its last part sends weights, and waits without limit for a vLLM server that has gone in the meantime."""
        with liveness.watched(liveness.Watch(self._actors)):  # no phases: how long a start takes is not known
            super().init()

    def fit(self, agent_loop_manager: Any) -> None:
        self.agent_loop_manager = agent_loop_manager
        trainer = self.config.trainer
        if lacks_validation(self.run_folder, self.global_steps, trainer.test_freq, self.total_training_steps):
            trainer.val_before_train = True
        gc.freeze()  # collections would go through all that was imported, some 0.1 s each time
        with liveness.watched(self.watch):
            super().fit(agent_loop_manager)

    def _phases(self) -> Phases | None:
        """Time the phases of a step under verl's names for them; None where nobody watches them."""
        if self.settings.watchdog == "off":
            return None
        phases = Phases(self.settings.watchdog_seconds)
        for method, name in PHASES.items():
            setattr(self, method, phases.timed(name, getattr(self, method)))
        self.replay_buffer.sample = phases.timed("gen", self.replay_buffer.sample)
        return phases

    def _actors(self) -> dict[str, Any]:
        """Every process the run needs and has by now, by name: verl adds each group of them when it has started."""
        groups: dict[str, list[Any]] = {}
        if hasattr(self, "actor_rollout_wg"):
            groups["training worker "] = self.actor_rollout_wg.workers
        if hasattr(self, "reward_loop_manager"):
            groups["reward worker "] = self.reward_loop_manager.reward_loop_workers
        if hasattr(self, "agent_loop_manager"):
            groups["agent-loop worker "] = self.agent_loop_manager.agent_loop_workers
        groups |= {f"vLLM server {replica.replica_rank}.": replica.servers for replica in self._replicas()}
        actors = {f"{name}{i}": actor for name, group in groups.items() for i, actor in enumerate(group)}
        return actors | rollout_queue.actors()

    def _replicas(self) -> list[Any]:
        return self.llm_server_manager.get_replicas() if hasattr(self, "llm_server_manager") else []

    # ---- checkpoints ----

    def _save_checkpoint(self) -> None:
        saving.save(self.run_folder, self.global_steps, self._write_checkpoint, self.keep)
        self.saved_step = self.global_steps

    def _write_checkpoint(self) -> None:
        self._log_step()  # first: with verl's last file the checkpoint can be resumed
        super()._save_checkpoint()
        if "model" in self.config.actor_rollout_ref.actor.checkpoint.save_contents:
            saving.wait_for_shards(saving.step_folder(self.run_folder, self.global_steps) / "actor")
        exported = saving.step_folder(self.run_folder, self.global_steps) / "actor" / "huggingface"
        if exported.is_dir():
            card.write_card(exported, self.run_folder, self.global_steps)

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> KVBatchMeta:
        batch = super().step(metrics, timing_raw)
        self.trained = batch, metrics
        return batch

    def _log_step(self) -> None:
        """Log what is known of the step to RUN/metrics. verl logs it when the step has ended, after the update of the
        rollout's weights and the validation: a run that is killed in between does not get there."""
        batch, metrics = self.trained
        metrics, verls = dict(metrics), self._rollout_moe_lb_metrics_accumulator
        self._rollout_moe_lb_metrics_accumulator = deepcopy(verls)  # else the batch would be counted twice
        epoch = (self.global_steps - 1) // self.steps_per_epoch
        self._compute_metrics(batch, metrics, {"step": 1.0}, self.global_steps, epoch)
        self._rollout_moe_lb_metrics_accumulator = verls
        known = {
            name: value
            for name, value in metrics.items()
            if isinstance(value, Real) and not name.startswith(KNOWN_AT_THE_END)
        }
        self.logger.log(data=known, step=self.global_steps, backend=["file"])

    def on_step_end(self) -> None:
        """Save when asked to stop, where verl saves: the weight update then wakes vLLM, which takes its memory back."""
        if saving.take_stops(self.run_folder):
            if self.saved_step != self.global_steps:
                self._save_checkpoint()
            self.is_stopping = True  # after the step has been logged
        super().on_step_end()

    def on_step_begin(self) -> None:
        if self.is_stopping:
            raise saving.StopRequested(self.global_steps - 1)
        super().on_step_begin()

    # ---- one step ----

    @property
    def _old_is_rollout(self) -> bool:
        """verl's bypass mode: the old log-probs are the rollout's."""
        return bool(self.config.algorithm.rollout_correction.bypass_mode)

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """The first batch of a start also compares rollout and actor."""
        batch = super()._compute_old_log_prob(batch, metrics)
        if not self.rollout_is_checked:
            self._check_rollout(batch)
            self.rollout_is_checked = True
        return batch

    def _check_rollout(self, batch: KVBatchMeta) -> None:
        """Stop when vLLM's log-probs of its own samples are not the actor's: then the rollout is not the policy."""
        if self._old_is_rollout:  # else verl has just had the actor compute its own
            temperature = self.config.actor_rollout_ref.rollout.temperature
            batch.extra_info.update(calculate_entropy=False, compute_loss=False, temperature=temperature)
            self.actor_rollout_wg.compute_log_prob(batch)
        fields = ["log_probs", "rollout_log_probs", "loss_mask"]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        data["log_probs"] = response_from_nested(data["log_probs"], data["loss_mask"])
        data = data.to_padded_tensor()
        sampled = data["loss_mask"].bool() & (data["rollout_log_probs"] < NOT_SAMPLED)
        difference = (data["log_probs"] - data["rollout_log_probs"]).abs()[sampled]
        mean, largest, bound = difference.mean().item(), difference.max().item(), self.settings.rollout_check_bound
        logger.info("rollout against actor: mean |d log p| %.3g, max %.3g, bound on the mean %g", mean, largest, bound)
        if not mean <= bound:
            raise RuntimeError(
                f"the rollout does not sample from the policy: mean |log p_vllm - log p_actor| of the first batch is "
                f"{mean:.3g} (max {largest:.3g}), above convrec.rollout_check_bound={bound:g}. The weights did not "
                "reach vLLM, or the two run in different precision (rollout.dtype, mixed_precision, quantization)."
            )


def scalar_infos(infos: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """What the reward function returned for each response, the numbers of it: {name: one a response}."""
    names = [key for key, value in infos[0].items() if isinstance(value, (int, float))]
    return {name: [float(info[name]) for info in infos] for name in names}
