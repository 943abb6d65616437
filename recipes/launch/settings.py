"""A recipe's settings: conf/*.yaml, then the host, then environment variables, then command-line overrides."""

import os
from pathlib import Path

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from convrec.checkpoints.models import resolve_model
from convrec.errors import UserError
from convrec.runs.folder import MODEL_KEYS
from recipes.launch.variables import overrides_from_environment
from recipes.preflight import host

CONF = Path(__file__).resolve().parents[2] / "conf"
SFT_SEQUENCES_PER_DEVICE = 96  # 12 x 8 accumulation steps


def compose(recipe: str, arguments: list[str]) -> DictConfig:
    """The whole config of a run, with an absolute run folder, a model in Hugging Face form and the trackers chosen.

    Raises UserError for a variable or an override that cannot be used.
    """
    accelerators = host.num_accelerators()
    group = "sft_host" if recipe == "sft" else "host"
    overrides = [f"{group}={'gpu' if accelerators else 'cpu'}"]
    if accelerators:
        overrides.append(f"trainer.n_gpus_per_node={accelerators}")
    overrides += overrides_from_environment(recipe, os.environ)
    try:
        with initialize_config_dir(str(CONF), version_base=None):
            config = hydra_compose(recipe, overrides=[*overrides, *arguments])
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(f"settings: {str(error).strip().splitlines()[0]}") from error
    with open_dict(config):
        _complete(config, recipe)
    return config


def _complete(config: DictConfig, recipe: str) -> None:
    model = OmegaConf.select(config, MODEL_KEYS[recipe])
    OmegaConf.update(config, MODEL_KEYS[recipe], resolve_model(model))
    if config.trainer.device != "cpu" and not host.has_flash_attention():
        model_config = OmegaConf.select(config, MODEL_KEYS[recipe].removesuffix(".path"))
        model_config.use_remove_padding = False  # packing needs flash attention
        model_config.override_config.setdefault("attn_implementation", "sdpa")
    if config.trainer.default_local_dir is None:
        config.trainer.default_local_dir = os.path.abspath(f"checkpoints/{recipe}/{Path(model).name}")
    if config.data.train_batch_size is None:
        config.data.train_batch_size = SFT_SEQUENCES_PER_DEVICE * config.trainer.n_gpus_per_node * config.trainer.nnodes
    if recipe == "rank_grpo" and config.convrec.matching is None:
        config.convrec.matching = "reference" if config.convrec.preset == "reference" else "fuzzy"
    config.trainer.experiment_name = f"{recipe}-{Path(config.trainer.default_local_dir).name}"
    trackers = list(config.trainer.logger)
    if os.environ.get("SWANLAB_API_KEY") and not os.environ.get("LOGGER") and "swanlab" not in trackers:
        trackers.append("swanlab")
    if "file" not in trackers:
        trackers.append("file")  # the reports read it
    config.trainer.logger = trackers


def save_config(config: DictConfig, run_folder: Path) -> None:
    """Write RUN/config.yaml whole or not at all. Secrets are never in the config: they stay in the environment."""
    run_folder.mkdir(parents=True, exist_ok=True)
    partial = run_folder / "config.yaml.partial"
    partial.write_text(OmegaConf.to_yaml(config, resolve=False))
    partial.replace(run_folder / "config.yaml")


def finished_message(run_folder: Path, step: int) -> str:
    return (
        f"{run_folder} already has its {step} steps. To train longer raise TOTAL_STEPS; to start anew choose another "
        "SAVE_PATH or move this folder away."
    )
