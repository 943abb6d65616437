"""Compare a model's weights with the architecture in its config.json, by names and shapes, without reading the data.

transformers initializes a missing weight at random and ignores an unexpected one; all it does is print a table in the
log. A run with such a model completes, but its results mean nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from convrec.base.errors import UserError, one_line
from convrec.checkpoints.files import read_weight_files

MAX_NAMES = 3  # in a message


def check_architecture(folder: Path, name: str) -> None:
    """Check that a folder's safetensors files match its config.json.

    transformers' own loader compares them, on the meta device: it knows which weights a family renames, ties or may
    omit. Skipped: folders without safetensors, incomplete downloads, and classes that are not causal language models.

    Args:
        folder: a Hugging Face folder.
        name: what error messages call it.

    Raises:
        UserError: transformers does not know the model type, or weights are missing, unexpected or of another shape.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except ValueError as error:  # no model_type, or one that this transformers does not know
        raise UserError("model.unknown-architecture", f"{name}: config.json: {one_line(error)}") from None
    model_class = AutoModelForCausalLM._model_mapping.get(type(config), None)
    weights = _read_meta_weights(folder)
    if model_class is None or not weights:
        return
    if getattr(config.get_text_config(), "tie_word_embeddings", False):
        # The loader would compare the values of a tied head that is saved in addition to its embedding.
        weights = {key: value for key, value in weights.items() if not key.endswith("lm_head.weight")}
    try:
        loading_info = _load_on_meta(model_class, config, weights)
    except Exception as error:  # transformers cannot convert a weight of this shape
        problem = f"transformers cannot load them ({one_line(error)})"
        raise UserError("model.weights-mismatch", _describe_mismatch(name, problem)) from None
    problem = _find_mismatch(loading_info)
    if problem:
        raise UserError("model.weights-mismatch", _describe_mismatch(name, problem))


def _find_mismatch(loading_info: dict[str, Any]) -> str:
    """Return the first difference between weights and architecture, "" if there is none."""
    if loading_info["missing_keys"]:
        return f"missing: {_join_names(loading_info['missing_keys'])}"
    if loading_info["unexpected_keys"]:
        return f"not in the architecture: {_join_names(loading_info['unexpected_keys'])}"
    for key, saved, expected in sorted(loading_info["mismatched_keys"]):  # a set has no stable order
        return f"{key} has shape {list(saved)}, expected {list(expected)}"
    return ""


def _read_meta_weights(folder: Path) -> dict[str, Any]:
    """Return every tensor of the folder's safetensors on the meta device, by name; {} if a file is missing."""
    import torch
    from safetensors import safe_open

    for index in folder.glob("*.safetensors.index.json"):
        if not all((folder / part).exists() for part in read_weight_files(index)):
            return {}
    weights: dict[str, Any] = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            for key in file.keys():  # noqa: SIM118 - no dict
                weights[key] = torch.empty(file.get_slice(key).get_shape(), dtype=torch.bfloat16, device="meta")
    return weights


def _load_on_meta(model_class: Any, config: Any, weights: dict[str, Any]) -> dict[str, Any]:
    import torch

    if isinstance(model_class, tuple | list):
        model_class = model_class[0]
    with _quiet_transformers():
        _, loading_info = model_class.from_pretrained(
            None,
            config=config,
            state_dict=weights,
            device_map="meta",
            dtype=torch.bfloat16,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    return loading_info


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Silence the loader's table and progress bar: the error has what matters."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    has_bars = logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()


def _join_names(names: Any) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - MAX_NAMES} more" if len(ordered) > MAX_NAMES else ""
    return ", ".join(ordered[:MAX_NAMES]) + more


def _describe_mismatch(name: str, problem: str) -> str:
    return (
        f"{name}: the weights do not match the architecture in config.json: {problem}. transformers would initialize "
        "missing weights at random. Use the model's original config.json and weights"
    )
