"""A GGUF file -> a Hugging Face folder, which is what training, evaluation and serving read.

    python -m convrec.checkpoints.gguf MODEL.gguf OUT

transformers dequantizes the weights (its package `gguf` is needed: pip install gguf). Of the tokenizer it misreads two
things, which are set here from the file's own metadata: the special tokens (5.9.0 has a Llama's end of sequence be its
beginning), and where text is cut before it is encoded (SmolLM's digits stand alone).
"""

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from convrec.base.errors import UserError, exit_on_user_error, one_line
from convrec.base.files import folder_written_whole

COMMAND = "python -m convrec.checkpoints.gguf"
# tokenizer.ggml.pre whose cuts transformers makes itself
KNOWN_TO_TRANSFORMERS = ("qwen2", "default", "")
LLAMA_3_CUTS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
SPECIAL_TOKENS = {"eos_token": "eos_token_id", "bos_token": "bos_token_id", "pad_token": "padding_token_id"}


def gguf_file(model: str) -> Path | None:
    """Return the GGUF file that a path means: the file, or the first in a folder without a config.json."""
    path = Path(model).expanduser()
    if path.is_dir() and not (path / "config.json").exists():
        return next(iter(sorted(path.glob("*.gguf"))), None)
    return path if path.suffix == ".gguf" and path.is_file() else None


def convert(file: Path, out: Path) -> None:
    """Write the model of a GGUF file to the folder `out`, as bf16, with its tokenizer and chat template.

    Raises UserError where transformers cannot read the file, or its tokenizer not as it was made.
    """
    if not find_spec("gguf"):
        raise UserError(
            f"{file}: transformers reads GGUF by the package gguf, which is not installed: pip install gguf"
        )
    if out.exists():
        raise UserError(f"{out}: already there, and not overwritten; give another name, or move it away")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    metadata = read_metadata(file)
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.bfloat16)
    except Exception as error:  # an architecture or a quantization that it does not know
        raise UserError(f"{file}: transformers cannot read it ({one_line(error)}); take its safetensors") from None
    repair_tokenizer(tokenizer, metadata, str(file))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(model.config, name, getattr(tokenizer, name))
    with folder_written_whole(out) as partial:
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
    """Give a tokenizer the special tokens, cuts and chat template that the file's metadata names.

    Args:
        tokenizer: as transformers has read it.
        metadata: GGUF's fields, tokenizer.ggml.* and tokenizer.chat_template.
        name: how messages call the file.

    Raises UserError for cuts that are not known here.
    """
    for attribute, key in SPECIAL_TOKENS.items():
        id_ = metadata.get(f"tokenizer.ggml.{key}")
        if id_ is not None:
            setattr(tokenizer, attribute, tokenizer.convert_ids_to_tokens(int(id_)))
    cuts = str(metadata.get("tokenizer.ggml.pre", ""))
    if cuts not in KNOWN_TO_TRANSFORMERS:
        tokenizer.backend_tokenizer.pre_tokenizer = _pre_tokenizer(cuts, name)
    tokenizer.chat_template = metadata.get("tokenizer.chat_template") or tokenizer.chat_template
    tokenizer.clean_up_tokenization_spaces = False  # of words' own spaces; else transformers warns at each loading


def _pre_tokenizer(cuts: str, name: str) -> Any:
    from tokenizers import Regex, pre_tokenizers

    if cuts == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if cuts == "llama-bpe":
        split = pre_tokenizers.Split(Regex(LLAMA_3_CUTS), "isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    raise UserError(f"{name}: its tokenizer cuts text as {cuts!r} does, which is not known here; take its safetensors")


@exit_on_user_error
def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        raise UserError(f"usage: {COMMAND} MODEL.gguf OUT")
    source, out = arguments
    file = gguf_file(source)
    if file is None:
        raise UserError(f"{source}: no GGUF file")
    convert(file, Path(out))
    print(f"wrote {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
