"""Estimate a run on any cluster: steps, hours, memory, checkpoints, network, and the parts of a step's time.

Nothing is measured; the estimate is computed from the ranges that it prints. docs/explanation/planning.md
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from convrec.base.errors import UserError
from convrec.base.options import command
from convrec.checkpoints.models import resolve_model, split_choice
from convrec.settings.run import Run
from convrec.settings.training import TrainingConfig
from recipes.launch.recipe import RECIPES, Recipe
from recipes.launch.settings import complete_batch_size, compose_files
from recipes.launch.variables import find_misspelt_variables
from recipes.options.plan import PlanOptions
from recipes.planning.estimate import make_workload
from recipes.planning.figures import GPUS
from recipes.planning.models import KNOWN_MODELS, read_model_size
from recipes.planning.plan import make_plan, plan_lines
from recipes.planning.work import count_training_rows, count_validation_rows
from recipes.preflight.batch import check_batch, check_heads

GPUS_PER_NODE = 8  # unless N_GPUS_PER_NODE is set: this machine is not the cluster


def compose_planned_run(recipe: Recipe, overrides: Sequence[str]) -> Run[TrainingConfig]:
    """Compose a run as on a host with GPUs.

    Args:
        recipe: the recipe.
        overrides: of its command line; without N_GPUS_PER_NODE a node has GPUS_PER_NODE GPUs.

    Raises:
        UserError: a variable, an override or the batch size is wrong.
    """
    host_overrides = [f"{recipe.host_group}=gpu", f"trainer.n_gpus_per_node={GPUS_PER_NODE}"]
    config = compose_files(recipe, list(overrides), host_overrides)
    complete_batch_size(config)
    return Run.from_config(config)


def count_rows(run: Run[TrainingConfig], options: PlanOptions) -> tuple[int, int]:
    """Return the rows of training and of validation, from the options or else from the files on this machine.

    Args:
        run: the run.
        options: of the command.

    Returns:
        Both numbers. That of training is 0 if nobody needs it, because TOTAL_STEPS is set; that of validation is 0 if
        it is unknown, which is printed.

    Raises:
        UserError: the training file is needed and is missing, or a file is not parquet.
    """
    rows = options.rows or 0
    validation = options.val_rows or 0
    try:
        rows = rows or (0 if run.settings.total_steps else count_training_rows(run))
    except FileNotFoundError as error:
        raise UserError(
            "plan.missing-train-file", f"TRAIN_FILE={run.settings.train_file}: no such file. Name one, or set --rows."
        ) from error
    try:
        validation = validation or count_validation_rows(run)
    except FileNotFoundError:
        print("validation is not included: no VAL_FILE here, and no --val-rows", file=sys.stderr)
    return rows, validation


def format_plan(options: PlanOptions) -> str:
    """Compute a plan, and format it as text or JSON.

    Raises:
        UserError: the run cannot be planned: a setting, the model or the training file is wrong.
    """
    recipe = RECIPES[options.recipe]
    run = compose_planned_run(recipe, options.overrides)
    gpu = GPUS[options.gpu]
    nodes = run.settings.num_nodes
    gpus = run.gpus_per_node
    if options.network_gbit:
        gpu = replace(gpu, network=options.network_gbit * 1e9 / 8 / gpus)
    check_batch(run)
    rows = count_rows(run, options)
    name = options.model or run.settings.model
    try:
        size = read_model_size(resolve_model(name) if Path(split_choice(name)[0]).exists() else name)
    except (OSError, ValueError) as error:
        raise UserError(
            "plan.unusable-model",
            f"{error}. Name a folder with a config.json, or one of {', '.join(KNOWN_MODELS)} (--model).",
        ) from error
    workload = make_workload(run, size, options.prompt_tokens, options.response_tokens)
    if workload.tensor_parallel:
        check_heads(size.heads, workload.tensor_parallel, name)
    if workload.tensor_parallel > gpus:
        raise UserError(
            "plan.replica-across-nodes",
            f"TENSOR_PARALLEL={workload.tensor_parallel}: replicas across nodes are not modelled. Use at most "
            f"N_GPUS_PER_NODE={gpus}.",
        )
    plan = make_plan(run, workload, gpu, *rows)
    if options.json:
        return json.dumps(plan)
    title = f"{recipe.describe_method(run)} of {name}, {size.parameters:,} parameters, on {nodes} x {gpus} {gpu.name}"
    return "\n".join([f"{title}: an estimate, not a measurement", *plan_lines(plan)])


@command(PlanOptions)
def main(options: PlanOptions) -> int:
    """Print a plan; return the exit status."""
    for warning in find_misspelt_variables(os.environ):
        print(f"warning: {warning}", file=sys.stderr)
    print(format_plan(options), flush=True)
    return 0
