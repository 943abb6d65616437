"""Validation during training, without TransferQueue; each metric is a mean over all rows, with its standard error."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

from convrec.base.statistics import compute_standard_error


@dataclass(frozen=True)
class ScoredAnswers:
    """Validation answers with the results of the reward function.

    Attributes:
        sources: data source of each answer.
        uids: prompt of each answer.
        infos: name -> one value per answer.
        prompts: clusters of the standard errors; the uids, unless an answer counts several times.
    """

    sources: list[Any]
    uids: list[Any]
    infos: dict[str, list[Any]]
    prompts: list[Any] | None = None

    def select_numbers(self) -> "ScoredAnswers":
        """Return the answers with only the numbers among their infos: verl's metrics cannot be lists."""
        numbers = {
            name: values
            for name, values in self.infos.items()
            if all(isinstance(value, (int, float)) for value in values)
        }
        return ScoredAnswers(self.sources, self.uids, numbers)

    def repeat_rows(self) -> "ScoredAnswers":
        """Repeat each answer for each of its rows (`num_rows`): rows with equal prompts share one answer."""
        if "num_rows" not in self.infos:
            return self
        rest = {name: values for name, values in self.infos.items() if name != "num_rows"}
        copies = [(answer, copy) for answer, rows in enumerate(self.infos["num_rows"]) for copy in range(int(rows))]
        return ScoredAnswers(
            sources=[self.sources[answer] for answer, _ in copies],
            uids=[f"{self.uids[answer]}/{copy}" for answer, copy in copies],
            infos={name: [values[answer] for answer, _ in copies] for name, values in rest.items()},
            prompts=[self.uids[answer] for answer, _ in copies],
        )

    def compute_means(self) -> dict[str, float]:
        """Return `val/<name>`, the mean of each number, and `val/<name>_se`, its standard error over prompts.

        A single prompt has no standard errors.
        """
        prompts = self.uids if self.prompts is None else self.prompts
        means = {f"val/{name}": float(np.mean(values)) for name, values in self.infos.items()}
        if len(set(prompts)) > 1:
            errors = compute_standard_error(np.array(list(self.infos.values()), dtype=float).T, prompts)
            means |= {f"val/{name}_se": float(error) for name, error in zip(self.infos, errors, strict=True)}
        return means


def add_means(
    verls_metrics: Callable[..., dict[str, float]],
    sources: Sequence[Any],
    uids: Sequence[Any],
    infos: dict[str, list[Any]],
    *args: Any,
    **kwargs: Any,
) -> dict[str, float]:
    """Return verl's metrics of the numbers among the infos, and `ScoredAnswers.compute_means`.

    Args:
        verls_metrics: verl's `_val_metrics_update`, which gets the further arguments.
        sources: data source of each answer.
        uids: prompt of each answer.
        infos: name -> one value per answer.
        *args: further arguments of verls_metrics.
        **kwargs: further arguments of verls_metrics.
    """
    answers = ScoredAnswers(list(sources), list(uids), infos).select_numbers().repeat_rows()
    return verls_metrics(answers.sources, answers.uids, answers.infos, *args, **kwargs) | answers.compute_means()


def validate_directly(engine: Any) -> dict[str, float] | None:
    """Validate without TransferQueue: the agent-loop workers return the answers to this process.

    Returns:
        verl's metrics and ours; None if a prompt needs verl's agent loops.
    """
    if engine.validation_samples is None:  # they are the same in every validation
        engine.validation_samples = [sample for columns in engine.val_dataloader for sample in split_batch(columns)]
    agent = engine.config.actor_rollout_ref.rollout.agent.default_agent_loop
    samples = [{"agent_name": agent, **sample, "uid": uuid4().hex} for sample in engine.validation_samples]
    answers = engine.agent_loop_manager.validate(samples, engine.global_steps)
    if answers is None:
        return None
    sample_by_uid = {sample["uid"]: sample for sample in samples}
    rows = [(sample_by_uid[uid], answer) for uid, answer in answers]
    infos = collect_infos([answer for _, answer in rows])
    log_generations(engine, rows, infos)
    uids = [sample["uid"] for sample, _ in rows]
    sources = [str(sample.get("data_source", "unknown")) for sample, _ in rows]
    turns = [answer.num_turns for _, answer in rows]
    counts = Counter(zip(sources, uids, strict=True))
    return engine._val_metrics_update(sources, uids, infos, turns, expected_acc_counts=counts)


def collect_infos(answers: list[AgentLoopOutput]) -> dict[str, list[Any]]:
    """Collect the results of the reward function by name.

    Args:
        answers: scored answers.

    Returns:
        name -> one value per answer, None for an answer without one. `reward` is the score.
    """
    reward_infos = [answer.extra_fields["reward_extra_info"] for answer in answers]
    infos: dict[str, list[Any]] = {"reward": [answer.reward_score for answer in answers]}
    for name in sorted({name for info in reward_infos for name in info}):
        infos[name] = [info.get(name) for info in reward_infos]
    return infos


def log_generations(engine: Any, rows: list[tuple[dict[str, Any], AgentLoopOutput]], infos: dict[str, Any]) -> None:
    """Log the answers to the trackers, and write them to trainer.validation_data_dir, as verl does.

    Args:
        engine: the verl trainer.
        rows: the columns of each prompt's row, and its answer.
        infos: from `collect_infos`, in the same order.
    """
    folder = engine.config.trainer.get("validation_data_dir", None)
    if not folder and not engine.config.trainer.log_val_generations:
        return
    inputs = engine.tokenizer.batch_decode([answer.prompt_ids for _, answer in rows], skip_special_tokens=True)
    outputs = engine.tokenizer.batch_decode([answer.response_ids for _, answer in rows], skip_special_tokens=True)
    engine._maybe_log_val_generations(inputs=inputs, outputs=outputs, scores=infos["reward"])
    if folder:
        truths = [sample["reward_model"]["ground_truth"] for sample, _ in rows]
        uids = {"uid": [sample["uid"] for sample, _ in rows]}
        engine._dump_generations(inputs, outputs, truths, infos["reward"], infos | uids, folder)


def split_batch(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Split a collated batch of verl's data loader into rows, without its tensors.

    Small tensors are expensive to send, and for text neither reward nor rollout reads them (`dummy_tensor` only serves
    verl's collate function).
    """
    columns = {name: values for name, values in columns.items() if not isinstance(values, torch.Tensor)}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
