"""A Llama of about a million parameters with its own tokenizer, for the demo and the tests: no download.

    python -m convrec.tiny_model --data data/sample --out data/tiny_model

The tokenizer is a byte-level BPE trained on the spot. Unlike Qwen's it may merge across the spaces of a run of
capitalised words, so that a common film title is one token and the year with its line break another: `Heat`,
` (1995)\\n`. The space before a title stays apart: the title is the same token in a conversation and in a list.

Llama and not Qwen2: loading a `qwen2` folder, transformers 5 puts Qwen2's pre-tokenizer in the place of any other.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from convrec.errors import UserError

END_OF_TEXT, TURN_START, TURN_END = SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Every character belongs to exactly one piece; BPE merges within a piece only.
PIECES = "|".join(
    (
        r" ?\(\p{N}{4}\)\n?",  # a year, and the line break after it
        r"(?:USER|SYSTEM): ",
        # A title: capitalised words or numbers, joined by small words; it may open with a bracket.
        r"[\p{Lu}\p{N}(\[][^\s()\[\]]*[)\]]?"
        r"(?:(?: (?:a|an|and|as|at|by|for|from|in|into|is|it|like|of|on|or|the|to|vs\.|with|&|-|\+))* "
        r"[\p{Lu}(\[](?!\p{N}{4}\))[^\s()\[\]]*[)\]]?|(?: [\p{N}]+(?:[^\s()\[\]]*)))*",
        r" ?\p{Ll}+(?:'\p{Ll}+)?(?: \p{Ll}+(?:'\p{Ll}+)?)*",  # a phrase of small words
        r" ?[^\s\p{L}\p{N}]+\n*",
        r"\s+",
        r".",
    )
)
MIN_PAIR_FREQUENCY = 30  # pairs rarer than this stay apart: genre words must not vanish into whole sentences


def make_tiny_model(
    out: str | os.PathLike,
    texts: Iterable[str],
    *,
    vocab_size: int = 4096,
    hidden_size: int = 128,
    num_layers: int = 3,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    intermediate_size: int = 384,
    max_positions: int = 2048,
    tie_word_embeddings: bool = False,
    seed: int = 3407,
) -> Path:
    """Train the tokenizer on `texts`, draw fp32 weights from `seed`, and write a Hugging Face folder to `out`.

    The same texts and seed give the same bytes; `out` appears whole or not at all and replaces what was there. Raises
    UserError for sizes that cannot work.
    """
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    if hidden_size % num_heads or num_heads % num_kv_heads:
        raise UserError(
            f"hidden_size {hidden_size} must be a multiple of num_heads {num_heads}, "
            f"and that of num_kv_heads {num_kv_heads}"
        )
    head_size = hidden_size // num_heads
    if head_size % 32:
        raise UserError(f"heads of {head_size} do not run in vLLM on a CPU: make hidden_size / num_heads 32 or 64")
    tokenizer = train_tokenizer(texts, vocab_size, max_positions)
    pad, eos = tokenizer.pad_token_id, tokenizer.eos_token_id
    config = LlamaConfig(
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
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.0, top_p=1.0, top_k=0, eos_token_id=[eos, pad], pad_token_id=pad
    )

    out = Path(out)
    partial = out.with_name(f".{out.name}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        tokenizer.save_pretrained(partial)
        model.save_pretrained(partial)
        shutil.rmtree(out, ignore_errors=True)
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return out


def train_tokenizer(texts: Iterable[str], vocab_size: int = 4096, max_length: int = 2048):
    """A `PreTrainedTokenizerFast`: byte-level BPE over PIECES, exact on any text, with ChatML's special tokens."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    smallest = 256 + len(SPECIAL_TOKENS)
    if vocab_size < smallest:
        raise UserError(f"vocab_size {vocab_size}: at least {smallest} (256 bytes and the special tokens)")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=MIN_PAIR_FREQUENCY,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN_START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=max_length,
    )


def read_texts(paths: Iterable[str | os.PathLike]) -> list[str]:
    """The texts of parquet files to train on: messages of `prompt` and `completion`; `title (year)` lines of a catalog.

    A folder stands for the parquet files in it. Raises UserError when nothing is found.
    """
    import pyarrow.parquet as pq

    from convrec.ranks import format_item

    files = []
    for path in map(Path, paths):
        files += sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if missing := [str(file) for file in files if not file.is_file()]:
        raise UserError(f"{', '.join(missing)}: no such file; make the sample data with `python -m data_prep.sample`")
    texts: list[str] = []
    for file in files:
        table = pq.read_table(file)
        for column in ("prompt", "completion"):
            if column not in table.column_names:
                continue
            texts += [message["content"] for messages in table[column].to_pylist() for message in messages]
        if {"title", "year"} <= set(table.column_names):
            films = zip(table["title"].to_pylist(), table["year"].to_pylist(), strict=True)
            texts.append("\n".join(format_item(title, year) for title, year in films))
    if not texts:
        raise UserError(
            f"{', '.join(map(str, paths))}: no prompt, completion or title column in any parquet file there"
        )
    return texts


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m convrec.tiny_model", description=__doc__.split("\n")[0])
    parser.add_argument("--data", nargs="+", default=["data/sample"], help="sample folder or parquet files")
    parser.add_argument("--out", required=True, help="model folder to write; replaced when it is there")
    parser.add_argument("--vocab-size", type=int, default=4096)
    parser.add_argument("--hidden-size", type=int, default=128)
    parser.add_argument("--num-layers", type=int, default=3)
    parser.add_argument("--num-heads", type=int, default=4)
    parser.add_argument("--num-kv-heads", type=int, default=2)
    parser.add_argument("--intermediate-size", type=int, default=384)
    parser.add_argument("--seed", type=int, default=3407)
    given = vars(parser.parse_args(argv))
    data, out = given.pop("data"), given.pop("out")
    try:
        make_tiny_model(out, read_texts(data), **given)
    except UserError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
