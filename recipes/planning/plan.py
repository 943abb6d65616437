"""A run on a cluster that is not here, in figures: its work, a step's time by part, what a GPU and a disk hold."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from omegaconf import DictConfig

from convrec.errors import UserError
from convrec.rank_grpo.on_policy import is_on_policy
from recipes.planning import estimate
from recipes.planning.estimate import GIB, Run
from recipes.planning.figures import CONSTANTS, GPU, H100, START_SECONDS
from recipes.planning.models import model_size
from recipes.planning.step_time import received_bytes, step_parts
from recipes.planning.work import checkpoints_of, model_of, rows_of, steps_of


def make_plan(config: DictConfig, run: Run, gpu: GPU, rows: int, validation_rows: int) -> dict[str, Any]:
    """Sections of figures by name: numbers, and ranges of two from fast to slow.

    config: the run's, complete. validation_rows: 0 where they are unknown, and not counted. Raises UserError for what a
    plan does not model.
    """
    if run.device == "cpu":
        raise UserError("trainer.device=cpu: a plan is for GPUs")
    if run.size.experts > 1:
        raise UserError(f"a mixture of {run.size.experts} experts, which a plan does not model: give a dense --model")
    if run.gpus % run.sharing:
        raise UserError(f"fsdp_size={run.sharing} does not divide the {run.gpus} GPUs: choose a divisor")
    if run.tensor_parallel:
        if str(config.trainer.v1.trainer_mode).endswith("separate_async"):
            raise UserError("+scale=separate_async: rollout beside training is not modelled; plan without it")
        if config.convrec.get("num_items") is None:
            raise UserError("how long verdicts are is not modelled")
        has_old = not (config.algorithm.rollout_correction.bypass_mode or is_on_policy(config))
        run = replace(run, passes=run.has_reference + has_old)
    steps = steps_of(config, rows)
    if not steps:
        raise UserError(f"{rows:,} rows are not one step: TRAIN_BATCH_SIZE={run.prompts}; lower it (--rows)")
    written, kept = checkpoints_of(config, steps)
    # the last step is one of them; with -1 it is SFT's only one, and RL has none
    every, most = config.trainer.test_freq, config.data.get("val_max_samples", -1)
    validations = -(-steps // every) if every > 0 else int(not run.tensor_parallel)
    validated = min(validation_rows, most) if most > 0 else validation_rows

    parts = step_parts(run, gpu, written / steps, validations / steps if validated else 0.0, validated)
    step = np.sum(list(parts.values()), axis=0)
    hours = (START_SECONDS.range * bool(run.tensor_parallel) + steps * step) / 3600
    training, sampling = estimate.gpu_parts(run, gpu.memory)
    checkpoint, short = estimate.checkpoint_bytes(run.size) / GIB, estimate.lacks(run, gpu.memory)
    return {
        "parameters": run.size.parameters,
        "work": {
            "steps": steps,
            "hours": hours.tolist(),
            "checkpoints": written,
            "validations": validations,
            "tokens of a prompt": run.prompt,
            "tokens of a response": run.response,
        },
        "seconds of a step": {name: part.tolist() for name, part in (parts | {"a step": step}).items()},
        "GiB of a GPU in training": _in_gib(training),
        "GiB of a GPU in sampling": _in_gib(sampling),
        "storage and network": {
            "a checkpoint, GiB": checkpoint,
            "kept at once, GiB": kept * checkpoint,
            "written a day, GiB": (written * checkpoint * 24 / hours).tolist(),
            "host memory of the first node for it, GiB": estimate.EXPORT_BYTES * run.size.parameters / GIB,
            "a GPU receives in a step, GiB": received_bytes(run) / GIB,
        },
        "lacks": [*short],
        "constants": [asdict(constant) for constant in (*CONSTANTS, gpu.training_share)],
    }


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


def summary(config: DictConfig) -> list[str]:
    """Of a dry run: steps, checkpoints and, on GPUs, hours. The files of the config are there (Recipe.check)."""
    rows = rows_of(config)
    steps = steps_of(config, rows)
    batch, test = config.data.train_batch_size, config.trainer.test_freq
    written, kept = checkpoints_of(config, steps)
    validations = f"a validation every {test} steps" if test > 0 else "no validation on the way"
    text = [f"steps: {steps:,} of {batch:,} rows out of {rows:,}; {validations}"]
    try:
        size = model_size(model_of(config))
    except (OSError, ValueError):
        return [*text, f"checkpoints: {written}, {kept} of them kept; the model is not here, so their size is unknown"]
    each = estimate.checkpoint_bytes(size) / GIB
    text.append(f"checkpoints: {written}, {kept} of them kept: {each:.2f} GiB each, {kept * each:.1f} in all")
    try:
        plan = make_plan(config, estimate.run_of(config, size), H100, rows, rows_of(config, "val_files"))
    except UserError:  # what a plan does not model
        return text
    figures = f"{shown(plan['work']['hours'])} hours, {shown(plan['seconds of a step']['a step'])} s a step"
    return [*text, f"time: {figures}, by a model of H100s, not a measurement (convrec plan says what it rests on)"]
