"""A run on a cluster that is not here: steps, hours, memory, checkpoints, network, and where a step's time goes.

    N_NODES=4 TRAIN_BATCH_SIZE=256 python -m recipes.plan --model 8B --rows 400000
    TRAIN_FILE=data/sft_train.parquet python -m recipes.plan --recipe sft --gpu A100 data.max_length=2048

Reads the variables of the recipe, and Hydra overrides at the end. Nothing is measured here: a model of the time from
the constants that it prints, with where each comes from. docs/explanation/planning.md says what it leaves out.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from convrec.checkpoints.models import resolve_model
from convrec.errors import UserError
from recipes.launch.misspelt import misspelt_variables
from recipes.launch.recipe import RECIPES, Recipe
from recipes.launch.settings import complete_batch_size, compose_files
from recipes.planning import fitting, scale, table
from recipes.planning.constants import GPUS, Constant
from recipes.planning.models import KNOWN, ModelSize, known_size, planned_size
from recipes.planning.network import Cluster
from recipes.planning.plan import make_plan
from recipes.planning.run import Data
from recipes.planning.work import rows_of
from recipes.preflight.batch import check_batch, check_heads

GPUS_PER_NODE = 8  # where N_GPUS_PER_NODE does not say it: the machine here is not the cluster
RECIPE_NAMES = [recipe.name for recipe in RECIPES.values() if recipe.answers == "lists"]


def planned_config(recipe: Recipe, overrides: Sequence[str]) -> DictConfig:
    """As on a host with GPUs. Raises UserError for a variable, an override or a batch that cannot be used."""
    of_host = [f"{recipe.host_group}=gpu", f"trainer.n_gpus_per_node={GPUS_PER_NODE}"]
    config = compose_files(recipe, list(overrides), of_host)
    complete_batch_size(config)
    return config


def data_of(config: DictConfig, options: argparse.Namespace) -> Data:
    """Rows of the files that are here, where the command line does not say them."""
    rows, validation = options.rows, options.val_rows
    if rows is None and not config.trainer.total_training_steps:
        try:
            rows = rows_of(config)
        except FileNotFoundError as error:
            raise UserError(f"TRAIN_FILE={config.data.train_files}: no such file; name one, or say --rows") from error
    if validation is None:
        try:
            validation = rows_of(config, "val_files")
        except FileNotFoundError:
            print("validation is not counted: VAL_FILE is not here, and --val-rows not said", file=sys.stderr)
    lengths = [
        Constant(f"tokens of a {what}", value, "tokens", "given", f"--{what}-tokens") if value else None
        for what, value in (("prompt", options.prompt_tokens), ("response", options.response_tokens))
    ]
    return Data(rows or 0, validation or 0, *lengths)


def cluster_of(config: DictConfig, options: argparse.Namespace) -> Cluster:
    gpu, gpus = GPUS[options.gpu], config.trainer.n_gpus_per_node
    network = gpu.network
    if options.network_gbit:
        network = Constant(network.name, options.network_gbit * 1e9 / 8 / gpus, "bytes/s", "given", "--network-gbit")
    return Cluster(config.trainer.nnodes, gpus, gpu, network)


def named_size(config: DictConfig, recipe: Recipe, model: str | None) -> tuple[str, ModelSize]:
    """The model's name and its size. model: --model, in place of MODEL_PATH."""
    name = model or OmegaConf.select(config, recipe.requirements.model_key)
    size = known_size(name) or planned_size(resolve_model(name) if Path(name).exists() else name)
    if rollout := OmegaConf.select(config, "actor_rollout_ref.rollout"):
        check_heads(size.heads, rollout.tensor_model_parallel_size, name)
        if rollout.tensor_model_parallel_size > config.trainer.n_gpus_per_node:
            raise UserError(
                f"TENSOR_PARALLEL={rollout.tensor_model_parallel_size}: a replica over several nodes is not modelled; "
                f"at most N_GPUS_PER_NODE={config.trainer.n_gpus_per_node}"
            )
    return name, size


def answer(options: argparse.Namespace) -> str:
    """The plan, or the table, as text or JSON. Raises UserError."""
    if options.table and options.model:
        raise UserError(f"--model {options.model}: --table has every size; leave one of the two out")
    recipe = RECIPES[options.recipe]
    config = planned_config(recipe, options.overrides)
    cluster, needed = cluster_of(config, options), recipe.requirements
    if options.table:
        check_batch(config, cluster.gpus_per_node * max(scale.NODES))
        rows = list(scale.rows(config, cluster, data_of(config, options), needed))
        return json.dumps(table.scale_json(rows)) if options.json else "\n".join(table.scale_lines(rows))
    check_batch(config, cluster.gpus)
    name, size = named_size(config, recipe, options.model)
    plan = make_plan(config, size, cluster, data_of(config, options), needed)
    lacks = fitting.lacks(config, size, cluster, needed)
    remedies = fitting.remedies(config, size, cluster, needed) if lacks else []
    if options.json:
        return json.dumps(table.plan_json(plan, lacks, remedies))
    title = f"{recipe.title_of(config)} of {name}, {size.parameters:,} parameters, on {cluster.nodes} x "
    title += f"{cluster.gpus_per_node} {cluster.gpu.name}: a model of the time, not a measurement"
    return "\n".join([title, *table.plan_lines(plan, lacks, remedies)])


def _positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    def positive_number(text: str) -> float:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"{text}: more than 0")
        return value

    return positive_number


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m recipes.plan", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recipe", choices=RECIPE_NAMES, default="rank_grpo", help="what is trained")
    parser.add_argument("--model", help=f"{', '.join(KNOWN)}, a Hugging Face id or a folder (MODEL_PATH)")
    parser.add_argument("--gpu", choices=sorted(GPUS), default="H100", help="the kind of GPU")
    parser.add_argument("--network-gbit", type=_positive(float), help="of a node, Gbit/s (an adapter a GPU, as in DGX)")
    parser.add_argument("--rows", type=_positive(int), help="rows of training (those of TRAIN_FILE)")
    parser.add_argument("--val-rows", type=_positive(int), help="rows of validation (those of VAL_FILE)")
    parser.add_argument("--prompt-tokens", type=_positive(float), help="of a prompt, in the mean (400)")
    parser.add_argument("--response-tokens", type=_positive(float), help="of a response, in the mean (9.9 an item)")
    parser.add_argument("--table", action="store_true", help=f"{', '.join(KNOWN)} on 1 to {scale.NODES[-1]} nodes")
    parser.add_argument("--json", action="store_true", help="JSON instead of text")
    parser.add_argument("overrides", nargs="*", default=[], help="Hydra overrides, after the options")
    options = parser.parse_args()
    for warning in misspelt_variables(os.environ):
        print(f"warning: {warning}", file=sys.stderr)
    try:
        print(answer(options), flush=True)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `| head`; the interpreter would say so once more when it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return 0


if __name__ == "__main__":
    sys.exit(main())
