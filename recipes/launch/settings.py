"""A recipe's settings: conf/*.yaml, then the host, then environment variables, then command-line overrides."""

import os
from pathlib import Path

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from convrec.checkpoints.models import resolve_model
from convrec.errors import UserError
from convrec.files import write_text
from recipes.launch.algorithms import ALGORITHMS
from recipes.launch.recipe import RECIPES, Recipe
from recipes.launch.variables import overrides_from_environment
from recipes.preflight import host
from recipes.preflight.cores import needed_cpu_slots

CONF = Path(__file__).resolve().parents[2] / "conf"
SFT_SEQUENCES_PER_DEVICE = 96  # 12 x 8 accumulation steps


def compose(name: str, arguments: list[str]) -> DictConfig:
    """The whole config of a run, with an absolute run folder, a model in Hugging Face form and the trackers chosen.

    name: a key of RECIPES. Raises UserError for a variable or an override that cannot be used.
    """
    recipe = RECIPES[name]
    from_environment = overrides_from_environment(recipe, os.environ)  # at once: what follows imports for seconds

    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException

    accelerators = host.num_accelerators()
    overrides = [f"{recipe.host_group}={'gpu' if accelerators else 'cpu'}"]
    if accelerators:
        overrides.append(f"trainer.n_gpus_per_node={accelerators}")
    overrides += from_environment
    try:
        with initialize_config_dir(str(CONF), version_base=None):
            config = hydra_compose(name, overrides=[*overrides, *arguments], return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(f"settings: {str(error).strip().splitlines()[0]}") from error
    with open_dict(config):
        choices = config.pop("hydra").runtime.choices
        config.run = {"recipe": name, "algorithm": _known_algorithm(choices.get("algorithm_preset"))}
        _complete(config, recipe)
    return config


def _known_algorithm(preset: str | None) -> str | None:
    """The chosen file of conf/algorithm_preset; None for a recipe without that choice."""
    if preset is not None and preset not in ALGORITHMS:
        raise UserError(
            f"algorithm_preset={preset}: one of {', '.join(ALGORITHMS)}; recipes/launch/algorithms.py lists them"
        )
    return preset


def _complete(config: DictConfig, recipe: Recipe) -> None:
    model_key = recipe.requirements.model_key
    model = OmegaConf.select(config, model_key)
    OmegaConf.update(config, model_key, resolve_model(model))
    if config.trainer.device != "cpu" and not host.has_flash_attention():
        model_config = OmegaConf.select(config, model_key.removesuffix(".path"))
        attention = "varlen" if model_config.use_remove_padding else "sdpa"  # convrec.training.packed_attention
        model_config.override_config.setdefault("attn_implementation", attention)
    if config.trainer.default_local_dir is None:
        config.trainer.default_local_dir = os.path.abspath(f"checkpoints/{recipe.name}/{Path(model).name}")
    if config.data.train_batch_size is None:
        config.data.train_batch_size = SFT_SEQUENCES_PER_DEVICE * config.trainer.n_gpus_per_node * config.trainer.nnodes
    if recipe.uses_ray and not os.environ.get("RAY_ADDRESS"):
        # logical slots: verl would wait for ever for those that a small host lacks
        ray_init = config.ray_kwargs.ray_init
        needed = needed_cpu_slots(config).total
        ray_init.num_cpus = max(ray_init.num_cpus or host.usable_cores(), needed)
    ours = config.get("convrec", {})
    if "matching" in ours and ours.matching is None:
        ours.matching = "reference" if ours.preset == "reference" else "fuzzy"
    config.trainer.experiment_name = f"{recipe.name}-{Path(config.trainer.default_local_dir).name}"
    trackers = list(config.trainer.logger)
    if os.environ.get("SWANLAB_API_KEY") and not os.environ.get("LOGGER") and "swanlab" not in trackers:
        trackers.append("swanlab")
    if "file" not in trackers:
        trackers.append("file")  # the reports read it
    config.trainer.logger = trackers


def save_config(config: DictConfig, run_folder: Path) -> None:
    """Write RUN/config.yaml. Secrets are never in the config: they stay in the environment."""
    write_text(run_folder / "config.yaml", OmegaConf.to_yaml(config, resolve=False))


def finished_message(run_folder: Path, step: int) -> str:
    return (
        f"{run_folder} already has its {step} steps. To train longer raise TOTAL_STEPS; to start anew choose another "
        "SAVE_PATH or move this folder away."
    )
