"""Tiny random models of every architecture in the table of families: heads, grouped keys, sliding windows."""

import json
from pathlib import Path

from convrec.data.families import FAMILIES, Family
from recipes.tiny_model import make_tiny_model

TEXTS = ["Toy Story (1995)\nAmélie (2001)\nUSER: SYSTEM: "] * 30
# Two query heads share one key-value head.
SIZES = {"hidden_size": 64, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1, "max_positions": 512}


def find_distinct_shapes() -> dict[str, tuple[Family, bool]]:
    """Return (family, whether its head is tied) by name; only the first family of each shape."""
    shapes: dict[str, tuple[Family, bool]] = {}
    for family in FAMILIES:
        for is_tied in family.is_tied:
            name = "-".join([family.model_type, "tied" if is_tied else "untied", *family.config])
            shapes.setdefault(name, (family, is_tied))
    return shapes


SHAPES = find_distinct_shapes()


def make_model(folder: Path, shape: str) -> Path:
    """Write a tiny model's folder, with the peculiarities in the table's config."""
    family, is_tied = SHAPES[shape]
    make_tiny_model(folder, TEXTS, vocab_size=400, tie_word_embeddings=is_tied, model_type=family.model_type, **SIZES)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | dict(family.config)))
    return folder
