"""Give a running vLLM engine other weights, and have every layer compute with them.

vLLM's `reload_weights` rebuilds what a layer has made of its weights only for the layers that it loads. A head tied by
`tie_weights` (Llama, Gemma 3, Granite, SmolLM3 and 20 more of vLLM 0.24's models) is never loaded: it has the
embedding's parameter. On a GPU it multiplies by that parameter, which holds the new weights. On a CPU it multiplies by
a packed copy, which would be of the first weights for ever. Qwen's head is the embedding's module itself, and loaded.
"""

from collections import Counter
from typing import Any


def reload_weights(model_runner: Any, **source: Any) -> None:
    """Load weights into the model of a vLLM worker, in place.

    Args:
        model_runner: vLLM's, in the worker's process.
        source: what vLLM's own `reload_weights` takes: `weights_iterator` or `weights_path`.
    """
    model_runner.reload_weights(**source)
    _repack_shared_weights(model_runner.get_model())


def reload_from_folder(worker: Any, folder: str) -> None:
    """For vLLM's `collective_rpc`: load the weights of a Hugging Face folder in a worker's process."""
    reload_weights(worker.model_runner, weights_path=folder)


def _repack_shared_weights(model: Any) -> None:
    """Rebuild the packed copy in every layer whose parameter another layer has too."""
    packed = [layer for layer in model.modules() if hasattr(layer, "cpu_linear")]  # vLLM's name for the copy's product
    owners = Counter(id(layer.weight) for layer in model.modules() if getattr(layer, "weight", None) is not None)
    for layer in packed:
        if owners[id(layer.weight)] > 1:
            layer.quant_method.process_weights_after_loading(layer)
