"""Options of `convrec tiny-model`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from convrec.base.options import Integer, PositiveInteger


@dataclass(frozen=True, kw_only=True)
class TinyModelOptions:
    """Make a Qwen2, Llama or Qwen3 of about a million parameters with its own tokenizer, without a download.

    convrec tiny-model --data data/sample --out data/tiny_model
    """

    COMMAND: ClassVar[str] = "tiny-model"

    out: str
    """model folder to write; must not exist"""
    data: Sequence[str] = ("data/sample",)
    """sample folder or parquet files; a catalog's titles become tokens"""
    judge: bool = False
    """add a token for each constant part of a judge's prompt"""
    vocab_size: PositiveInteger = 4096
    """largest number of tokens in the tokenizer"""
    fill_vocab: bool = False
    """make exactly --vocab-size tokens, even if the texts have too few words"""
    tie_word_embeddings: bool = False
    """share one matrix between input and output embeddings, like Qwen2.5-0.5B"""
    model_type: Literal["qwen2", "llama", "qwen3"] = "qwen2"
    """architecture in config.json"""
    hidden_size: PositiveInteger = 128
    """width of the hidden states"""
    num_layers: PositiveInteger = 3
    """transformer layers"""
    num_heads: PositiveInteger = 4
    """attention heads per layer"""
    num_kv_heads: PositiveInteger = 2
    """key and value heads per layer"""
    intermediate_size: PositiveInteger = 384
    """width of the feed-forward layers"""
    seed: Integer = 3407
    """random seed of the initial weights"""
