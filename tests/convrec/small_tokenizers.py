"""Tokenizers of the kinds that pretrained models have, trained here on a few lines: same code, few words."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

# Where text is cut before it is encoded, as the models' own tokenizer.json say it.
QWEN_CUTS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA_3_CUTS = QWEN_CUTS.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
# Mistral's tekken and OpenAI's o200k, of Phi-4-mini, cut at changes from small letters to capitals, too.
TEKKEN_CUTS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# How a sentencepiece tokenizer with a dummy prefix is written down: by a normalizer (Mistral 7B, Llama 2 and Phi-3 as
# they were published), or by a pre-tokenizer (as transformers 5 reads them, by their setting `legacy`).
DUMMY_PREFIXES = ("normalizer", "always", "first")


def byte_level(texts: Sequence[str], cuts: str | None, vocab_size: int = 420) -> Tokenizer:
    """Train a byte-level BPE.

    Args:
        texts: to train on.
        cuts: the pattern of the pre-tokenizer; None: digits alone, and GPT-2's own, as SmolLM2 has it.
        vocab_size: without the special tokens, which the caller adds.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = cutting(cuts)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=sorted(alphabet), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def cutting(cuts: str | None) -> Any:
    """The pre-tokenizer of a byte-level tokenizer."""
    if cuts is None:
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    split = pre_tokenizers.Split(Regex(cuts), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def train_sentencepiece(folder: Path, texts: Sequence[str], vocab_size: int = 420, **pieces: Any) -> Path:
    """Train a sentencepiece BPE with byte fallback, as those of Llama 2; return its tokenizer.model.

    Args:
        folder: where the file is written.
        texts: to train on.
        vocab_size: at most.
        pieces: sentencepiece's names of special tokens.
    """
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in texts for line in text.splitlines() if line]),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=vocab_size,
        hard_vocab_limit=False,
        model_type="bpe",
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
        **pieces,
    )
    return folder / "tokenizer.model"


def read_sentencepiece(model_file: Path, dummy_prefix: str | None) -> Tokenizer:
    """Read a tokenizer.model as the tokenizer.json of a repository has it.

    Args:
        model_file: of a BPE with byte fallback.
        dummy_prefix: one of DUMMY_PREFIXES; None: without one, as Gemma's.
    """
    from transformers.convert_slow_tokenizer import SentencePieceExtractor

    parts = SentencePieceExtractor(str(model_file)).extract(models.BPE)
    tokenizer = Tokenizer(
        models.BPE(parts["vocab"], parts["merges"], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if dummy_prefix is None:
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
    elif dummy_prefix == "normalizer":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=dummy_prefix, split=False)
    tokenizer.decoder = decoders.Sequence(steps if dummy_prefix is None else [*steps, decoders.Strip(" ", 1, 0)])
    for token in parts["additional_special_tokens"]:
        add = tokenizer.add_special_tokens if token.special else tokenizer.add_tokens
        add([token])
    return tokenizer
