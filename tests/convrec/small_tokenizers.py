"""Small tokenizers of the kinds that pretrained models have, trained on a few lines: same code, few words."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

# Patterns of the pre-tokenizers in the models' own tokenizer.json.
QWEN_CUTS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA_3_CUTS = QWEN_CUTS.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
# Mistral's tekken and OpenAI's o200k (Phi-4-mini) also split between lower and upper case.
TEKKEN_CUTS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# How tokenizer.json expresses a sentencepiece tokenizer with a dummy prefix: as a normalizer (Mistral 7B, Llama 2 and
# Phi-3 as published), or as a pre-tokenizer (as transformers 5 reads them, depending on their setting `legacy`).
DUMMY_PREFIXES = ("normalizer", "always", "first")


def byte_level(texts: Sequence[str], cuts: str | None, vocab_size: int = 420) -> Tokenizer:
    """Train a byte-level BPE.

    Args:
        texts: to train on.
        cuts: the pattern of the pre-tokenizer; None: single digits and GPT-2's own pattern, as in SmolLM2.
        vocab_size: without the special tokens, which the caller adds.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = make_pre_tokenizer(cuts)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=sorted(alphabet), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def make_pre_tokenizer(cuts: str | None) -> Any:
    """Return the pre-tokenizer of a byte-level tokenizer."""
    if cuts is None:
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    split = pre_tokenizers.Split(Regex(cuts), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def train_sentencepiece(folder: Path, texts: Sequence[str], vocab_size: int = 420, **pieces: Any) -> Path:
    """Train a sentencepiece BPE with byte fallback, as Llama 2 has, and return its tokenizer.model.

    Args:
        folder: to write the file into.
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
    """Read a tokenizer.model into the tokenizer that a repository's tokenizer.json would give.

    Args:
        model_file: of a BPE with byte fallback.
        dummy_prefix: one of DUMMY_PREFIXES; None: no prefix, as in Gemma's.
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
