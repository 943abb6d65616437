"""What bytes each token of a tokenizer stands for, read off its own decoder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from convrec.base.errors import UserError
from convrec.lists.ranks import WHITESPACE


def token_bytes(tokenizer: Any) -> list[bytes]:
    """Bytes that each token id adds to the decoded text, by the tokenizer's own decoder; b"" for special tokens."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UserError(f"{_name(tokenizer)} is not a fast tokenizer: the rank grammar needs its tokenizer.json")
    to_bytes = _decoder_function(_decoder_steps(tokenizer), _name(tokenizer))
    special_ids = {token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special}
    vocab: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    texts = [b""] * (max(vocab.values(), default=-1) + 1)
    for token, token_id in vocab.items():
        if token_id not in special_ids:
            texts[token_id] = to_bytes(token)
    return texts


def _decoder_steps(tokenizer: Any) -> list[dict[str, Any]]:
    # the decoder alone: the whole tokenizer.json of a large model takes longer to print than all the rest
    decoder = tokenizer.backend_tokenizer.decoder
    state: dict[str, Any] = {"type": "None"} if decoder is None else json.loads(decoder.__getstate__())
    return state["decoders"] if state["type"] == "Sequence" else [state]


def _fallback_byte(token: str) -> int | None:
    """The byte of a byte-fallback token, `<0x0A>` -> 10."""
    match = re.fullmatch("<0x([0-9A-Fa-f]{2})>", token)
    return int(match[1], 16) if match else None


def _fallback_tokens(tokenizer: Any) -> dict[int, int]:
    if all(step["type"] != "ByteFallback" for step in _decoder_steps(tokenizer)):
        return {}
    vocab = tokenizer.backend_tokenizer.get_vocab(with_added_tokens=True)
    bytes_by_id = {token_id: _fallback_byte(token) for token, token_id in vocab.items()}
    return {token_id: byte for token_id, byte in bytes_by_id.items() if byte is not None}


def _decoder_function(steps: list[dict[str, Any]], name: str) -> Callable[[str], bytes]:
    """Return the decoder's steps as they act on one token.

    Those that act on the ends of the text (Strip, the first token's metaspace) take whitespace only and so change no
    line.

    Args:
        steps: of the tokenizer's decoder.
        name: of the tokenizer, for the error.

    Raises:
        UserError: a step is not known, or acts on more than whitespace or fixed strings.
    """
    unsupported = _unsupported_step(steps)
    if unsupported is not None:
        raise UserError(
            f"{name}: its decoder ({unsupported}) is not supported; use a byte-level (Qwen, Llama-3, GPT-2) or a "
            "sentencepiece-style tokenizer (Llama-2, Gemma, Mistral)"
        )
    kinds = [step["type"] for step in steps]
    if "ByteLevel" in kinds:
        return _byte_level_bytes
    replacements = [(step["pattern"]["String"], step["content"]) for step in steps if step["type"] == "Replace"]
    replacements += [(step["replacement"], " ") for step in steps if step["type"] == "Metaspace"]
    has_byte_fallback = "ByteFallback" in kinds
    prefix = " " if kinds == ["None"] else ""  # without a decoder, tokens are joined with spaces

    def to_bytes(token: str) -> bytes:
        byte = _fallback_byte(token) if has_byte_fallback else None
        if byte is not None:
            return bytes([byte])
        for old, new in replacements:
            token = token.replace(old, new)
        return (prefix + token).encode("utf-8")

    return to_bytes


KNOWN_STEPS = {"ByteLevel", "ByteFallback", "Fuse", "Strip", "Replace", "Metaspace", "None"}


def _unsupported_step(steps: list[dict[str, Any]]) -> str | None:
    """Return what in a decoder cannot be read token by token; None where all can."""
    unknown = sorted({step["type"] for step in steps} - KNOWN_STEPS)
    if unknown:
        return ", ".join(unknown)
    for step in steps:
        strips_text = step["type"] == "Strip" and step["content"] not in WHITESPACE
        replaces_pattern = step["type"] == "Replace" and "String" not in step["pattern"]
        if strips_text or replaces_pattern:
            return json.dumps(step, ensure_ascii=False)
    return None


def _gpt2_alphabet() -> dict[str, int]:
    """GPT-2's stand-in for each byte: itself where printable in Latin-1, else the next free one from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(hidden)}


_BYTE_OF = _gpt2_alphabet()
_BYTE_TRANSLATION = {ord(char): byte for char, byte in _BYTE_OF.items()}
_ALPHABET = frozenset(_BYTE_OF)


def _byte_level_bytes(token: str) -> bytes:
    # a token with any other character (an added token such as "<a b>") stands for itself, as in the tokenizers
    # library
    if _ALPHABET.issuperset(token):
        return token.translate(_BYTE_TRANSLATION).encode("latin-1")
    return token.encode("utf-8")


def _name(tokenizer: Any) -> str:
    return f"tokenizer {getattr(tokenizer, 'name_or_path', '') or type(tokenizer).__name__}"
