"""Convert a GGUF file to a Hugging Face folder, which training, evaluation and serving read.

    python -m convrec.checkpoints.gguf MODEL.gguf OUT

transformers dequantizes the weights, for which it needs the package gguf (pip install gguf). It misreads two parts of
the tokenizer, which this module restores from the file's metadata: the special tokens (transformers 5.9.0 takes a
Llama's bos token for its eos token), and the pre-tokenization (SmolLM splits digits).
"""

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from convrec.base.errors import UserError, exit_on_user_error, one_line
from convrec.base.files import atomic_write_folder

COMMAND = "python -m convrec.checkpoints.gguf"
# Values of tokenizer.ggml.pre for which transformers builds the right pre-tokenizer itself.
KNOWN_TO_TRANSFORMERS = ("qwen2", "default", "")
LLAMA_3_CUTS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
SPECIAL_TOKENS = {"eos_token": "eos_token_id", "bos_token": "bos_token_id", "pad_token": "padding_token_id"}


def gguf_file(model: str) -> Path | None:
    """Return the GGUF file that a path names: the file itself, or the first in a folder without a config.json.

    None if there is no such file.
    """
    path = Path(model).expanduser()
    if path.is_dir() and not (path / "config.json").exists():
        return next(iter(sorted(path.glob("*.gguf"))), None)
    return path if path.suffix == ".gguf" and path.is_file() else None


def convert(file: Path, out: Path) -> None:
    """Write the model of a GGUF file to a folder in bf16, with its tokenizer and chat template.

    Args:
        file: the GGUF file.
        out: the folder, which must not exist; it appears only when complete.

    Raises:
        UserError: the package gguf is missing, `out` exists, or transformers cannot read the file or its tokenizer.
    """
    if not find_spec("gguf"):
        raise UserError(
            "gguf.missing-package", f"{file}: reading GGUF needs the package gguf. Install it: pip install gguf"
        )
    if out.exists():
        raise UserError("gguf.output-exists", f"{out} exists and is not overwritten. Choose another name or move it")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    metadata = read_metadata(file)
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.bfloat16)
    except Exception as error:  # an architecture or a quantization that transformers does not know
        raise UserError(
            "gguf.unreadable-file",
            f"{file}: transformers cannot read it ({one_line(error)}). Use the model's safetensors",
        ) from None
    repair_tokenizer(tokenizer, metadata, str(file))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(model.config, name, getattr(tokenizer, name))
    with atomic_write_folder(out) as partial:
        tokenizer.save_pretrained(partial)
        model.save_pretrained(partial)


def read_metadata(file: Path) -> dict[str, Any]:
    """Return the scalar fields of a GGUF file's header."""
    from gguf import GGUFReader, GGUFValueType

    fields = GGUFReader(file).fields
    return {
        name: field.contents()
        for name, field in fields.items()
        if field.types and field.types[0] != GGUFValueType.ARRAY
    }


def repair_tokenizer(tokenizer: Any, metadata: Mapping[str, Any], name: str) -> None:
    """Restore a tokenizer's special tokens, pre-tokenizer and chat template from the file's metadata.

    Args:
        tokenizer: as read by transformers; changed in place.
        metadata: GGUF's fields, tokenizer.ggml.* and tokenizer.chat_template.
        name: what error messages call the file.

    Raises:
        UserError: the pre-tokenizer is not supported.
    """
    for attribute, key in SPECIAL_TOKENS.items():
        id_ = metadata.get(f"tokenizer.ggml.{key}")
        if id_ is not None:
            setattr(tokenizer, attribute, tokenizer.convert_ids_to_tokens(int(id_)))
    pre_tokenizer = str(metadata.get("tokenizer.ggml.pre", ""))
    if pre_tokenizer not in KNOWN_TO_TRANSFORMERS:
        tokenizer.backend_tokenizer.pre_tokenizer = _build_pre_tokenizer(pre_tokenizer, name)
    tokenizer.chat_template = metadata.get("tokenizer.chat_template") or tokenizer.chat_template
    tokenizer.clean_up_tokenization_spaces = False  # True warns at every load, and removes spaces from titles


def _build_pre_tokenizer(kind: str, name: str) -> Any:
    from tokenizers import Regex, pre_tokenizers

    if kind == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if kind == "llama-bpe":
        split = pre_tokenizers.Split(Regex(LLAMA_3_CUTS), "isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    raise UserError(
        "gguf.unknown-pre-tokenizer", f"{name}: unsupported pre-tokenizer {kind!r}. Use the model's safetensors"
    )


@exit_on_user_error
def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        raise UserError("gguf.usage", f"usage: {COMMAND} MODEL.gguf OUT")
    source, out = arguments
    file = gguf_file(source)
    if file is None:
        raise UserError("gguf.missing-file", f"{source}: no GGUF file")
    convert(file, Path(out))
    print(f"wrote {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
