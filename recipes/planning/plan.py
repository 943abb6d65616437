"""Plan a run on a cluster: its steps, the time of a step by part, and the memory of a GPU, a host and a disk."""

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
from recipes.planning.models import read_model_size
from recipes.planning.step_time import received_bytes, step_parts
from recipes.planning.work import count_checkpoints, count_training_rows, count_training_steps, count_validation_rows


def make_plan(
    run: Run[TrainingConfig], workload: Workload, gpu: GPU, rows: int, validation_rows: int
) -> dict[str, Any]:
    """Return the figures of a plan.

    Args:
        run: a run with a batch size.
        workload: the run's workload.
        gpu: the GPU of every node.
        rows: rows of the training data.
        validation_rows: rows of the validation data; 0 if unknown, and then not counted.

    Returns:
        Title of a section -> its figures by name: numbers, or ranges (fast, slow).

    Raises:
        UserError: the run is too small for a step, or of a kind that the plan does not support.
    """
    _check_supported(run, workload)
    if workload.tensor_parallel:
        has_old = not (run.rollout_correction.bypass or is_on_policy(run.verl_config))
        workload = replace(workload, passes=workload.has_reference + has_old)
    steps = count_training_steps(run, rows)
    if not steps:
        raise UserError(
            "plan.too-few-rows",
            f"TRAIN_BATCH_SIZE={workload.prompts}: {rows:,} rows do not fill a batch: lower it, or raise --rows",
        )
    num_written, num_kept = count_checkpoints(run, steps)
    # The last step is always validated in SFT; in RL only if validation is on.
    test_freq = run.settings.test_freq
    max_rows = run.max_validation_rows
    validations = -(-steps // test_freq) if test_freq > 0 else int(not workload.tensor_parallel)
    validated_rows = min(validation_rows, max_rows) if max_rows > 0 else validation_rows

    validations_per_step = validations / steps if validated_rows else 0.0
    parts = step_parts(workload, gpu, num_written / steps, validations_per_step, validated_rows)
    step = np.sum(list(parts.values()), axis=0)
    hours = (START_SECONDS.range * bool(workload.tensor_parallel) + steps * step) / 3600
    training, sampling = estimate.gpu_parts(workload, gpu.memory)
    checkpoint = estimate.checkpoint_bytes(workload.size) / GIB
    shortages = estimate.find_shortages(workload, gpu.memory)
    return {
        "parameters": workload.size.parameters,
        "work": {
            "steps": steps,
            "hours": hours.tolist(),
            "checkpoints": num_written,
            "validations": validations,
            "tokens of a prompt": workload.prompt,
            "tokens of a response": workload.response,
        },
        "seconds of a step": {name: part.tolist() for name, part in (parts | {"a step": step}).items()},
        "GiB of a GPU in training": _in_gib(training),
        "GiB of a GPU in sampling": _in_gib(sampling),
        "storage and network": {
            "a checkpoint, GiB": checkpoint,
            "kept at once, GiB": num_kept * checkpoint,
            "written a day, GiB": (num_written * checkpoint * 24 / hours).tolist(),
            "host memory of the first node for it, GiB": estimate.EXPORT_BYTES * workload.size.parameters / GIB,
            "a GPU receives in a step, GiB": received_bytes(workload) / GIB,
        },
        "lacks": [*shortages],
        "constants": [asdict(constant) for constant in (*CONSTANTS, gpu.training_share)],
    }


def _check_supported(run: Run[TrainingConfig], workload: Workload) -> None:
    if not run.uses_gpu:
        raise UserError("plan.unsupported-run", "trainer.device=cpu: convrec plan is for GPUs")
    if workload.size.experts > 1:
        raise UserError(
            "plan.unsupported-run",
            f"the model is a mixture of {workload.size.experts} experts, which a plan does not support: use a dense "
            "--model",
        )
    if workload.gpus % workload.sharing:
        raise UserError(
            "plan.indivisible-sharding",
            f"fsdp_size={workload.sharing} does not divide the {workload.gpus} GPUs: choose a divisor",
        )
    if not run.colocates_rollout:
        raise UserError(
            "plan.unsupported-run",
            "+scale=separate_async: a plan does not support a rollout on separate GPUs: plan without it",
        )
    if isinstance(run.settings, JudgeConfig):
        raise UserError("plan.unsupported-run", "a plan does not support judges: the length of verdicts is unknown")


def _in_gib(parts: Mapping[str, int]) -> dict[str, float]:
    gib = {name: part / GIB for name, part in parts.items() if part}
    return gib | {"in all": sum(gib.values())} if gib else {}


def plan_lines(plan: Mapping[str, Any]) -> list[str]:
    """Format a plan as lines: its sections, what does not fit, and the constants that it is based on."""
    lines = []
    for title, figures in plan.items():
        if isinstance(figures, dict) and figures:
            lines += ["", title, *(f"  {name:42}{shown(figure):>18}" for name, figure in figures.items())]
    lines += ["", f"does not fit: {'; '.join(plan['lacks'])}" if plan["lacks"] else "fits"]
    if plan["lacks"]:
        lines.append("  try: more N_NODES or TENSOR_PARALLEL, fewer tokens per micro-batch, or offloading")
    lines += ["", "based on (optimistic to pessimistic)"]
    for constant in plan["constants"]:
        ends = shown([constant["fast"], constant["slow"]])
        lines.append(f"  {constant['name']}: {ends} {constant['unit']}".rstrip() + f" ({constant['source']})")
    return lines


def shown(figure: int | float | Sequence[float]) -> str:
    """Format a figure: counts in full, other numbers with 3 digits, ranges with 2: `15,958`, `7.36`, `3.5 to 8.5`."""
    if isinstance(figure, int):
        return f"{figure:,}"
    digits, ends = (3, [figure]) if isinstance(figure, float) else (2, figure)
    return " to ".join(f"{float(f'{end:.{digits}g}'):,.12g}" for end in ends)


def summarize_plan(run: Run[TrainingConfig]) -> list[str]:
    """Return the plan's lines of a dry run: steps, checkpoints and, on GPUs, hours.

    Args:
        run: a run whose data files exist.
    """
    rows = count_training_rows(run)
    steps = count_training_steps(run, rows)
    test_freq = run.settings.test_freq
    num_written, num_kept = count_checkpoints(run, steps)
    validations = f"a validation every {test_freq} steps" if test_freq > 0 else "no validation during training"
    lines = [f"steps: {steps:,} of {run.train_batch_size:,} rows out of {rows:,}; {validations}"]
    checkpoints = f"checkpoints: {num_written}, {num_kept} of them kept"
    try:
        size = read_model_size(run.settings.model)
    except (OSError, ValueError):
        return [*lines, f"{checkpoints}; their size is unknown, because the model is not here"]
    gib = estimate.checkpoint_bytes(size) / GIB
    lines.append(f"{checkpoints}: {gib:.2f} GiB each, {num_kept * gib:.1f} in all")
    workload = estimate.make_workload(run, size)
    try:
        plan = make_plan(run, workload, H100, rows, count_validation_rows(run))
    except UserError:  # a run that a plan does not support
        return lines
    figures = f"{shown(plan['work']['hours'])} hours, {shown(plan['seconds of a step']['a step'])} s per step"
    return [*lines, f"time: {figures}, modelled for H100s and not measured (`convrec plan` prints the assumptions)"]
