"""Whether a model's weights are those of its config.json's architecture: by names and shapes, without reading them.

transformers draws a weight that it does not find at random and leaves out one that it has no place for, with a table in
the log. A run of such a model trains to its end, and means nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from convrec.base.errors import UserError, one_line
from convrec.checkpoints.files import weight_files

SHOWN = 3  # names in a message


def check_architecture(folder: Path, name: str) -> None:
    """Raise UserError where safetensors and config.json do not fit each other.

    transformers' own loader does the comparison, on the meta device: it knows which weights a family renames, ties or
    may lack. A folder with other kinds of weights is not looked into, nor one that is still being downloaded, nor a
    class that is no causal language model.

    Args:
        folder: a Hugging Face folder.
        name: how messages call it.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except ValueError as error:  # no model_type, or one that this transformers does not know
        raise UserError(f"{name}: config.json: {one_line(error)}") from None
    model_class = AutoModelForCausalLM._model_mapping.get(type(config), None)
    weights = _meta_weights(folder)
    if model_class is None or not weights:
        return
    if getattr(config.get_text_config(), "tie_word_embeddings", False):
        # The loader would compare the values of a head that is saved beside the embedding that it is tied to.
        weights = {key: value for key, value in weights.items() if not key.endswith("lm_head.weight")}
    try:
        found = _load_on_meta(model_class, config, weights)
    except Exception as error:  # a shape that a conversion of transformers cannot take
        raise UserError(_unfit(name, f"transformers cannot load them ({one_line(error)})")) from None
    if found["missing_keys"]:
        raise UserError(_unfit(name, f"they lack {_listed(found['missing_keys'])}"))
    if found["unexpected_keys"]:
        raise UserError(_unfit(name, f"the architecture has no {_listed(found['unexpected_keys'])}"))
    for key, saved, expected in sorted(found["mismatched_keys"]):  # a set, in another order each time
        raise UserError(_unfit(name, f"{key} is {list(saved)} and should be {list(expected)}"))


def _meta_weights(folder: Path) -> dict[str, Any]:
    """Name -> a tensor without memory, of every tensor in the folder's safetensors; {} where a part is missing."""
    import torch
    from safetensors import safe_open

    for index in folder.glob("*.safetensors.index.json"):
        if not all((folder / part).exists() for part in weight_files(index)):
            return {}
    weights: dict[str, Any] = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            for key in file.keys():  # noqa: SIM118 - no dict
                weights[key] = torch.empty(file.get_slice(key).get_shape(), dtype=torch.bfloat16, device="meta")
    return weights


def _load_on_meta(model_class: Any, config: Any, weights: dict[str, Any]) -> dict[str, Any]:
    import torch

    one_class = model_class[0] if isinstance(model_class, tuple | list) else model_class
    with _quiet_transformers():
        _, found = one_class.from_pretrained(
            None,
            config=config,
            state_dict=weights,
            device_map="meta",
            dtype=torch.bfloat16,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    return found


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Without the loader's table and bar: the error says what matters of it."""
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


def _listed(names: Any) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - SHOWN} more" if len(ordered) > SHOWN else ""
    return ", ".join(ordered[:SHOWN]) + more


def _unfit(name: str, problem: str) -> str:
    return (
        f"{name}: its weights are not those of the architecture in config.json: {problem}. What is missing would be "
        "random; put the model's own config.json and weights there"
    )
