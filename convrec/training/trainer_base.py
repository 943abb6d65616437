"""What every trainer of ours adds to verl's: worker, platform, start-up checks, validation metrics. Nothing but wiring.

`scalar_grpo` is verl's own GRPO with that and no more: one reward a response, verl's estimator and loss (the judges).
"""

import gc
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from numbers import Real
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig, open_dict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.utils import Role
from verl.workers.utils.padding import response_from_nested

from convrec.checkpoints import saving
from convrec.rollout import agent_loop as rollout
from convrec.rollout import queue as rollout_queue
from convrec.runs import card
from convrec.runs.folder import lacks_validation
from convrec.runs.phases import Phases
from convrec.statistics import error_of_mean
from convrec.training import registration
from convrec.training.registration import register_rollout
from convrec.training.watch import liveness
from convrec.training.worker import ConvRecWorker, report_new_rate

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


class ConvRecMixin:
    """Over any of verl's v1 trainers. Settings are in the config's `convrec` section."""

    config: DictConfig
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
        self.validates_directly = True  # until a prompt needs verl's way
        self.validation_samples: list[dict[str, Any]] | None = None
        self.saved_step = 0
        self.is_stopping = False

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef, Role.RefPolicy):
            if role in self.role_worker_mapping:
                self.role_worker_mapping[role] = ray.remote(self.worker)

    def _load_checkpoint(self) -> None:
        registration.check(self.actor_rollout_wg.registrations(), registration.source_digest())
        self._prepare_workers()
        super()._load_checkpoint()
        schedule = [(int(step), float(lr)) for step, lr in self.settings.lr_schedule or ()]
        rates = self.actor_rollout_wg.set_learning_rate(schedule, self.parameter_sync_step)
        report_new_rate(self.global_steps, *rates[0])
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
        """Into RUN/metrics, what is known of the step. verl logs it, as far as it is the same, when the step has ended:
        after the update of the rollout's weights and the validation, which a run that is killed does not reach."""
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
        asked = [file for file in saving.stop_files(self.run_folder) if file.exists()]
        if asked:
            if self.saved_step != self.global_steps:
                self._save_checkpoint()
            for file in asked:
                file.unlink(missing_ok=True)
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
        difference = (data["log_probs"] - data["rollout_log_probs"]).abs()[data["loss_mask"].bool()]
        mean, largest, bound = difference.mean().item(), difference.max().item(), self.settings.rollout_check_bound
        logger.info("rollout against actor: mean |d log p| %.3g, max %.3g, bound on the mean %g", mean, largest, bound)
        if not mean <= bound:
            raise RuntimeError(
                f"the rollout does not sample from the policy: mean |log p_vllm - log p_actor| of the first batch is "
                f"{mean:.3g} (max {largest:.3g}), above convrec.rollout_check_bound={bound:g}. The weights did not "
                "reach vLLM, or the two run in different precision (rollout.dtype, mixed_precision, quantization)."
            )

    # ---- validation ----

    def _validate(self) -> dict[str, float]:
        metrics = self._validate_directly() if self.validates_directly else None
        if metrics is None:  # and so the next time: nothing is sent about in vain
            self.validates_directly, self.validation_samples = False, None
            metrics = super()._validate()
        saving.note_validation(self.run_folder, self.global_steps, metrics, self.keep)
        return metrics

    def _validate_directly(self) -> dict[str, float] | None:
        """verl's `_validate` without TransferQueue: the answers come back from the agent-loop workers.

        None when a prompt needs verl's way.
        """
        if self.validation_samples is None:  # the same every time
            self.validation_samples = [sample for columns in self.val_dataloader for sample in rows_of(columns)]
        agent = self.config.actor_rollout_ref.rollout.agent.default_agent_loop
        samples = [{"agent_name": agent, **sample, "uid": uuid4().hex} for sample in self.validation_samples]
        answers = self.agent_loop_manager.validate(samples, self.global_steps)
        if answers is None:
            return None
        rows = [
            (sample, answer)
            for sample, answers_of_sample in zip(samples, answers, strict=True)
            for answer in answers_of_sample
        ]
        scores = [answer.score for _, answer in rows]
        infos: dict[str, list[Any]] = {"reward": scores}
        for name in sorted({name for _, answer in rows for name in answer.reward_extra_info}):
            infos[name] = [answer.reward_extra_info.get(name) for _, answer in rows]
        uids = [sample["uid"] for sample, _ in rows]
        sources = [str(sample.get("data_source", "unknown")) for sample, _ in rows]
        self._keep_generations(rows, infos)
        return self._val_metrics_update(
            sources,
            uids,
            infos,
            [answer.num_turns for _, answer in rows],
            expected_acc_counts=Counter(zip(sources, uids, strict=True)),
        )

    def _keep_generations(self, rows: list[tuple[dict[str, Any], rollout.Answer]], infos: dict[str, list[Any]]) -> None:
        """To the trackers and to trainer.validation_data_dir, as verl does."""

        def texts(ids: list[list[int]]) -> list[str]:
            return self.tokenizer.batch_decode(ids, skip_special_tokens=True)

        folder = self.config.trainer.get("validation_data_dir", None)
        if not folder and not self.config.trainer.log_val_generations:
            return
        inputs = texts([answer.prompt_ids for _, answer in rows])
        outputs = texts([answer.response_ids for _, answer in rows])
        self._maybe_log_val_generations(inputs=inputs, outputs=outputs, scores=infos["reward"])
        if folder:
            truths = [sample["reward_model"]["ground_truth"] for sample, _ in rows]
            uids = {"uid": [sample["uid"] for sample, _ in rows]}
            self._dump_generations(inputs, outputs, truths, infos["reward"], infos | uids, folder)

    def _val_metrics_update(
        self, data_sources: Any, sample_uids: Any, reward_extra_infos_dict: dict[str, list], *args: Any, **kwargs: Any
    ) -> dict[str, float]:
        """verl's metrics of the scalar keys (lists break them), and of each the mean over all rows, `val/<name>`, with
        its standard error over prompts, `val/<name>_se`, where there are two of them."""
        scalars = {
            key: values
            for key, values in reward_extra_infos_dict.items()
            if all(isinstance(value, (int, float)) for value in values)
        }
        prompts = list(sample_uids)
        if "num_rows" in scalars:  # an answer was scored for several rows at once: it counts as often
            copies = [(place, copy) for place, rows in enumerate(scalars.pop("num_rows")) for copy in range(int(rows))]
            data_sources = [data_sources[place] for place, _ in copies]
            sample_uids = [f"{sample_uids[place]}/{copy}" for place, copy in copies]
            scalars = {key: [values[place] for place, _ in copies] for key, values in scalars.items()}
            prompts = [prompts[place] for place, _ in copies]
        means = {f"val/{key}": float(np.mean(values)) for key, values in scalars.items()}
        if len(set(prompts)) > 1:
            errors = error_of_mean(np.array(list(scalars.values()), dtype=float).T, prompts)
            means |= {f"val/{key}_se": float(error) for key, error in zip(scalars, errors, strict=True)}
        if len(set(sample_uids)) == len(sample_uids) and "acc" not in scalars:  # verl counts a missing `acc` as 0
            # One answer a prompt: verl's mean of each prompt and then of all is the mean. Its loop over prompts and
            # keys takes 1 to 3 % as long as a whole validation.
            data_sources, scalars = mean_of_each(data_sources, scalars)
            sample_uids = data_sources
        return super()._val_metrics_update(data_sources, sample_uids, scalars, *args, **kwargs) | means


def mean_of_each(sources: Sequence[str], scalars: Mapping[str, list]) -> tuple[list[str], dict[str, list[float]]]:
    """The sources, each once, and for each key its mean over a source's rows."""
    places: dict[str, list[int]] = {}
    for place, source in enumerate(sources):
        places.setdefault(source, []).append(place)
    means = {
        key: [float(np.mean([values[i] for i in places_of_source])) for places_of_source in places.values()]
        for key, values in scalars.items()
    }
    return list(places), means


def rows_of(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A collated batch of verl's data loader, row by row, without tensors: a small one is dear to send, and no reward
    and no rollout of text reads one (verl's collating wants a `dummy_tensor`)."""
    columns = {name: values for name, values in columns.items() if not isinstance(values, torch.Tensor)}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def scalar_infos(infos: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """What the reward function returned for each response, the numbers of it: {name: one a response}."""
    names = [key for key, value in infos[0].items() if isinstance(value, (int, float))]
    return {name: [float(info[name]) for info in infos] for name in names}
