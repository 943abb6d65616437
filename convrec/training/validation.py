"""Validation during training: without TransferQueue, with the mean over all rows of each number and its error."""

from collections import Counter
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

from convrec.checkpoints import saving
from convrec.statistics import error_of_mean


class ValidatesDirectly:
    """Over any of verl's v1 trainers: part of `convrec.training.trainer_base.ConvRecMixin`."""

    validation_samples: list[dict[str, Any]] | None = None

    def _validate(self) -> dict[str, float]:
        metrics = self._validate_directly()
        if metrics is None:
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
        sample_of = {sample["uid"]: sample for sample in samples}
        rows = [(sample_of[uid], answer) for uid, answer in answers]
        infos: dict[str, list[Any]] = {"reward": [answer.reward_score for _, answer in rows]}
        reward_infos = [answer.extra_fields["reward_extra_info"] for _, answer in rows]
        for name in sorted({name for info in reward_infos for name in info}):
            infos[name] = [info.get(name) for info in reward_infos]
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

    def _keep_generations(
        self, rows: list[tuple[dict[str, Any], AgentLoopOutput]], infos: dict[str, list[Any]]
    ) -> None:
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
            copies = [(index, copy) for index, rows in enumerate(scalars.pop("num_rows")) for copy in range(int(rows))]
            data_sources = [data_sources[index] for index, _ in copies]
            sample_uids = [f"{sample_uids[index]}/{copy}" for index, copy in copies]
            scalars = {key: [values[index] for index, _ in copies] for key, values in scalars.items()}
            prompts = [prompts[index] for index, _ in copies]
        means = {f"val/{key}": float(np.mean(values)) for key, values in scalars.items()}
        if len(set(prompts)) > 1:
            errors = error_of_mean(np.array(list(scalars.values()), dtype=float).T, prompts)
            means |= {f"val/{key}_se": float(error) for key, error in zip(scalars, errors, strict=True)}
        return super()._val_metrics_update(data_sources, sample_uids, scalars, *args, **kwargs) | means


def rows_of(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A collated batch of verl's data loader, row by row, without tensors: a small one is dear to send, and no reward
    and no rollout of text reads one (verl's collating wants a `dummy_tensor`)."""
    columns = {name: values for name, values in columns.items() if not isinstance(values, torch.Tensor)}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
