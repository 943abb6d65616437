"""Models whose logits are more than the product of hidden states and head."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from convrec.base.errors import UserError
from convrec.base.files import read_json_object

# Keys of a model's config.json that change its logits after the head.
OTHER_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")


def check_logits(model: DictConfig, purpose: str, instead: str) -> None:
    """Check that a model's logits are the product of hidden states and head.

    Args:
        model: the section of a run's config.
        purpose: what needs such logits, for the error.
        instead: what to do, for the error.

    Raises:
        UserError: the model changes its logits after the head.
    """
    changes = find_logit_changes(model)
    if changes:
        raise UserError(f"{purpose}: {model.path} changes its logits after the head ({', '.join(changes)}): {instead}")


def find_logit_changes(model: DictConfig) -> list[str]:
    """Return what changes a model's logits after the head, by name; none of a model that is still to be downloaded.

    Args:
        model: the section of a run's config.
    """
    settings = model_settings(model.path)
    changes = [name for name in OTHER_LOGITS if settings.get(name) not in (None, 1.0)]
    if model.lora_rank and "lm_head" in str(model.target_modules):
        changes.append("LoRA on lm_head")
    return changes


def model_settings(model: str) -> dict[str, Any]:
    """Return the config.json of a model's folder; {} for a model that is still to be downloaded."""
    file = Path(model).expanduser() / "config.json"
    return read_json_object(file) if file.exists() else {}
