"""The shape of a model, and how many parameters it has: from a config.json, or of well-known models by their size."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convrec.errors import UserError
from convrec.files import read_json


@dataclass(frozen=True)
class ModelSize:
    """What memory, disk and time follow from. heads: of the queries; head_size: numbers of a head."""

    parameters: int
    layers: int
    hidden: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_size: int

    @property
    def kv_bytes(self) -> int:
        """Of a token in the cache of vLLM: keys and values of every layer, in bf16."""
        return 2 * self.layers * self.kv_heads * self.head_size * 2


def _shape(kind: str, sizes: tuple[int, int, int, int], heads: tuple[int, int, int], tied: bool) -> dict[str, Any]:
    """sizes: layers, hidden, intermediate, words. heads: of queries, of keys and values, and the size of one."""
    of_sizes = ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size")
    of_heads = ("num_attention_heads", "num_key_value_heads", "head_dim")
    numbers = dict(zip(of_sizes + of_heads, sizes + heads, strict=True))
    return {"model_type": kind, "tie_word_embeddings": tied, **numbers}


# size -> (its Hugging Face id, what its config.json says of its shape)
KNOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "0.5B": ("Qwen/Qwen2.5-0.5B-Instruct", _shape("qwen2", (24, 896, 4864, 151_936), (14, 2, 64), True)),
    "1B": ("meta-llama/Llama-3.2-1B-Instruct", _shape("llama", (16, 2048, 8192, 128_256), (32, 8, 64), True)),
    "3B": ("meta-llama/Llama-3.2-3B-Instruct", _shape("llama", (28, 3072, 8192, 128_256), (24, 8, 128), True)),
    "8B": ("meta-llama/Llama-3.1-8B-Instruct", _shape("llama", (32, 4096, 14_336, 128_256), (32, 8, 128), False)),
    "32B": ("Qwen/Qwen3-32B", _shape("qwen3", (64, 5120, 25_600, 151_936), (64, 8, 128), False)),
    "70B": ("meta-llama/Llama-3.3-70B-Instruct", _shape("llama", (80, 8192, 28_672, 128_256), (64, 8, 128), False)),
}
# numbers of a layer besides its matrices and its two norms: biases of q, k and v, norms of queries and keys
_BESIDES = {
    "llama": lambda q, kv, head: 0,
    "mistral": lambda q, kv, head: 0,
    "qwen2": lambda q, kv, head: q + 2 * kv,
    "qwen3": lambda q, kv, head: 2 * head,
}


def known_size(name: str) -> ModelSize | None:
    """Of a size of KNOWN or its Hugging Face id; None for any other name."""
    for size, (model_id, config) in KNOWN.items():
        if name in (size, model_id):
            return size_of(config)
    return None


def model_size(model_path: str) -> ModelSize:
    """Exact for any architecture; no weight is read. Raises OSError without a config, UserError for a damaged one."""
    file = _config_file(model_path)
    return size_of(read_json(file)) or _counted(file.parent)


def _config_file(model_path: str) -> Path:
    """In the folder, or in the Hub's cache here. Raises OSError where it is in neither."""
    path = Path(model_path).expanduser()
    if path.is_dir():
        file = path / "config.json"
        if not file.exists():
            raise FileNotFoundError(f"{file}: no such file")
        return file
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(model_path, "config.json")
    except HFValidationError as error:
        raise FileNotFoundError(f"{model_path}: neither a folder nor a Hugging Face id") from error
    if not isinstance(cached, str):
        raise FileNotFoundError(f"{model_path}: not in the Hub's cache here")
    return Path(cached)


def size_of(config: Mapping[str, Any]) -> ModelSize | None:
    """By the formula of the dense architectures in _BESIDES; None for any other, or one with further biases.

    A layer: q, k, v and o; three matrices of the MLP; two norms. Then the embedding, the last norm and, where it is not
    tied to the embedding, the head.
    """
    besides = _BESIDES.get(config.get("model_type", ""))
    if besides is None or config.get("attention_bias") or config.get("mlp_bias"):
        return None
    try:
        layers, hidden, words = (config[key] for key in ("num_hidden_layers", "hidden_size", "vocab_size"))
        heads, inner, kv_heads = (
            config[key] for key in ("num_attention_heads", "intermediate_size", "num_key_value_heads")
        )
    except KeyError:  # transformers' defaults
        return None
    head = config.get("head_dim") or hidden // heads
    q, kv = heads * head, kv_heads * head
    layer = 2 * hidden * q + 2 * hidden * kv + 3 * hidden * inner + 2 * hidden + besides(q, kv, head)
    tables = words * hidden * (1 if config.get("tie_word_embeddings") else 2)
    return ModelSize(layers * layer + tables + hidden, layers, hidden, words, heads, kv_heads, head)


def _counted(folder: Path) -> ModelSize:
    """On the meta device, by transformers' own class."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config: Any = AutoConfig.from_pretrained(folder, local_files_only=True)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    text = config.get_text_config()
    # a tied head is one parameter that `parameters()` gives once
    count = sum(parameter.numel() for parameter in model.parameters())
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    kv_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    shape = (text.num_hidden_layers, text.hidden_size, text.vocab_size, text.num_attention_heads)
    return ModelSize(count, *shape, kv_heads, head)


def planned_size(name: str) -> ModelSize:
    """Of a size or id of KNOWN, or of a model that is here. Raises UserError for any other."""
    if size := known_size(name):
        return size
    try:
        if {"num_experts", "num_local_experts", "n_routed_experts"} & read_json(_config_file(name)).keys():
            raise UserError(f"{name}: a mixture of experts, which a plan does not model")
        return model_size(name)
    except OSError as error:
        raise UserError(f"{error}; give a folder with a config.json, or one of {', '.join(KNOWN)} (--model)") from error
