"""The shape and the number of parameters of a model, from a table of well-known models or from its config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convrec.base.errors import UserError
from convrec.base.files import read_json_object


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """The shape of a model.

    Attributes:
        parameters: number of parameters, as transformers counts them.
        layers: number of transformer layers.
        hidden: size of a hidden state.
        vocabulary: number of tokens in the vocabulary.
        heads: number of query heads.
        kv_heads: number of key and value heads.
        head_size: size of a head.
        intermediate: size between the matrices of an MLP, summed over the experts that a token uses.
        experts: number of experts; 1 for a dense model.
    """

    parameters: int
    layers: int
    hidden: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    experts: int = 1


@dataclass(frozen=True, kw_only=True)
class KnownModel:
    """A model whose size is known without its config.

    Attributes:
        hub_id: Hugging Face id.
        size: its shape.
    """

    hub_id: str
    size: ModelSize


# Name for `--model` -> the model.
KNOWN_MODELS: Mapping[str, KnownModel] = {
    "0.5B": KnownModel(
        hub_id="Qwen/Qwen2.5-0.5B-Instruct",
        size=ModelSize(
            parameters=494_032_768,
            layers=24,
            hidden=896,
            vocabulary=151_936,
            heads=14,
            kv_heads=2,
            head_size=64,
            intermediate=4864,
        ),
    ),
    "1B": KnownModel(
        hub_id="meta-llama/Llama-3.2-1B-Instruct",
        size=ModelSize(
            parameters=1_235_814_400,
            layers=16,
            hidden=2048,
            vocabulary=128_256,
            heads=32,
            kv_heads=8,
            head_size=64,
            intermediate=8192,
        ),
    ),
    "3B": KnownModel(
        hub_id="meta-llama/Llama-3.2-3B-Instruct",
        size=ModelSize(
            parameters=3_212_749_824,
            layers=28,
            hidden=3072,
            vocabulary=128_256,
            heads=24,
            kv_heads=8,
            head_size=128,
            intermediate=8192,
        ),
    ),
    "8B": KnownModel(
        hub_id="meta-llama/Llama-3.1-8B-Instruct",
        size=ModelSize(
            parameters=8_030_261_248,
            layers=32,
            hidden=4096,
            vocabulary=128_256,
            heads=32,
            kv_heads=8,
            head_size=128,
            intermediate=14336,
        ),
    ),
    "32B": KnownModel(
        hub_id="Qwen/Qwen3-32B",
        size=ModelSize(
            parameters=32_762_123_264,
            layers=64,
            hidden=5120,
            vocabulary=151_936,
            heads=64,
            kv_heads=8,
            head_size=128,
            intermediate=25600,
        ),
    ),
    "70B": KnownModel(
        hub_id="meta-llama/Llama-3.3-70B-Instruct",
        size=ModelSize(
            parameters=70_553_706_496,
            layers=80,
            hidden=8192,
            vocabulary=128_256,
            heads=64,
            kv_heads=8,
            head_size=128,
            intermediate=28672,
        ),
    ),
}
EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts")  # config keys for the number of experts


def read_model_size(model: str) -> ModelSize:
    """Return the shape and the number of parameters of a model.

    A layer has q, k, v and o, three matrices of the MLP (times its experts), two norms, and in Qwen biases or norms of
    q, k and v. Then come the embedding, the last norm and, if it is not tied to the embedding, the head. For other
    families the number of parameters is off by about a thousandth.

    Args:
        model: a name or id of KNOWN_MODELS, a folder, or a Hugging Face id in the Hub's cache here.

    Raises:
        OSError: the config is not here.
        UserError: the config is damaged or incomplete.
    """
    for name, known in KNOWN_MODELS.items():
        if model in (name, known.hub_id):
            return known.size
    file = _config_file(model)
    config = read_json_object(file)
    config = config.get("text_config") or config
    try:
        return _size_from_config(config)
    except KeyError as error:
        raise UserError(
            "plan.incomplete-model-config", f"{file}: {error} is missing, so the model's size is unknown"
        ) from error


def _size_from_config(config: Mapping[str, Any]) -> ModelSize:
    """Count the parameters as described in `read_model_size`; raise KeyError if a key is missing."""
    layers = config["num_hidden_layers"]
    hidden = config["hidden_size"]
    vocabulary = config["vocab_size"]
    intermediate = config["intermediate_size"]
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_size = config.get("head_dim") or hidden // heads
    experts = next((config[key] for key in EXPERT_KEYS if config.get(key)), 1)

    query_width = heads * head_size
    kv_width = kv_heads * head_size
    attention = 2 * hidden * query_width + 2 * hidden * kv_width
    of_expert = config.get("moe_intermediate_size") or intermediate
    mlp = 3 * hidden * of_expert * experts
    norms = 2 * hidden
    biases_or_norms = {"qwen2": query_width + 2 * kv_width, "qwen3": 2 * head_size}
    layer = attention + mlp + norms + biases_or_norms.get(config.get("model_type", ""), 0)
    embeddings = vocabulary * hidden * (1 if config.get("tie_word_embeddings") else 2)
    return ModelSize(
        parameters=layers * layer + embeddings + hidden,
        layers=layers,
        hidden=hidden,
        vocabulary=vocabulary,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        intermediate=of_expert * (config.get("num_experts_per_tok") or 1),
        experts=experts,
    )


def _config_file(model: str) -> Path:
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder / "config.json"
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(model, "config.json", local_files_only=True))
    except (OSError, ValueError) as error:
        raise FileNotFoundError(f"{model}: neither a folder, nor in the Hub's cache here") from error
