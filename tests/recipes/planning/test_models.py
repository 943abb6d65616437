"""Parameters: by transformers, by hand, and as the models' own pages say."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from convrec.base.errors import UserError
from recipes.planning.models import KNOWN_MODELS, ModelSize, model_size

SHAPE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4}
SHAPE |= {"num_key_value_heads": 2, "head_dim": 64, "vocab_size": 2000}


# Of the experts that a token passes: two of Mixtral's, eight of Qwen3's.
MLP = {"mixtral": 2 * 512, "qwen3_moe": 8 * 768}


def test_known_models_have_the_parameters_that_are_published() -> None:
    """Of the safetensors files."""
    published = [494_032_768, 1_235_814_400, 3_212_749_824, 8_030_261_248, 32_762_123_264, 70_553_706_496]
    assert [known.size.parameters for known in KNOWN_MODELS.values()] == published
    assert model_size("Qwen/Qwen3-32B") == model_size("32B") == KNOWN_MODELS["32B"].size


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gemma2", "olmo2", "mixtral", "qwen3_moe"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_config_says_what_transformers_counts(kind: str, tied: bool, tmp_path: Path) -> None:
    """But for norms and biases of some, a thousandth."""
    config = AutoConfig.for_model(kind, **SHAPE, tie_word_embeddings=tied)
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        counted = sum(weight.numel() for weight in AutoModelForCausalLM.from_config(config).parameters())
    found = model_size(str(tmp_path))
    assert found.parameters == pytest.approx(counted, rel=0 if kind in ("llama", "qwen2", "qwen3") else 1e-3)
    assert found == ModelSize(
        parameters=found.parameters,
        layers=3,
        hidden=256,
        vocabulary=2000,
        heads=4,
        kv_heads=2,
        head_size=64,
        intermediate=found.intermediate,
        experts=found.experts,
    )
    assert found.intermediate == MLP.get(kind, 512)
    assert (found.experts > 1) == (kind in ("mixtral", "qwen3_moe"))


@pytest.mark.parametrize(
    ("written", "error", "said"),
    [
        (None, FileNotFoundError, "config.json"),
        ('{"model_type": "qwen2", ', UserError, "config.json: not readable as JSON"),
        ('{"model_type": "qwen2"}', UserError, "config.json: 'num_hidden_layers' is missing"),
    ],
)
def test_a_folder_without_a_readable_config_is_named(
    written: str | None, error: type[Exception], said: str, tmp_path: Path
) -> None:
    if written is not None:
        (tmp_path / "config.json").write_text(written)
    with pytest.raises(error, match=said):
        model_size(str(tmp_path))


@pytest.mark.parametrize("name", ["9B", "nobody/no-such-model", "no/such/folder"])
def test_a_model_that_is_not_here_is_named(name: str) -> None:
    with pytest.raises(FileNotFoundError, match=f"{name}: neither a folder, nor in the Hub's cache here"):
        model_size(name)
