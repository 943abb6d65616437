"""The bytes that each token of a tokenizer stands for, according to its own decoder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from convrec.base.errors import UserError
from convrec.lists.ranks import WHITESPACE


def token_bytes(tokenizer: Any) -> list[bytes]:
    """Return the bytes that each token id adds to the decoded text; b"" for special tokens.

    Raises:
        UserError: the tokenizer is a slow one, or its decoder is not supported.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UserError(
            "lists.slow-tokenizer",
            f"{describe_tokenizer(tokenizer)} is not a fast tokenizer. The rank grammar needs one with a "
            "tokenizer.json.",
        )
    to_bytes = _make_decoder(_read_decoder_steps(tokenizer), describe_tokenizer(tokenizer))
    special_ids = {token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special}
    vocab: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    texts = [b""] * (max(vocab.values()) + 1)
    for token, token_id in vocab.items():
        if token_id not in special_ids:
            texts[token_id] = to_bytes(token)
    return texts


def _read_decoder_steps(tokenizer: Any) -> list[dict[str, Any]]:
    # Only the decoder is printed: the whole tokenizer.json of a large model would take longer than everything else.
    decoder = tokenizer.backend_tokenizer.decoder
    state: dict[str, Any] = {"type": "None"} if decoder is None else json.loads(decoder.__getstate__())
    return state["decoders"] if state["type"] == "Sequence" else [state]


def _parse_fallback_byte(token: str) -> int | None:
    """Return the byte of a byte-fallback token, `<0x0A>` -> 10; None for other tokens."""
    match = re.fullmatch("<0x([0-9A-Fa-f]{2})>", token)
    return int(match[1], 16) if match else None


def find_fallback_tokens(tokenizer: Any) -> dict[int, int]:
    """Return the ids of byte-fallback tokens and their bytes; {} for a decoder without byte fallback."""
    if all(step["type"] != "ByteFallback" for step in _read_decoder_steps(tokenizer)):
        return {}
    vocab = tokenizer.backend_tokenizer.get_vocab(with_added_tokens=True)
    bytes_by_id = {token_id: _parse_fallback_byte(token) for token, token_id in vocab.items()}
    return {token_id: byte for token_id, byte in bytes_by_id.items() if byte is not None}


def _make_decoder(steps: list[dict[str, Any]], name: str) -> Callable[[str], bytes]:
    """Return a function that applies the decoder's steps to one token.

    Steps that act on the ends of the text (Strip, the first token's metaspace) remove only whitespace, and so change no
    line.

    Args:
        steps: of the tokenizer's decoder.
        name: the tokenizer, for error messages.

    Raises:
        UserError: a step is unknown, or acts on more than whitespace or fixed strings.
    """
    unsupported = _find_unsupported_step(steps)
    if unsupported is not None:
        raise UserError(
            "lists.unsupported-decoder",
            f"{name}: its decoder ({unsupported}) is not supported. Use a byte-level tokenizer (Qwen, Llama-3, GPT-2) "
            "or a sentencepiece-style one (Llama-2, Gemma, Mistral).",
        )
    kinds = [step["type"] for step in steps]
    if "ByteLevel" in kinds:
        return _decode_byte_level
    replacements = [(step["pattern"]["String"], step["content"]) for step in steps if step["type"] == "Replace"]
    replacements += [(step["replacement"], " ") for step in steps if step["type"] == "Metaspace"]
    has_byte_fallback = "ByteFallback" in kinds
    prefix = " " if kinds == ["None"] else ""  # without a decoder, tokens are joined with spaces

    def to_bytes(token: str) -> bytes:
        byte = _parse_fallback_byte(token) if has_byte_fallback else None
        if byte is not None:
            return bytes([byte])
        for old, new in replacements:
            token = token.replace(old, new)
        return (prefix + token).encode("utf-8")

    return to_bytes


SUPPORTED_STEPS = {"ByteLevel", "ByteFallback", "Fuse", "Strip", "Replace", "Metaspace", "None"}


def _find_unsupported_step(steps: list[dict[str, Any]]) -> str | None:
    """Return the part of a decoder that cannot be applied token by token; None if there is none."""
    unknown = sorted({step["type"] for step in steps} - SUPPORTED_STEPS)
    if unknown:
        return ", ".join(unknown)
    for step in steps:
        strips_text = step["type"] == "Strip" and step["content"] not in WHITESPACE
        replaces_pattern = step["type"] == "Replace" and "String" not in step["pattern"]
        if strips_text or replaces_pattern:
            return json.dumps(step, ensure_ascii=False)
    return None


def _make_gpt2_alphabet() -> dict[str, int]:
    """Return GPT-2's character for each byte: itself if printable in Latin-1, else the next free one from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(hidden)}


_BYTE_BY_CHARACTER = _make_gpt2_alphabet()
_BYTE_TRANSLATION = {ord(char): byte for char, byte in _BYTE_BY_CHARACTER.items()}
_ALPHABET = frozenset(_BYTE_BY_CHARACTER)


def _decode_byte_level(token: str) -> bytes:
    # a token with any other character (an added token such as "<a b>") stands for itself, as in the tokenizers library
    if _ALPHABET.issuperset(token):
        return token.translate(_BYTE_TRANSLATION).encode("latin-1")
    return token.encode("utf-8")


def describe_tokenizer(tokenizer: Any) -> str:
    """Return a tokenizer's name for error messages."""
    return f"tokenizer {tokenizer.name_or_path or type(tokenizer).__name__}"
