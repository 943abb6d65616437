"""A recipe's settings: verl's, the differences in conf/, the defaults of ours in convrec.settings, the host's, then
environment variables, then command-line overrides. conf/<recipe>.yaml has the order of the first four."""

import os
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from convrec.base import gpus, kinds
from convrec.base.errors import UserError
from convrec.base.fields import OURS, Settings, rows_by_key
from convrec.base.files import write_text
from convrec.base.shipped import CONF
from convrec.checkpoints import hub
from convrec.checkpoints.files import has_weights
from convrec.checkpoints.logits import model_settings
from convrec.checkpoints.models import resolve_model, split_choice
from convrec.inference.engines.engine_settings import ONE_PROCESS
from convrec.runs.folder import latest_step, parse_step, read_config, setting
from convrec.settings import secrets
from convrec.settings.rank_grpo import ALGORITHM_GROUP, default_matching
from convrec.settings.run import AUTO, Run, find_model_key
from convrec.settings.sft import SEQUENCES_PER_DEVICE
from convrec.settings.training import default_run_folder
from recipes.launch.recipe import RECIPES, Recipe
from recipes.launch.variables import overrides_from_environment
from recipes.preflight.cores import needed_slots, uses_ray

VERL_CONF = Path(find_spec("verl").origin).parent / "trainer" / "config"  # type: ignore[union-attr,arg-type]


# `${quarter:...}` in conf/: a fourth where it divides, else all
OmegaConf.register_new_resolver("quarter", lambda size: size // 4 if size % 4 == 0 else size, replace=True)


def compose(name: str, arguments: list[str]) -> Run[Any]:
    """Return a run that starts here, with an absolute run folder, a model in Hugging Face form and its trackers.

    Args:
        name: a key of RECIPES.
        arguments: overrides of the command line.

    Raises:
        UserError: A variable or an override cannot be used.
    """
    recipe = RECIPES[name]
    config = compose_files(recipe, arguments, None)
    with open_dict(config):
        _complete(config, recipe)
    return Run.from_config(config)


def compose_elsewhere(
    recipe: Recipe,
    arguments: Sequence[str],
    host_overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Run[Any]:
    """Return a run that another process starts, maybe on another machine: what depends on it is left open.

    Arguments and errors are those of `compose_files`.
    """
    return Run.from_config(compose_files(recipe, arguments, host_overrides, environment))


def compose_files(
    recipe: Recipe,
    arguments: Sequence[str],
    host_overrides: Sequence[str] | None = (),
    environment: Mapping[str, str] | None = None,
) -> DictConfig:
    """Compose the recipe's file with the host's overrides, the variables and these arguments, and check their kinds.

    Args:
        recipe: whose file.
        arguments: overrides of the command line.
        host_overrides: None: those of this machine.
        environment: what has the variables; None: this process's.

    Returns:
        The config, as verl reads it.

    Raises:
        UserError: A variable, an override or a setting cannot be used.
    """
    secrets.refuse_secrets(arguments)
    # a wrong one at once: what follows imports torch
    variables = overrides_from_environment(recipe, os.environ if environment is None else environment)
    if host_overrides is None:
        accelerators = gpus.usable_gpus()
        host_overrides = [f"{recipe.host_group}={'gpu' if accelerators else 'cpu'}"]
        host_overrides += [f"trainer.n_gpus_per_node={accelerators}"] if accelerators else []
    register_defaults()
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException

    # as a path: for `pkg://`, which the files have, Hydra imports verl, and torch with it
    known = [f"hydra.searchpath=['file://{VERL_CONF}']", *host_overrides]
    with initialize_config_dir(str(CONF), version_base=None):
        try:
            config = hydra_compose(recipe.name, [*known, *variables, *arguments], return_hydra_config=True)
        except (HydraException, OmegaConfBaseException, ValueError) as error:  # ValueError: of `data=null`
            from recipes.launch.hydra_errors import explain

            raise UserError(explain(error, lambda: hydra_compose(recipe.name, known))) from error
    with open_dict(config):
        config.run = {"recipe": recipe.name, "algorithm": config.pop("hydra").runtime.choices.get(ALGORITHM_GROUP)}
    check(config, recipe)
    return config


@cache
def register_defaults() -> None:
    """Have Hydra know the defaults of each recipe's settings as `settings/<recipe>`, which conf/<recipe>.yaml names."""
    from hydra.core.config_store import ConfigStore

    for recipe in RECIPES.values():
        node = OmegaConf.create(default_values(recipe.settings))
        ConfigStore.instance().store(group="settings", name=recipe.name, node=node, package="_global_")


def default_values(settings: type[Settings]) -> dict[str, Any]:
    """Return the defaults of a recipe's settings, nested as in the config of a run."""
    config: dict[str, Any] = {}
    for key, row in rows_by_key(settings).items():
        if not row.has_default:
            continue
        *sections, name = key.split(".")
        section = config
        for word in sections:
            section = section.setdefault(word, {})
        section[name] = row.default
    return config


def check(config: DictConfig, recipe: Recipe) -> None:
    """Raise UserError for a setting of the table that is not of its kind, and for one below `convrec` that is none."""
    for key, row in recipe.rows.items():
        value = config.run.algorithm if key == ALGORITHM_GROUP else _value(config, key)
        if not row.takes(value):
            variable = f" ({row.setting.variable})" if row.setting.variable else ""
            or_null = ", or null" if row.setting.null else ""
            raise UserError(f"{key}={kinds.shown(value)}{variable}: expected {kinds.wanted(row.kind)}{or_null}")
    ours = [key.removeprefix(OURS) for key in recipe.rows if key.startswith(OURS)]
    for name in config.convrec:
        if name not in ours:
            raise UserError(f"{OURS}{name}: no such setting; {kinds.did_you_mean(str(name), ours, OURS)}")


def _value(config: DictConfig, key: str) -> Any:
    section = key.partition(".")[0]
    try:
        if not OmegaConf.is_dict(config[section]):
            value = kinds.shown(config[section])
            raise UserError(f"{section}={value}: it is a section: set what is below it, {key} say")
        value = OmegaConf.select(config, key, default=...)
    except OmegaConfBaseException as error:  # ${NAME} of something that is no setting
        raise UserError(f"{key}: {str(error).splitlines()[0]}") from error
    if value is ...:
        raise UserError(f"{key}: missing; leave ~{key} out")
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def _complete(config: DictConfig, recipe: Recipe) -> None:
    """Write into the config what depends on the model, the machine and the run's folder."""
    model_key = find_model_key(config)
    model = str(OmegaConf.select(config, model_key))
    trainer = config.trainer
    if trainer.default_local_dir is None:
        trainer.default_local_dir = default_run_folder(recipe.name, model)
    check_run_folder(Path(trainer.default_local_dir), model)
    OmegaConf.update(config, model_key, resolve_model(model))
    trainer.experiment_name = f"{recipe.name}-{Path(trainer.default_local_dir).name}"
    trainer.test_freq = trainer.test_freq or -1  # 0 is as much as never: verl's SFT divides by it
    trainer.logger = _trackers(trainer.logger)
    if config.convrec.get("matching", "") is None:
        config.convrec.matching = default_matching(config.convrec.preset)
    _complete_batch_size(config)
    if trainer.device != "cpu" and not find_spec("flash_attn"):
        _choose_attention(OmegaConf.select(config, model_key.removesuffix(".path")))
    if "actor_rollout_ref" in config:
        _complete_rollout(config)
    _complete_slots(config)


def check_run_folder(run_folder: Path, model: str) -> None:
    """Raise UserError for a run folder in which training would write among the files of a model.

    Args:
        run_folder: of the run, which may not exist yet.
        model: that it starts from, as the user has named it: an id of the Hub, or a folder.
    """
    folder = run_folder.resolve()
    checkpoint = next((part for part in (folder, *folder.parents) if parse_step(part) is not None), None)
    problem = None
    start = split_choice(model)[0]
    if hub.is_folder(start) and folder == Path(start).expanduser().resolve():
        problem = "it is MODEL_PATH, the model that the run starts from"
    elif checkpoint:
        problem = f"it is inside the checkpoint {checkpoint}"
    elif has_weights(folder):
        problem = "it holds the weights of a model"
    if problem:
        raise UserError(f"SAVE_PATH={run_folder}: {problem}: choose a folder for the run alone")


def _trackers(logger: str | Sequence[str]) -> list[str]:
    """The trackers of LOGGER, and those that need none."""
    trackers = [logger] if isinstance(logger, str) else list(logger)
    if os.environ.get("SWANLAB_API_KEY") and not os.environ.get("LOGGER"):
        trackers.append("swanlab")
    return [*dict.fromkeys([*trackers, "file"])]  # the reports read the file


def _complete_batch_size(config: DictConfig) -> None:
    """A run that is resumed keeps its batch, also where nobody says it."""
    run_folder = Path(config.trainer.default_local_dir)
    if config.data.train_batch_size is None and latest_step(run_folder):
        config.data.train_batch_size = setting(read_config(run_folder), "data.train_batch_size")
    complete_batch_size(config)


def _choose_attention(model: DictConfig) -> None:
    """For GPUs without flash-attn. It is built against the installed torch, so it cannot be among our dependencies."""
    attention = "varlen" if model.use_remove_padding else "sdpa"  # convrec.training.attention.varlen
    model.override_config.setdefault("attn_implementation", attention)


def _complete_slots(config: DictConfig) -> None:
    """Reserve logical slots of a Ray of this machine: verl would wait for ever for those that a small host lacks."""
    run = Run.from_config(config)
    if uses_ray(run) and not os.environ.get("RAY_ADDRESS"):
        ray_init = config.ray_kwargs.ray_init
        ray_init.num_cpus = max(ray_init.num_cpus or len(os.sched_getaffinity(0)), needed_slots(run).cpus)


def _complete_rollout(config: DictConfig) -> None:
    models = config.actor_rollout_ref
    models.actor.ppo_mini_batch_size = models.actor.ppo_mini_batch_size  # a number: the workers know no `quarter`
    if models.rollout.max_model_len is None:
        # vLLM would reserve a cache for the longest context that the model knows
        models.rollout.max_model_len = config.data.max_prompt_length + config.data.max_response_length
    if models.rollout.tensor_model_parallel_size == 1:
        # in vLLM's engine, not in a process of its own: it starts in three quarters of the time (notes/gpu.md)
        models.rollout.engine_kwargs.vllm.setdefault("distributed_executor_backend", ONE_PROCESS)
    if config.trainer.device == "cpu" and not models.model.lora_rank:
        _fit_weight_bucket(models)


def _fit_weight_bucket(models: DictConfig) -> None:
    """On a CPU weights reach the rollout through shared memory, which the largest of them must fit: the embedding."""
    model = model_settings(models.model.path)
    engine = models.rollout.checkpoint_engine
    size = 4 if models.rollout.dtype in ("float32", AUTO) else 2
    megabytes = -(-size * model.get("vocab_size", 0) * model.get("hidden_size", 0) // 2**20)
    engine.update_weights_bucket_megabytes = max(engine.update_weights_bucket_megabytes, megabytes)


def complete_batch_size(config: DictConfig) -> None:
    """SFT's batch grows with the devices where nobody has said it."""
    if config.data.train_batch_size is None:
        config.data.train_batch_size = SEQUENCES_PER_DEVICE * config.trainer.n_gpus_per_node * config.trainer.nnodes


def save_config(config: DictConfig, run_folder: Path) -> None:
    """Write RUN/config.yaml, with its secrets masked."""
    write_text(run_folder / "config.yaml", as_yaml(config))


def secrets_in(config: DictConfig) -> set[str]:
    """Return the secrets among the settings, also those that a setting takes from a variable.

    Raises:
        UserError: a setting names a variable that is not set, or another setting that is none.
    """
    try:
        return secrets.secret_values(OmegaConf.to_container(config, resolve=True))
    except OmegaConfBaseException as error:
        raise UserError(f"{error.full_key}: {str(error).splitlines()[0]}") from error


def as_yaml(config: DictConfig) -> str:
    """Return the settings before interpolation, as YAML, with its secrets masked."""
    return OmegaConf.to_yaml(secrets.mask_settings(OmegaConf.to_container(config, resolve=False)))
