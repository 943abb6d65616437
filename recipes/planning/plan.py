"""A run on a cluster that is not here, in figures: its work, a step's time by part, what a GPU and a disk hold."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from convrec.base.errors import UserError
from convrec.rank_grpo.on_policy import is_on_policy
from convrec.settings.judges import JudgeConfig
from convrec.settings.run import Run
from convrec.settings.training import TrainingConfig
from recipes.planning import estimate
from recipes.planning.estimate import GIB, Workload
from recipes.planning.figures import CONSTANTS, GPU, H100, START_SECONDS
from recipes.planning.models import model_size
from recipes.planning.step_time import received_bytes, step_parts
from recipes.planning.work import count_checkpoints, count_training_rows, count_training_steps, count_validation_rows


def make_plan(
    run: Run[TrainingConfig], workload: Workload, gpu: GPU, rows: int, validation_rows: int
) -> dict[str, Any]:
    """Sections of figures by name: numbers, and ranges of two from fast to slow.

    Args:
        run: its batch is known.
        workload: of the run.
        gpu: that every node has.
        rows: of the training data.
        validation_rows: 0 where they are unknown, and not counted.

    Raises:
        UserError: something that a plan does not model.
    """
    _check_modelled(run, workload)
    if workload.tensor_parallel:
        has_old = not (run.rollout_correction.bypass or is_on_policy(run.verl_config))
        workload = replace(workload, passes=workload.has_reference + has_old)
    steps = count_training_steps(run, rows)
    if not steps:
        raise UserError(f"{rows:,} rows are not one step: TRAIN_BATCH_SIZE={workload.prompts}; lower it (--rows)")
    written, kept = count_checkpoints(run, steps)
    # the last step is one of them; with -1 it is SFT's only one, and RL has none
    every = run.settings.test_freq
    most = run.max_validation_rows
    validations = -(-steps // every) if every > 0 else int(not workload.tensor_parallel)
    validated = min(validation_rows, most) if most > 0 else validation_rows

    parts = step_parts(workload, gpu, written / steps, validations / steps if validated else 0.0, validated)
    step = np.sum(list(parts.values()), axis=0)
    hours = (START_SECONDS.range * bool(workload.tensor_parallel) + steps * step) / 3600
    training, sampling = estimate.gpu_parts(workload, gpu.memory)
    checkpoint = estimate.checkpoint_bytes(workload.size) / GIB
    short = estimate.lacks(workload, gpu.memory)
    return {
        "parameters": workload.size.parameters,
        "work": {
            "steps": steps,
            "hours": hours.tolist(),
            "checkpoints": written,
            "validations": validations,
            "tokens of a prompt": workload.prompt,
            "tokens of a response": workload.response,
        },
        "seconds of a step": {name: part.tolist() for name, part in (parts | {"a step": step}).items()},
        "GiB of a GPU in training": _in_gib(training),
        "GiB of a GPU in sampling": _in_gib(sampling),
        "storage and network": {
            "a checkpoint, GiB": checkpoint,
            "kept at once, GiB": kept * checkpoint,
            "written a day, GiB": (written * checkpoint * 24 / hours).tolist(),
            "host memory of the first node for it, GiB": estimate.EXPORT_BYTES * workload.size.parameters / GIB,
            "a GPU receives in a step, GiB": received_bytes(workload) / GIB,
        },
        "lacks": [*short],
        "constants": [asdict(constant) for constant in (*CONSTANTS, gpu.training_share)],
    }


def _check_modelled(run: Run[TrainingConfig], workload: Workload) -> None:
    if not run.uses_gpu:
        raise UserError("trainer.device=cpu: a plan is for GPUs")
    if workload.size.experts > 1:
        raise UserError(
            f"a mixture of {workload.size.experts} experts, which a plan does not model: give a dense --model"
        )
    if workload.gpus % workload.sharing:
        raise UserError(f"fsdp_size={workload.sharing} does not divide the {workload.gpus} GPUs: choose a divisor")
    if not run.colocates_rollout:
        raise UserError("+scale=separate_async: rollout beside training is not modelled; plan without it")
    if isinstance(run.settings, JudgeConfig):
        raise UserError("how long verdicts are is not modelled")


def _in_gib(parts: Mapping[str, int]) -> dict[str, float]:
    held = {name: part / GIB for name, part in parts.items() if part}
    return held | {"in all": sum(held.values())} if held else {}


def plan_lines(plan: Mapping[str, Any]) -> list[str]:
    """A section of figures after the other, what does not fit, then what it rests on."""
    lines = []
    for title, figures in plan.items():
        if isinstance(figures, dict) and figures:
            lines += ["", title, *(f"  {name:42}{shown(figure):>18}" for name, figure in figures.items())]
    lines += ["", f"does not fit: {'; '.join(plan['lacks'])}" if plan["lacks"] else "fits"]
    if plan["lacks"]:
        lines.append("  try: more N_NODES or TENSOR_PARALLEL, fewer tokens a micro-batch, or offloading")
    lines += ["", "rests on, from what makes a run fast to what makes it slow"]
    for constant in plan["constants"]:
        ends = shown([constant["fast"], constant["slow"]])
        lines.append(f"  {constant['name']}: {ends} {constant['unit']}".rstrip() + f" ({constant['source']})")
    return lines


def shown(figure: int | float | Sequence[float]) -> str:
    """Counts whole, other numbers with three digits, ranges with two: `15,958`, `7.36`, `3.5 to 8.5`."""
    if isinstance(figure, int):
        return f"{figure:,}"
    digits, ends = (3, [figure]) if isinstance(figure, float) else (2, figure)
    return " to ".join(f"{float(f'{end:.{digits}g}'):,.12g}" for end in ends)


def summary(run: Run[TrainingConfig]) -> list[str]:
    """Of a dry run: steps, checkpoints and, on GPUs, hours. The files of the run are there (Recipe.check)."""
    rows = count_training_rows(run)
    steps = count_training_steps(run, rows)
    test = run.settings.test_freq
    written, kept = count_checkpoints(run, steps)
    validations = f"a validation every {test} steps" if test > 0 else "no validation on the way"
    text = [f"steps: {steps:,} of {run.train_batch_size:,} rows out of {rows:,}; {validations}"]
    try:
        size = model_size(run.settings.model)
    except (OSError, ValueError):
        return [*text, f"checkpoints: {written}, {kept} of them kept; the model is not here, so their size is unknown"]
    each = estimate.checkpoint_bytes(size) / GIB
    text.append(f"checkpoints: {written}, {kept} of them kept: {each:.2f} GiB each, {kept * each:.1f} in all")
    workload = estimate.make_workload(run, size)
    try:
        plan = make_plan(run, workload, H100, rows, count_validation_rows(run))
    except UserError:  # what a plan does not model
        return text
    figures = f"{shown(plan['work']['hours'])} hours, {shown(plan['seconds of a step']['a step'])} s a step"
    return [*text, f"time: {figures}, by a model of H100s, not a measurement (convrec plan says what it rests on)"]
