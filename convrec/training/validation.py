"""Validation during training: without TransferQueue, with the mean over all rows of each number and its error."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

from convrec.base.statistics import error_of_mean


@dataclass(frozen=True)
class ScoredAnswers:
    """Validation answers and what the reward function returned for them.

    Attributes:
        sources: data source of each answer.
        uids: prompt of each answer.
        infos: name -> a value per answer.
        prompts: what errors are computed over; the uids unless an answer counts several times.
    """

    sources: list[Any]
    uids: list[Any]
    infos: dict[str, list[Any]]
    prompts: list[Any] | None = None

    def numbers_only(self) -> "ScoredAnswers":
        """Return the answers with the numbers among their infos; verl's metrics cannot take lists."""
        numbers = {
            name: values
            for name, values in self.infos.items()
            if all(isinstance(value, (int, float)) for value in values)
        }
        return ScoredAnswers(self.sources, self.uids, numbers)

    def repeated(self) -> "ScoredAnswers":
        """Return each answer as often as it was scored (`num_rows`): equal prompts are answered once for all rows."""
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

    def means(self) -> dict[str, float]:
        """Return `val/<name>`, the mean of each number, and `val/<name>_se`, its standard error over prompts.

        There are no errors for a single prompt.
        """
        prompts = self.uids if self.prompts is None else self.prompts
        means = {f"val/{name}": float(np.mean(values)) for name, values in self.infos.items()}
        if len(set(prompts)) > 1:
            errors = error_of_mean(np.array(list(self.infos.values()), dtype=float).T, prompts)
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
    """Return verl's metrics of the numbers among the infos, and `ScoredAnswers.means`.

    Args:
        verls_metrics: verl's `_val_metrics_update`, which gets the further arguments.
        sources: data source of each answer.
        uids: prompt of each answer.
        infos: name -> a value per answer.
    """
    answers = ScoredAnswers(list(sources), list(uids), infos).numbers_only().repeated()
    return verls_metrics(answers.sources, answers.uids, answers.infos, *args, **kwargs) | answers.means()


def validate_directly(engine: Any) -> dict[str, float] | None:
    """Validate without TransferQueue: the answers come back from the agent-loop workers.

    Returns:
        verl's metrics and ours; None when a prompt needs verl's way.
    """
    if engine.validation_samples is None:  # the same every time
        engine.validation_samples = [sample for columns in engine.val_dataloader for sample in split_batch(columns)]
    agent = engine.config.actor_rollout_ref.rollout.agent.default_agent_loop
    samples = [{"agent_name": agent, **sample, "uid": uuid4().hex} for sample in engine.validation_samples]
    answers = engine.agent_loop_manager.validate(samples, engine.global_steps)
    if answers is None:
        return None
    sample_by_uid = {sample["uid"]: sample for sample in samples}
    rows = [(sample_by_uid[uid], answer) for uid, answer in answers]
    infos = collect_infos([answer for _, answer in rows])
    keep_generations(engine, rows, infos)
    uids = [sample["uid"] for sample, _ in rows]
    sources = [str(sample.get("data_source", "unknown")) for sample, _ in rows]
    turns = [answer.num_turns for _, answer in rows]
    counts = Counter(zip(sources, uids, strict=True))
    return engine._val_metrics_update(sources, uids, infos, turns, expected_acc_counts=counts)


def collect_infos(answers: list[AgentLoopOutput]) -> dict[str, list[Any]]:
    """Return what the reward function returned, by name: a value per answer, None where it has none."""
    reward_infos = [answer.extra_fields["reward_extra_info"] for answer in answers]
    infos: dict[str, list[Any]] = {"reward": [answer.reward_score for answer in answers]}
    for name in sorted({name for info in reward_infos for name in info}):
        infos[name] = [info.get(name) for info in reward_infos]
    return infos


def keep_generations(engine: Any, rows: list[tuple[dict[str, Any], AgentLoopOutput]], infos: dict[str, Any]) -> None:
    """Hand the answers to the trackers, and write them to trainer.validation_data_dir, as verl does."""
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
    """Return a collated batch of verl's data loader row by row, without its tensors.

    A small tensor is expensive to send, and neither reward nor rollout of text reads one (verl's collating wants a
    `dummy_tensor`).
    """
    columns = {name: values for name, values in columns.items() if not isinstance(values, torch.Tensor)}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
