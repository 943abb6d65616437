"""Parameters: by the formula, by transformers, and as the models' own pages say."""

import json
from pathlib import Path

import pytest
from transformers import AutoConfig

from convrec.errors import UserError
from recipes.planning import models
from recipes.planning.models import KNOWN, known_size, model_size, planned_size

PUBLISHED = {  # of the safetensors files
    "0.5B": 494_032_768,
    "1B": 1_235_814_400,
    "3B": 3_212_749_824,
    "8B": 8_030_261_248,
    "32B": 32_762_123_264,
    "70B": 70_553_706_496,
}


def test_known_models_have_the_parameters_that_are_published() -> None:
    assert {name: known_size(name).parameters for name in KNOWN} == PUBLISHED  # type: ignore[union-attr]
    assert known_size("Qwen/Qwen3-32B") == known_size("32B")
    assert known_size("Qwen/Qwen3-32B-") is None


def test_parameters_of_8b_by_hand() -> None:
    """A layer: q and o 2 x 4096 x 4096 = 33,554,432; k and v 2 x 4096 x 1024 = 8,388,608; MLP 3 x 4096 x 14336 =
    176,160,768; norms 8,192: 218,112,000. 32 of them, embedding and head 2 x 128256 x 4096 = 1,050,673,152, norm 4,096.
    A token in the cache: keys and values of 32 layers x 8 heads x 128, in two bytes each: 131,072."""
    size = known_size("8B")
    assert size is not None
    assert size.parameters == 32 * 218_112_000 + 1_050_673_152 + 4_096
    assert size.kv_bytes == 2 * 32 * 8 * 128 * 2 == 131_072


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama", "mistral", "gemma2"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_formula_counts_what_transformers_counts(kind: str, tied: bool, tmp_path: Path) -> None:
    """gemma2, which has more norms, is not counted by the formula."""
    shape = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6}
    shape |= {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 211}
    AutoConfig.for_model(kind, **shape, tie_word_embeddings=tied).save_pretrained(tmp_path)
    counted = models._counted(tmp_path)
    assert model_size(str(tmp_path)) == counted
    by_formula = models.size_of(json.loads((tmp_path / "config.json").read_text()))
    assert by_formula == (None if kind == "gemma2" else counted)


def test_biases_of_attention_are_counted_by_transformers(tmp_path: Path) -> None:
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    AutoConfig.for_model("llama", **shape, vocab_size=50, attention_bias=True).save_pretrained(tmp_path)
    plain = 2 * 50 * 32 + 4 * 32 * 32 + 3 * 32 * 64 + 3 * 32
    assert model_size(str(tmp_path)).parameters == plain + 4 * 32


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (None, "config.json: no such file; give a folder with a config.json, or one of 0.5B, 1B"),
        ('{"model_type": "mixtral", "num_local_experts": 8}', "a mixture of experts, which a plan does not model"),
        ('{"model_type": "qwen2", ', "config.json"),
    ],
)
def test_what_cannot_be_planned_is_said(written: str | None, said: str, tmp_path: Path) -> None:
    if written is not None:
        (tmp_path / "config.json").write_text(written)
    with pytest.raises(UserError, match=said):
        planned_size(str(tmp_path))


@pytest.mark.parametrize("name", ["9B", "nobody/no-such-model", "no/such/folder"])
def test_a_model_that_is_not_here_is_refused_with_the_sizes(name: str) -> None:
    with pytest.raises(UserError, match=f"{name}: .*0.5B, 1B, 3B, 8B, 32B, 70B"):
        planned_size(name)
