"""Describe items in words for their embedding: the catalog's columns, plus keywords and plot by a language model."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.llm import Messages
from convrec.titles.item import NO_YEAR, format_item
from data_prep.stages.asking import BLOCK, PROMPTS, Asker
from data_prep.stages.record import Summary
from data_prep.stages.rows import CATALOG
from data_prep.stages.teacher import ITEMS
from data_prep.tables import open_table_writer

FILE = "metadata.parquet"
SCHEMA = pa.schema([("title", pa.string()), ("year", pa.int32()), ("text", pa.string())])
_WORD = re.compile(r"[^\W\d_]{2,}")
# Columns that do not describe the item: its name, its frequency as a training target, and pandas' index.
IGNORED_COLUMNS = ("title", "year", "mentions", "__index_level_0__")


def format_catalog_text(row: Mapping[str, Any]) -> str:
    """Format the extra columns of a catalog's row as lines `name: value`; lists are joined, missing values left out."""
    lines = []
    for name, value in row.items():
        values = value if isinstance(value, list) else [value]
        words = ", ".join(str(v) for v in values if v == v and not isinstance(v, bytes | None))  # v == v: no NaN
        if name not in IGNORED_COLUMNS and words.strip():
            lines.append(f"{name}: {words}")
    return "\n".join(lines)


@dataclass(frozen=True)
class MetadataSettings:
    """Settings that the descriptions of items depend on.

    Attributes:
        metadata: "llm" or "columns".
        model: name of the model that is asked; None: none.
        sampling: sampling parameters of its answers.
    """

    metadata: str
    model: str | None = None
    sampling: Mapping[str, Any] | None = None


def run(folder: Path, settings: MetadataSettings, asker: Asker | None) -> Summary:
    """Write a description of each item: the catalog's columns, and what the model adds.

    If the model gives no usable answer, the description is the catalog's text alone.

    Args:
        folder: of the stages.
        settings: what the result depends on.
        asker: asks the model; None: use the catalog's columns only.
    """
    items = pq.read_table(folder / ITEMS).to_pylist()
    catalog = [format_catalog_text(row) for row in pq.read_table(folder / CATALOG).to_pylist()]
    catalog += [""] * (len(items) - len(catalog))
    fallbacks = 0
    with open_table_writer(folder / FILE, SCHEMA) as add:
        for start in range(0, len(items), BLOCK):
            block = items[start : start + BLOCK]
            catalog_texts = catalog[start : start + BLOCK]
            names = [format_item(item["title"], item["year"] or NO_YEAR) for item in block]
            texts = ["\n".join(filter(None, both)) for both in zip(names, catalog_texts, strict=True)]
            if asker:
                prompts = [_make_prompt(name, text) for name, text in zip(names, catalog_texts, strict=True)]
                answers = asker.ask(
                    prompts, lambda _, text: is_description(text), PROMPTS["metadata_again"], "metadata", names=names
                )
                for i, item_answers in enumerate(answers):
                    if is_description(item_answers[-1]):
                        texts[i] += "\n" + item_answers[-1].strip()
                    else:
                        fallbacks += 1
            for item, text in zip(block, texts, strict=True):
                add({**item, "text": text})
    return {"items": len(items)} | ({"kept_catalog_text": fallbacks} | asker.summary() if asker else {})


def has_only_titles(folder: Path) -> bool:
    """Whether metadata.parquet distinguishes items by their names only.

    Numbers do not count, nor do words that all described items share, such as the letters of an id.
    """
    words = []
    for item in pq.read_table(folder / FILE).to_pylist():
        name = format_item(item["title"], item["year"] or NO_YEAR)
        description = {word.lower() for word in _WORD.findall(item["text"].removeprefix(name))}
        if description:
            words.append(description)
    return not words or set.union(*words) == set.intersection(*words)


def _make_prompt(name: str, text: str) -> Messages:
    content = PROMPTS["metadata"].format(item=name) + (PROMPTS["metadata_catalog"].format(text=text) if text else "")
    return [{"role": "user", "content": content}]


def is_description(text: str) -> bool:
    """Whether an answer has the requested lines of keywords and plot."""
    lowered = text.lower()
    return "keywords:" in lowered and "plot:" in lowered
