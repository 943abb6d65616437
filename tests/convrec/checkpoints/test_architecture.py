"""Weights that do not match the architecture are refused by their headers, with transformers' own comparison."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from convrec.checkpoints.architecture import check_architecture
from recipes.tiny_model import make_tiny_model
from tests.user_errors import refuses

SIZES = {"hidden_size": 64, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1, "intermediate_size": 64}
Weights = dict[str, Any]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    models: dict[tuple[str, bool], Path] = {}

    def make_once(model_type: str, tied: bool) -> Path:
        key = (model_type, tied)
        if key not in models:
            folder = tmp_path_factory.mktemp("models") / model_type
            sizes = {**SIZES, "model_type": model_type, "tie_word_embeddings": tied}
            models[key] = make_tiny_model(folder, ["Heat (1995)\n" * 40], vocab_size=400, max_positions=256, **sizes)
        return models[key]

    return make_once


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "llama", "gemma3_text", "mistral", "phi3", "smollm3"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_models_own_weights_pass(make: Callable[..., Path], model_type: str, tied: bool) -> None:
    check_architecture(make(model_type, tied), "model")


def rewrite(folder: Path, change: Callable[[Weights], Weights], **config: Any) -> None:
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | config))


def keep_weights(weights: Weights) -> Weights:
    return weights


def add_head(weights: Weights) -> Weights:
    return weights | {"lm_head.weight": weights["model.embed_tokens.weight"].clone()}


def drop_weights(part: str) -> Callable[[Weights], Weights]:
    return lambda weights: {name: weight for name, weight in weights.items() if part not in name}


def rename_weights(weights: Weights) -> Weights:
    return {f"student.{name}": weight for name, weight in weights.items()}


THREE_LAYERS = {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}
ONE_LAYER = {"num_hidden_layers": 1, "layer_types": ["full_attention"]}


@pytest.mark.parametrize(
    ("change", "config", "values"),
    [
        (rename_weights, {}, ["missing: lm_head.weight, model.embed_tokens.weight, ", " more"]),
        (drop_weights("layers.1.mlp.up"), {}, ["missing: model.layers.1.mlp.up_proj.weight."]),
        (drop_weights("lm_head"), {}, ["missing: lm_head.weight."]),
        (keep_weights, THREE_LAYERS, ["missing: model.layers.2."]),
        (keep_weights, ONE_LAYER, ["not in the architecture: model.layers.1."]),
        (keep_weights, {"model_type": "llama"}, ["not in the architecture: model.layers.0.self_attn.k_proj.bias"]),
        (keep_weights, {"intermediate_size": 32}, ["down_proj.weight", "[64, 64]", "[64, 32]"]),
    ],
)
def test_weights_of_another_architecture_are_named(
    make: Callable[..., Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    change: Callable[[Weights], Weights],
    config: dict[str, Any],
    values: list[str],
) -> None:
    folder = shutil.copytree(make("qwen2", False), tmp_path / "model")
    rewrite(folder, change, **config)
    with refuses("model.weights-mismatch", "MODEL_PATH=m: ", *values) as error:
        check_architecture(folder, "MODEL_PATH=m")
    assert "\n" not in str(error.value)
    assert capfd.readouterr() == ("", "")


def test_a_tied_model_may_be_saved_with_its_head(make: Callable[..., Path], tmp_path: Path) -> None:
    folder = shutil.copytree(make("qwen2", True), tmp_path / "model")
    rewrite(folder, add_head)
    check_architecture(folder, "model")


def test_an_incomplete_download_is_not_compared(make: Callable[..., Path], tmp_path: Path) -> None:
    folder = shutil.copytree(make("qwen2", False), tmp_path / "model")
    rewrite(folder, drop_weights("layers.1"))
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    parts = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": parts}))
    check_architecture(folder, "model")
