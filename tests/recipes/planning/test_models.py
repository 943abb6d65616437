"""Parameter counts compared with transformers, with a count by hand, and with published figures."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from convrec.base.errors import UserError
from recipes.planning.models import KNOWN_MODELS, ModelSize, read_model_size
from tests.user_errors import refuses

SHAPE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4}
SHAPE |= {"num_key_value_heads": 2, "head_dim": 64, "vocab_size": 2000}


# Size of the experts that a token uses: two in Mixtral, eight in Qwen3.
MLP = {"mixtral": 2 * 512, "qwen3_moe": 8 * 768}


def test_known_models_have_the_published_numbers_of_parameters() -> None:
    """The figures are those of the safetensors files."""
    published = [494_032_768, 1_235_814_400, 3_212_749_824, 8_030_261_248, 32_762_123_264, 70_553_706_496]
    assert [known.size.parameters for known in KNOWN_MODELS.values()] == published
    assert read_model_size("Qwen/Qwen3-32B") == read_model_size("32B") == KNOWN_MODELS["32B"].size


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gemma2", "olmo2", "mixtral", "qwen3_moe"])
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_from_a_config_are_those_of_transformers(kind: str, tied: bool, tmp_path: Path) -> None:
    """Norms and biases of some models, a thousandth of the parameters, are not counted."""
    config = AutoConfig.for_model(kind, **SHAPE, tie_word_embeddings=tied)
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        counted = sum(weight.numel() for weight in AutoModelForCausalLM.from_config(config).parameters())
    size = read_model_size(str(tmp_path))
    assert size.parameters == pytest.approx(counted, rel=0 if kind in ("llama", "qwen2", "qwen3") else 1e-3)
    assert size == ModelSize(
        parameters=size.parameters,
        layers=3,
        hidden=256,
        vocabulary=2000,
        heads=4,
        kv_heads=2,
        head_size=64,
        intermediate=size.intermediate,
        experts=size.experts,
    )
    assert size.intermediate == MLP.get(kind, 512)
    assert (size.experts > 1) == (kind in ("mixtral", "qwen3_moe"))


@pytest.mark.parametrize(("text", "error"), [(None, FileNotFoundError), ('{"model_type": "qwen2", ', UserError)])
def test_a_folder_without_a_readable_config_is_named(text: str | None, error: type[Exception], tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(error, match=r"config\.json"):
        read_model_size(str(tmp_path))


def test_an_incomplete_config_is_named_with_the_missing_key(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    with refuses("plan.incomplete-model-config", tmp_path / "config.json", "num_hidden_layers"):
        read_model_size(str(tmp_path))


@pytest.mark.parametrize("name", ["9B", "nobody/no-such-model", "no/such/folder"])
def test_a_missing_model_is_named(name: str) -> None:
    with pytest.raises(FileNotFoundError, match=name):
        read_model_size(name)
