"""Generated files that several quantities read: catalogs, a model, the encoded lines of constrained lists.

What is there is kept: all repeats of a size, and later quantities, read the same files.
"""

import random
from pathlib import Path
from typing import Any

from benchmarks.growth.harness import CATALOG_TITLES, SEED

# What reading a catalog, and a tokenizer, imports.
READING = ("pyarrow.dataset", "pyarrow.parquet", "convrec.titles.matching")
TOKENIZER = ("transformers.models.auto.tokenization_auto", "transformers.generation.configuration_utils")


def get_catalog_file(size: int, files: Path) -> Path:
    """Return where `prepare_catalog` writes the catalog of so many titles."""
    return files / f"catalog-{size}.parquet"


def prepare_catalog(size: int, files: Path) -> None:
    """Write a catalog."""
    if not get_catalog_file(size, files).exists():
        write_catalog(size, get_catalog_file(size, files))


def prepare_fixed_catalog(size: int, files: Path) -> None:
    """Write the catalog of CATALOG_TITLES, for a quantity that does not grow with the catalog."""
    prepare_catalog(CATALOG_TITLES, files)


def prepare_catalog_and_model(size: int, files: Path) -> None:
    """Write a catalog and FILES/model."""
    prepare_catalog(size, files)
    if not (files / "model").exists():
        write_model(files / "model")


def write_catalog(size: int, file: Path) -> None:
    """Write a catalog of generated titles, which has ids and mentions."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from benchmarks.generated import generate_catalog

    rng = random.Random(SEED)
    catalog = generate_catalog(size, rng)
    columns = {
        "item_id": [f"i{row}" for row in range(size)],
        "title": catalog.titles,
        "year": pa.array(catalog.years, pa.int32()),
        "mentions": [rng.randrange(size) for _ in range(size)],
    }
    pq.write_table(pa.table(columns), file)


def write_model(folder: Path) -> None:
    """Write what a recommender reads of a model: weights of random numbers, and the tokenizer of `make_tekken`."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from benchmarks.generated import make_tekken

    tokenizer = make_tekken()
    turn_end = "{% if message['role'] == 'assistant' %}</s>{% endif %}"
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}" + turn_end + "\n{% endfor %}"
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": len(tokenizer)}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "max_position_embeddings": 8192}
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    Qwen2ForCausalLM(Qwen2Config(**sizes, **heads, **ends)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def load_model_tokenizer(files: Path) -> Any:
    """Load the tokenizer of FILES/model."""
    from convrec.data.tokenizer import load_tokenizer

    tokenizer, _ = load_tokenizer(str(files / "model"))
    return tokenizer


def prepare_catalog_and_trie(size: int, files: Path) -> None:
    """Write what a start of a service finds: also the encoded lines, as its first start leaves them."""
    from convrec.features.constrained.catalog_trie import catalog_trie
    from convrec.titles.catalog import load_catalog
    from convrec.titles.matching import Matcher

    prepare_catalog_and_model(size, files)
    if not list_tries(size, files):
        file = get_catalog_file(size, files)
        catalog_trie(file, Matcher(load_catalog(file)), load_model_tokenizer(files), "\n", files)


def list_tries(size: int, files: Path) -> list[Path]:
    """Return the files in which a catalog's encoded lines are cached."""
    return list(files.glob(f"{get_catalog_file(size, files).name}.trie-*"))
