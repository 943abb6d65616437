"""Load new weights into a running vLLM engine so that every layer uses them.

vLLM's `reload_weights` rebuilds derived tensors only in the layers that it loads. An output head tied by `tie_weights`
(Llama, Gemma 3, Granite, SmolLM3 and 20 more of vLLM 0.24's models) is never loaded, because it shares the embedding's
parameter. On a GPU it multiplies by that parameter, which has the new weights. On a CPU it multiplies by a packed copy,
which would keep the first weights forever. Qwen's head is the embedding module itself and is therefore loaded.
"""

from collections import Counter
from typing import Any


def reload_weights(model_runner: Any, **source: Any) -> None:
    """Load weights into the model of a vLLM worker, in place.

    Args:
        model_runner: vLLM's, in the worker process.
        source: the argument of vLLM's own `reload_weights`: `weights_iterator` or `weights_path`.
    """
    model_runner.reload_weights(**source)
    _repack_shared_weights(model_runner.get_model())


def reload_from_folder(worker: Any, folder: str) -> None:
    """Load the weights of a Hugging Face folder in a worker process. Called by vLLM's `collective_rpc`.

    Args:
        worker: vLLM's worker, whose model is changed in place.
        folder: has the same architecture as the model.
    """
    reload_weights(worker.model_runner, weights_path=folder)


def _repack_shared_weights(model: Any) -> None:
    """Rebuild the packed copy in every layer that shares its parameter with another layer."""
    packed = [layer for layer in model.modules() if hasattr(layer, "cpu_linear")]  # vLLM multiplies by the copy there
    owners = Counter(id(layer.weight) for layer in model.modules() if getattr(layer, "weight", None) is not None)
    for layer in packed:
        if owners[id(layer.weight)] > 1:
            layer.quant_method.process_weights_after_loading(layer)
