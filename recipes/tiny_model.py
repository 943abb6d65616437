"""Make a Qwen2, Llama or Qwen3 of about a million parameters with its own tokenizer, without a download.

The tokenizer is a `Qwen2Tokenizer`: byte-level BPE, trained after Qwen2's NFC normalization and pre-tokenizer, which
loading a `qwen2` folder restores. That pre-tokenizer splits at every space and digit, so titles and years are added
tokens: a line of a list is two tokens, `The Godfather` and ` (1972)\\n`. The two halves of the instruction, the same in
every prompt, are added tokens as well. Added tokens are matched before pre-tokenization: titles only as whole words
("It" does not match in "Italian"), and without the space before them, so that a title is the same token in a
conversation and in a list.
"""

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

from convrec.base.errors import UserError
from convrec.base.files import atomic_write_folder
from convrec.base.options import command
from convrec.data.schema import INSTRUCTION_TEMPLATE
from convrec.judges import prompt as build_judge_prompt
from convrec.titles.item import NO_YEAR, format_item
from recipes.options.tiny_model import TinyModelOptions

END_OF_TEXT, TURN_START, TURN_END = SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
YEAR = re.compile(r" \((?:18|19|20)\d\d\)")
MODEL_TYPES = ("qwen2", "llama", "qwen3")  # in config.json; vLLM runs the first with its model runner V1
MIN_PAIR_FREQUENCY = 30  # rarer pairs are not merged: genre words must not disappear in tokens of whole sentences


def make_tiny_model(
    out: str | os.PathLike,
    texts: Sequence[str],
    titles: Iterable[str] = (),
    *,
    vocab_size: int = 4096,
    hidden_size: int = 128,
    num_layers: int = 3,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    intermediate_size: int = 384,
    max_positions: int = 2048,
    tie_word_embeddings: bool = False,
    fill_vocab: bool = False,
    model_type: str = MODEL_TYPES[0],
    seed: int = 3407,
) -> Path:
    """Train a tokenizer, draw fp32 weights, and write a Hugging Face folder, completely or not at all.

    The same arguments give the same bytes.

    Args:
        out: folder to write.
        texts: to train the tokenizer on.
        titles: each becomes a token.
        vocab_size: largest number of tokens.
        hidden_size: width of the hidden states.
        num_layers: number of transformer layers.
        num_heads: attention heads per layer.
        num_kv_heads: key and value heads per layer.
        intermediate_size: width of the feed-forward layers.
        max_positions: longest sequence.
        tie_word_embeddings: share one matrix between input and output embeddings.
        fill_vocab: make exactly `vocab_size` tokens, even if the texts have too few.
        model_type: one of MODEL_TYPES; the tokenizer is the same for all.
        seed: of the weights.

    Returns:
        `out` as a path.

    Raises:
        UserError: `out` exists, or sizes do not fit together.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    out = Path(out)
    if out.exists():
        raise UserError(
            "tiny-model.existing-out",
            f"--out {out}: exists and is not overwritten. Choose another name, or move it away.",
        )
    if hidden_size % num_heads or num_heads % num_kv_heads:
        raise UserError(
            "tiny-model.indivisible-sizes",
            f"hidden_size {hidden_size} must be a multiple of num_heads {num_heads}, and that of num_kv_heads "
            f"{num_kv_heads}",
        )
    head_size = hidden_size // num_heads
    if head_size % 32:
        raise UserError(
            "tiny-model.unsupported-head-size",
            f"hidden_size / num_heads = {head_size}: vLLM does not support this head size on a CPU. Make it 32 or 64.",
        )
    tokenizer = train_tokenizer(texts, titles, vocab_size, max_positions, fill_vocab)
    pad = tokenizer.pad_token_id
    eos = tokenizer.eos_token_id
    config = AutoConfig.for_model(
        model_type,
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        intermediate_size=intermediate_size,
        max_position_embeddings=max_positions,
        tie_word_embeddings=tie_word_embeddings,
        bos_token_id=None,
        eos_token_id=eos,
        pad_token_id=pad,
        dtype="float32",
        **({} if model_type == "qwen2" else {"head_dim": head_size}),  # Qwen2 derives it from the other sizes
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.0, top_p=1.0, top_k=0, eos_token_id=[eos, pad], pad_token_id=pad
    )

    with atomic_write_folder(out) as partial:
        tokenizer.save_pretrained(partial)
        model.save_pretrained(partial)
    return out


def train_tokenizer(
    texts: Sequence[str],
    titles: Iterable[str] = (),
    vocab_size: int = 4096,
    max_length: int = 2048,
    fill_vocab: bool = False,
) -> Any:
    """Train a `Qwen2Tokenizer`, lossless on NFC text, with ChatML's special tokens and a token per title and year.

    A title that its own token would not decode to (`Amélie`, see `is_exact`) is left to the BPE.

    Args:
        texts: to train on.
        titles: each becomes a token.
        vocab_size: largest number of tokens.
        max_length: longest sequence.
        fill_vocab: add tokens `filler000000 ...`, which no merge makes, up to `vocab_size`, so that every id decodes.

    Raises:
        UserError: `vocab_size` is too small for the bytes, titles and years.
    """
    from transformers import Qwen2Tokenizer

    years = sorted({year for text in texts for year in YEAR.findall(text)})
    phrases = INSTRUCTION_TEMPLATE.split("{num_items}") + [year + end for year in years for end in ("\n", "")]
    added = [AddedToken(phrase, special=False, normalized=False) for phrase in phrases]
    added += [
        AddedToken(title, special=False, normalized=False, single_word=True)
        for title in dict.fromkeys(titles)
        if is_exact(title)
    ]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    smallest = len(alphabet) + len(SPECIAL_TOKENS) + len(added)
    if vocab_size < smallest:
        raise UserError(
            "tiny-model.small-vocabulary",
            f"vocab_size {vocab_size}: must be at least {smallest} (256 bytes, {len(SPECIAL_TOKENS)} special tokens, "
            f"{len(added)} for titles, years and the instruction)",
        )
    blank = Qwen2Tokenizer()  # has the normalizer and pre-tokenizer that loading the folder restores
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = blank.backend_tokenizer.normalizer
    bpe.pre_tokenizer = blank.backend_tokenizer.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL_TOKENS) - len(added),
        min_frequency=MIN_PAIR_FREQUENCY,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    trained = json.loads(bpe.to_str())["model"]
    if fill_vocab:
        missing = vocab_size - len(SPECIAL_TOKENS) - len(added) - len(trained["vocab"])
        trained["vocab"] |= {f"filler{n:06d}": len(trained["vocab"]) + n for n in range(missing)}
    tokenizer = Qwen2Tokenizer(
        vocab=trained["vocab"],
        merges=[tuple(pair) for pair in trained["merges"]],
        unk_token=END_OF_TEXT,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN_START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=max_length,
    )
    tokenizer.add_tokens(added)
    return tokenizer


def is_exact(title: str) -> bool:
    """Return whether an added token with this text decodes to itself.

    The byte-level decoder reads any token whose characters all stand for bytes as bytes: `é` alone is the byte E9. With
    a space, which stands for no byte, it keeps the text.
    """
    return bool(title) and (title.isascii() or not set(pre_tokenizers.ByteLevel.alphabet()).issuperset(title))


def read_texts(paths: Iterable[str | os.PathLike]) -> list[str]:
    """Read texts to train on from parquet files: messages of `prompt` and `completion`, `title (year)` of catalogs.

    Args:
        paths: files, and folders that stand for the parquet files in them.

    Raises:
        UserError: there are no texts.
    """
    texts: list[str] = []
    for file in _find_parquet_files(paths):
        table = pq.read_table(file)
        for column in ("prompt", "completion"):
            if column not in table.column_names:
                continue
            texts += [message["content"] for messages in table[column].to_pylist() for message in messages]
        if {"title", "year"} <= set(table.column_names):
            films = zip(table["title"].to_pylist(), table["year"].to_pylist(), strict=True)
            texts.append("\n".join(format_item(title, year or NO_YEAR) for title, year in films))
    if not texts:
        raise UserError(
            "tiny-model.no-texts",
            f"{', '.join(map(str, paths))}: no parquet file with a column prompt, completion or title",
        )
    return texts


def read_titles(paths: Iterable[str | os.PathLike]) -> list[str]:
    """Read the titles of the catalogs (parquet with title and year) among files and folders, in order."""
    catalogs = [file for file in _find_parquet_files(paths) if {"title", "year"} <= set(pq.read_schema(file).names)]
    return [title for file in catalogs for title in pq.read_table(file, columns=["title"])["title"].to_pylist()]


def _find_parquet_files(paths: Iterable[str | os.PathLike]) -> list[Path]:
    files: list[Path] = []
    for path in map(Path, paths):
        files += sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if missing := [str(file) for file in files if not file.is_file()]:
        raise UserError(
            "tiny-model.missing-file",
            f"{', '.join(missing)}: no such file. Make the sample data with `convrec data sample`.",
        )
    if others := [str(file) for file in files if file.suffix != ".parquet"]:
        raise UserError("tiny-model.not-parquet", f"{others[0]}: not a parquet file. Make one with `convrec data own`.")
    return files


@command(TinyModelOptions)
def main(options: TinyModelOptions) -> int:
    """Make a tiny model; return the exit status."""
    parts = build_judge_prompt.phrases() if options.judge else []
    make_tiny_model(
        options.out,
        read_texts(options.data),
        [*read_titles(options.data), *parts],
        vocab_size=options.vocab_size,
        hidden_size=options.hidden_size,
        num_layers=options.num_layers,
        num_heads=options.num_heads,
        num_kv_heads=options.num_kv_heads,
        intermediate_size=options.intermediate_size,
        tie_word_embeddings=options.tie_word_embeddings,
        fill_vocab=options.fill_vocab,
        model_type=options.model_type,
        seed=options.seed,
    )
    print(f"wrote {options.out}")
    return 0
