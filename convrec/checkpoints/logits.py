"""Detect models whose logits are more than the product of hidden states and output head."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from convrec.base.errors import UserError
from convrec.base.files import read_json_object

# Keys of config.json that change a model's logits after the output head.
OTHER_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")


def check_logits(model: DictConfig, purpose: str, instead: str) -> None:
    """Check that a model's logits are the product of hidden states and output head.

    Args:
        model: the section of a run's config.
        purpose: what needs such logits, for the error message.
        instead: what to do, for the error message.

    Raises:
        UserError: the model changes its logits after the output head.
    """
    changes = find_logit_changes(model)
    if changes:
        raise UserError(
            "model.modified-logits",
            f"{purpose}: {model.path} changes its logits after the output head ({', '.join(changes)}): {instead}",
        )


def find_logit_changes(model: DictConfig) -> list[str]:
    """Return the names of all settings that change a model's logits after the output head.

    The config of a model that is given as a Hugging Face id is not read, so only LoRA is found.

    Args:
        model: the section of a run's config.
    """
    settings = model_settings(model.path)
    changes = [name for name in OTHER_LOGITS if settings.get(name) not in (None, 1.0)]
    if model.lora_rank and "lm_head" in str(model.target_modules):
        changes.append("LoRA on lm_head")
    return changes


def model_settings(model: str) -> dict[str, Any]:
    """Return the config.json in a model's folder; {} for a Hugging Face id, and for a folder without it."""
    file = Path(model).expanduser() / "config.json"
    return read_json_object(file) if file.exists() else {}
