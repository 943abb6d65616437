"""Compose the settings of a run.

Later sources override earlier ones: verl's config, the differences in conf/, the defaults in convrec.settings, the
host's settings (conf/<recipe>.yaml has the order of these four), environment variables, command-line overrides.
"""

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
from recipes.preflight.cores import count_run_slots, uses_ray

VERL_CONF = Path(find_spec("verl").origin).parent / "trainer" / "config"  # type: ignore[union-attr,arg-type]


# `${quarter:...}` in conf/: a fourth of a number that is divisible by 4, else the number itself
OmegaConf.register_new_resolver("quarter", lambda size: size // 4 if size % 4 == 0 else size, replace=True)


def compose(name: str, arguments: list[str]) -> Run[Any]:
    """Compose a run that starts on this machine, with every setting that depends on the machine, model and folder.

    Args:
        name: a key of RECIPES.
        arguments: overrides of the command line.

    Raises:
        UserError: a variable or an override is wrong.
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
    """Compose a run that another process starts; settings that depend on its machine are left open.

    Args:
        recipe: see `compose_files`.
        arguments: see `compose_files`.
        host_overrides: see `compose_files`.
        environment: see `compose_files`.

    Raises:
        UserError: a variable, an override or a setting is wrong.
    """
    return Run.from_config(compose_files(recipe, arguments, host_overrides, environment))


def compose_files(
    recipe: Recipe,
    arguments: Sequence[str],
    host_overrides: Sequence[str] | None = (),
    environment: Mapping[str, str] | None = None,
) -> DictConfig:
    """Compose the recipe's file with the host's overrides, the variables and these arguments, and check the values.

    Args:
        recipe: the recipe of the file.
        arguments: overrides of the command line.
        host_overrides: overrides for the host; None chooses those of this machine.
        environment: the variables; None means those of this process.

    Returns:
        The config, as verl reads it.

    Raises:
        UserError: a variable, an override or a setting is wrong.
    """
    secrets.refuse_secrets(arguments)
    # first, so that an error in a variable does not wait for the import of torch
    variables = overrides_from_environment(recipe, os.environ if environment is None else environment)
    if host_overrides is None:
        accelerators = gpus.usable_gpus()
        host_overrides = [f"{recipe.host_group}={'gpu' if accelerators else 'cpu'}"]
        host_overrides += [f"trainer.n_gpus_per_node={accelerators}"] if accelerators else []
    register_defaults()
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException

    # a path, because Hydra imports verl, and with it torch, for the `pkg://` in the files
    base = [f"hydra.searchpath=['file://{VERL_CONF}']", *host_overrides]
    with initialize_config_dir(str(CONF), version_base=None):
        try:
            config = hydra_compose(recipe.name, [*base, *variables, *arguments], return_hydra_config=True)
        except (HydraException, OmegaConfBaseException, ValueError) as error:  # `data=null` raises ValueError
            from recipes.launch.hydra_errors import describe_override_error

            message = describe_override_error(error, lambda: hydra_compose(recipe.name, base))
            raise UserError("settings.wrong-override", message) from error
    with open_dict(config):
        config.run = {"recipe": recipe.name, "algorithm": config.pop("hydra").runtime.choices.get(ALGORITHM_GROUP)}
    check_config(config, recipe)
    return config


@cache
def register_defaults() -> None:
    """Register the defaults of each recipe with Hydra as `settings/<recipe>`, which conf/<recipe>.yaml includes."""
    from hydra.core.config_store import ConfigStore

    for recipe in RECIPES.values():
        node = OmegaConf.create(collect_defaults(recipe.settings))
        ConfigStore.instance().store(group="settings", name=recipe.name, node=node, package="_global_")


def collect_defaults(settings: type[Settings]) -> dict[str, Any]:
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


def check_config(config: DictConfig, recipe: Recipe) -> None:
    """Check the values of a recipe's settings, and that `convrec` has no unknown ones.

    Raises:
        UserError: a value is not of its setting's kind, or a setting is unknown.
    """
    for key, row in recipe.rows.items():
        value = config.run.algorithm if key == ALGORITHM_GROUP else _read_value(config, key)
        if not row.takes(value):
            variable = f" ({row.setting.variable})" if row.setting.variable else ""
            or_null = ", or null" if row.setting.null else ""
            raise UserError(
                "settings.wrong-value",
                f"{key}={kinds.to_yaml_scalar(value)}{variable}: expected {kinds.describe_type(row.kind)}{or_null}",
            )
    ours = [key.removeprefix(OURS) for key in recipe.rows if key.startswith(OURS)]
    for name in config.convrec:
        if name not in ours:
            raise UserError(
                "settings.unknown-key",
                f"{OURS}{name}: no such setting; {kinds.did_you_mean(str(name), ours, OURS)}",
            )


def _read_value(config: DictConfig, key: str) -> Any:
    section = key.partition(".")[0]
    try:
        if not OmegaConf.is_dict(config[section]):
            value = kinds.to_yaml_scalar(config[section])
            raise UserError("settings.section", f"{section}={value}: this is a section: set a key of it, such as {key}")
        value = OmegaConf.select(config, key, default=...)
    except OmegaConfBaseException as error:  # ${NAME} does not name a setting
        raise UserError("settings.unresolved", f"{key}: {str(error).splitlines()[0]}") from error
    if value is ...:
        raise UserError("settings.missing-key", f"{key}: missing: remove the override ~{key}")
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def _complete(config: DictConfig, recipe: Recipe) -> None:
    """Write the settings that depend on the model, the machine and the run's folder into the config."""
    model_key = find_model_key(config)
    model = str(OmegaConf.select(config, model_key))
    trainer = config.trainer
    if trainer.default_local_dir is None:
        trainer.default_local_dir = default_run_folder(recipe.name, model)
    check_run_folder(Path(trainer.default_local_dir), model)
    OmegaConf.update(config, model_key, resolve_model(model))
    trainer.experiment_name = f"{recipe.name}-{Path(trainer.default_local_dir).name}"
    trainer.test_freq = trainer.test_freq or -1  # 0 means never, but verl's SFT divides by it
    trainer.logger = _list_trackers(trainer.logger)
    if config.convrec.get("matching", "") is None:
        config.convrec.matching = default_matching(config.convrec.preset)
    _complete_batch_size(config)
    if trainer.device != "cpu" and not find_spec("flash_attn"):
        _choose_attention(OmegaConf.select(config, model_key.removesuffix(".path")))
    if "actor_rollout_ref" in config:
        _complete_rollout(config)
    _complete_slots(config)


def check_run_folder(run_folder: Path, model: str) -> None:
    """Check that training will not write among the files of a model.

    Args:
        run_folder: the run's folder, which may not exist yet.
        model: the starting model as the user named it: an id of the Hub, or a folder.

    Raises:
        UserError: the folder is a model, or part of a checkpoint.
    """
    folder = run_folder.resolve()
    checkpoint = next((part for part in (folder, *folder.parents) if parse_step(part) is not None), None)
    problem = None
    start = split_choice(model)[0]
    if hub.is_folder(start) and folder == Path(start).expanduser().resolve():
        problem = "this is MODEL_PATH, the model that the run starts from"
    elif checkpoint:
        problem = f"this folder is inside the checkpoint {checkpoint}"
    elif has_weights(folder):
        problem = "this folder holds the weights of a model"
    if problem:
        raise UserError("settings.run-folder", f"SAVE_PATH={run_folder}: {problem}: choose a folder of its own")


def _list_trackers(logger: str | Sequence[str]) -> list[str]:
    """Return the trackers of LOGGER, SwanLab if its key is set and LOGGER is not, and the file of the reports."""
    trackers = [logger] if isinstance(logger, str) else list(logger)
    if os.environ.get("SWANLAB_API_KEY") and not os.environ.get("LOGGER"):
        trackers.append("swanlab")
    return [*dict.fromkeys([*trackers, "file"])]


def _complete_batch_size(config: DictConfig) -> None:
    """Fill in an unset batch size: a resumed run keeps its own, also if the number of devices has changed."""
    run_folder = Path(config.trainer.default_local_dir)
    if config.data.train_batch_size is None and latest_step(run_folder):
        config.data.train_batch_size = setting(read_config(run_folder), "data.train_batch_size")
    complete_batch_size(config)


def _choose_attention(model: DictConfig) -> None:
    """Choose the attention without flash-attn, which is built for one version of torch and so is no dependency."""
    attention = "varlen" if model.use_remove_padding else "sdpa"  # convrec.training.attention.varlen
    model.override_config.setdefault("attn_implementation", attention)


def _complete_slots(config: DictConfig) -> None:
    """Give a Ray on this machine enough logical CPU slots: on a small host verl would wait for more forever."""
    run = Run.from_config(config)
    if uses_ray(run) and not os.environ.get("RAY_ADDRESS"):
        ray_init = config.ray_kwargs.ray_init
        ray_init.num_cpus = max(ray_init.num_cpus or len(os.sched_getaffinity(0)), count_run_slots(run).cpus)


def _complete_rollout(config: DictConfig) -> None:
    models = config.actor_rollout_ref
    # resolved to a number here, because the workers do not have the resolver `quarter`
    models.actor.ppo_mini_batch_size = models.actor.ppo_mini_batch_size
    if models.rollout.max_model_len is None:
        # vLLM would otherwise reserve a cache for the model's longest context
        models.rollout.max_model_len = config.data.max_prompt_length + config.data.max_response_length
    if models.rollout.tensor_model_parallel_size == 1:
        # the worker runs in vLLM's engine process, which starts in three quarters of the time (notes/gpu.md)
        models.rollout.engine_kwargs.vllm.setdefault("distributed_executor_backend", ONE_PROCESS)
    if config.trainer.device == "cpu" and not models.model.lora_rank:
        _fit_weight_bucket(models)


def _fit_weight_bucket(models: DictConfig) -> None:
    """Enlarge the buffer of the weight transfer to the model's largest tensor, the embedding.

    On a CPU, weights reach the rollout through shared memory of this size.
    """
    model = model_settings(models.model.path)
    engine = models.rollout.checkpoint_engine
    size = 4 if models.rollout.dtype in ("float32", AUTO) else 2
    megabytes = -(-size * model.get("vocab_size", 0) * model.get("hidden_size", 0) // 2**20)
    engine.update_weights_bucket_megabytes = max(engine.update_weights_bucket_megabytes, megabytes)


def complete_batch_size(config: DictConfig) -> None:
    """Fill in SFT's unset batch size, which grows with the number of devices.

    Args:
        config: the composed config, changed in place.
    """
    if config.data.train_batch_size is None:
        config.data.train_batch_size = SEQUENCES_PER_DEVICE * config.trainer.n_gpus_per_node * config.trainer.nnodes


def save_config(config: DictConfig, run_folder: Path) -> None:
    """Write RUN/config.yaml, with secrets masked.

    Args:
        config: the composed config.
        run_folder: the run's folder; a config.yaml in it is replaced.
    """
    write_text(run_folder / "config.yaml", to_yaml(config))


def find_secrets(config: DictConfig) -> set[str]:
    """Return the secrets among the settings, including those that a setting reads from an environment variable.

    Raises:
        UserError: a setting refers to an unset variable or to an unknown setting.
    """
    try:
        return secrets.collect_secret_values(OmegaConf.to_container(config, resolve=True))
    except OmegaConfBaseException as error:
        raise UserError("settings.unresolved", f"{error.full_key}: {str(error).splitlines()[0]}") from error


def to_yaml(config: DictConfig) -> str:
    """Return the config before interpolation as YAML, with secrets masked."""
    return OmegaConf.to_yaml(secrets.mask_settings(OmegaConf.to_container(config, resolve=False)))
