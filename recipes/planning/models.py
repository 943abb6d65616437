"""The shape of a model and its parameters: of well-known models by their size, of others by their config.json."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convrec.errors import UserError
from convrec.files import read_json
from convrec.shipped import read_table


@dataclass(frozen=True)
class ModelSize:
    """heads: of the queries; head_size: numbers of a head; experts: of a mixture, of which a token passes some."""

    parameters: int
    layers: int
    hidden: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_size: int
    experts: int = 1


FIGURES: dict[str, Any] = read_table(__file__, "figures.yaml")
KNOWN = {size: (model, ModelSize(*shape)) for size, (model, *shape) in FIGURES["models"].items()}  # model: its id
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # names of their number


def model_size(model: str) -> ModelSize:
    """Of a size or id of KNOWN, a folder, or a Hugging Face id in the Hub's cache here.

    A layer has q, k, v and o, three matrices of the MLP (times its experts), two norms, and in Qwen's biases or norms
    of q, k and v; then come the embedding, the last norm and, where it is not the embedding, the head. Other models are
    a thousandth off. Raises OSError without a config, UserError for one that is damaged or says too little.
    """
    for size, (model_id, known) in KNOWN.items():
        if model in (size, model_id):
            return known
    file = _config_file(model)
    config: dict[str, Any] = read_json(file)
    config = config.get("text_config") or config
    try:
        layers, hidden, words = (config[key] for key in ("num_hidden_layers", "hidden_size", "vocab_size"))
        inner, heads = config["intermediate_size"], config["num_attention_heads"]
    except KeyError as error:
        raise UserError(f"{file}: {error} is missing, so that the model's size is unknown") from error
    kv_heads, head = config.get("num_key_value_heads") or heads, config.get("head_dim") or hidden // heads
    experts = next((config[key] for key in EXPERTS if config.get(key)), 1)
    q, kv, mlp = heads * head, kv_heads * head, 3 * hidden * (config.get("moe_intermediate_size") or inner) * experts
    besides = {"qwen2": q + 2 * kv, "qwen3": 2 * head}.get(config.get("model_type", ""), 0)
    layer = 2 * hidden * q + 2 * hidden * kv + mlp + 2 * hidden + besides
    tables = words * hidden * (1 if config.get("tie_word_embeddings") else 2)
    return ModelSize(layers * layer + tables + hidden, layers, hidden, words, heads, kv_heads, head, experts)


def _config_file(model: str) -> Path:
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder / "config.json"
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(model, "config.json", local_files_only=True))
    except (OSError, ValueError) as error:
        raise FileNotFoundError(f"{model}: neither a folder, nor in the Hub's cache here") from error
