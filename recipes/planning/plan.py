"""A run in figures, each with what it rests on: work, time, memory, storage, network."""

from collections.abc import Callable
from dataclasses import dataclass

from omegaconf import DictConfig

from convrec.errors import UserError
from recipes.planning import constants, estimate, step_time, work
from recipes.planning.constants import Constant, recorded
from recipes.planning.estimate import Requirements
from recipes.planning.figures import Figure, figure, total
from recipes.planning.models import ModelSize
from recipes.planning.network import Cluster, received
from recipes.planning.run import Data, Run, rollout_of, run_of
from recipes.planning.step_time import Batch

DAY = 86_400


@dataclass(frozen=True)
class Plan:
    """phases: seconds of a step, what comes now and then as its share of one. training, sampling: memory of a GPU while
    it does that; sampling is empty in SFT."""

    run: Run
    work: list[Figure]
    phases: list[Figure]
    training: list[Figure]
    sampling: list[Figure]
    storage: list[Figure]
    network: list[Figure]

    @property
    def sections(self) -> dict[str, list[Figure]]:
        names = ("work", "phases", "training", "sampling", "storage", "network")
        return {name: getattr(self, name) for name in names}

    @property
    def step(self) -> Figure:
        return total("a step", self.phases)

    @property
    def hours(self) -> Figure:
        return next(entry for entry in self.work if entry.name == "hours")


def make_plan(config: DictConfig, size: ModelSize, cluster: Cluster, data: Data, requirements: Requirements) -> Plan:
    """config: complete, of one of the recipes whose requirements these are. Raises UserError as run_of does."""
    with recorded() as lengths:
        run = run_of(config, size, cluster, data)
    steps = work.steps_of(config, data.rows)
    if not steps:
        raise UserError(
            f"{data.rows:,} rows are not one step: TRAIN_BATCH_SIZE={config.data.train_batch_size}; lower it (--rows)"
        )
    written, kept = work.checkpoints_of(config, steps)
    every = config.trainer.test_freq
    # the last step is one of them; with -1 it is SFT's only one, and RL has none
    validations = -(-steps // every) if every > 0 else int(run.rollout is None)
    validated = validations / steps if data.validation_rows else 0.0
    phases = _phases(run, lengths, written / steps, validated)
    step = total("a step", phases)
    start = figure("start", "s", lambda: constants.START_SECONDS() if run.rollout else 0.0)
    hours = Figure("hours", (start.value + steps * step.value) / 3600, "", step.constants | start.constants)
    counted = [
        Figure("steps", steps, ""),
        hours,
        Figure("checkpoints", written, ""),
        Figure("validations", validations, ""),
    ]
    training, sampling = memory(config, size, cluster, requirements)
    storage = _storage(run, step, kept, written / steps)
    return Plan(run, counted, phases, training, sampling, storage, _network(run, lengths))


def _phases(run: Run, lengths: set[Constant], saved: float, validated: float) -> list[Figure]:
    """saved, validated: checkpoints and validations of a step."""
    cluster, size, batch, training, rollout = run.cluster, run.size, run.batch, run.training, run.rollout

    def phase(name: str, compute: Callable[[], float]) -> Figure:
        return figure(name, "s", compute, besides=lengths)

    def update() -> float:
        return step_time.update_seconds(cluster, size, batch, training)

    def checkpoint() -> float:
        return saved * step_time.checkpoint_seconds(cluster, size)

    def log_probs(of: Batch) -> float:
        return step_time.log_prob_seconds(cluster, size, of, training)

    if rollout is None:
        return [
            phase("update", update),
            figure("checkpoint", "s", checkpoint),
            phase("validation", lambda: validated * log_probs(run.validation)),
        ]

    def validation() -> float:
        prefill = step_time.prefill_seconds(cluster, size, run.validation, rollout)
        return validated * (prefill + step_time.decode_seconds(cluster, size, run.validation, rollout))

    return [
        phase("prefill", lambda: step_time.prefill_seconds(cluster, size, batch, rollout)),
        phase("decode", lambda: step_time.decode_seconds(cluster, size, batch, rollout)),
        phase("old log-probs", lambda: log_probs(batch) if run.has_old else 0.0),
        phase("reference", lambda: log_probs(batch) if run.has_reference else 0.0),
        phase("update", update),
        figure("weight sync", "s", lambda: step_time.sync_seconds(cluster, size, training)),
        figure("checkpoint", "s", checkpoint),
        phase("validation", validation),
        figure("driver", "s", lambda: step_time.driver_seconds(batch)),
    ]


def memory(
    config: DictConfig, size: ModelSize, cluster: Cluster, requirements: Requirements
) -> tuple[list[Figure], list[Figure]]:
    """(while it trains, while it samples), of a GPU. The second is empty in SFT."""
    with recorded() as used:
        needs = requirements.needs(config, size)
    parts = [
        Figure(name, part, "bytes", frozenset(used if name == "process" else ()))
        for name, part in needs.training_parts.items()
        if part
    ]
    if "actor_rollout_ref" not in config:
        return parts, []
    parts.append(figure("vLLM asleep", "bytes", constants.ASLEEP_BYTES))
    rollout = rollout_of(config)
    return parts, [
        Figure("training state", estimate.resident_bytes(config, needs.training_parts), "bytes"),
        Figure("vLLM's weights", needs.rollout_weights, "bytes"),
        figure("vLLM besides", "bytes", constants.VLLM_BYTES),
        figure("cache", "bytes", lambda: max(0.0, step_time.cache_bytes(cluster, size, rollout))),
    ]


def _storage(run: Run, step: Figure, kept: int, saved: float) -> list[Figure]:
    size = run.size
    checkpoint = estimate.checkpoint_bytes(size)
    return [
        Figure("a checkpoint", checkpoint, "bytes"),
        figure("seconds to write it", "s", lambda: step_time.checkpoint_seconds(run.cluster, size)),
        Figure("kept at once", kept * checkpoint, "bytes"),
        Figure("written a day", saved * checkpoint * DAY / step.value, "bytes/day", step.constants),
        Figure("host memory of the first node for it", estimate.EXPORT_BYTES * size.parameters, "bytes"),
    ]


def _network(run: Run, lengths: set[Constant]) -> list[Figure]:
    """What a GPU receives; in rings as much enters each node, where sharing goes over several. lengths: micro-batches
    follow from them."""
    step = (run.cluster, run.size, run.batch, run.training)
    sharing = run.training.sharing
    updates = received(step_time.update_bytes(*step), sharing) + step_time.copied_bytes(*step)
    figures = [Figure("update", updates, "bytes", frozenset(lengths))]
    if run.has_old or run.has_reference:
        log_probs = received(step_time.forward_bytes(*step), sharing)
        figures.append(Figure("a pass of log-probs", log_probs, "bytes", frozenset(lengths)))
    if run.rollout:
        synced = received(step_time.sync_bytes(run.size, run.training), sharing)
        figures.append(Figure("weight sync", synced, "bytes"))
    return figures
