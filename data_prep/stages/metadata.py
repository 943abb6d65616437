"""What an item is, in words, for its embedding: what the catalog says, and keywords and plot by a language model."""

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
from data_prep.tables import table_writer

FILE = "metadata.parquet"
SCHEMA = pa.schema([("title", pa.string()), ("year", pa.int32()), ("text", pa.string())])
# The name, how often an item is a training target, and what pandas leaves.
_WORD = re.compile(r"[^\W\d_]{2,}")
NOT_WORDS = ("title", "year", "mentions", "__index_level_0__")


def catalog_text(row: Mapping[str, Any]) -> str:
    """The further columns of a catalog's row, a line `name: value` each; lists are joined, what is missing left out."""
    lines = []
    for name, value in row.items():
        values = value if isinstance(value, list) else [value]
        words = ", ".join(str(v) for v in values if v == v and not isinstance(v, bytes | None))  # v == v: no NaN
        if name not in NOT_WORDS and words.strip():
            lines.append(f"{name}: {words}")
    return "\n".join(lines)


@dataclass(frozen=True)
class MetadataSettings:
    """What the words for items depend on.

    Attributes:
        metadata: "llm" or "columns".
        model: that is asked, where one is.
        sampling: of its answers.
    """

    metadata: str
    model: str | None = None
    sampling: Mapping[str, Any] | None = None


def run(folder: Path, settings: MetadataSettings, asker: Asker | None) -> Summary:
    """Write words for each item: the catalog's, and what the model adds.

    The catalog's text is all there is of an item that the model says nothing usable about.

    Args:
        folder: of the stages.
        settings: what the result depends on.
        asker: of the model; None: the catalog's columns are all.
    """
    items = pq.read_table(folder / ITEMS).to_pylist()
    catalog = [catalog_text(row) for row in pq.read_table(folder / CATALOG).to_pylist()]
    catalog += [""] * (len(items) - len(catalog))
    fallbacks = 0
    with table_writer(folder / FILE, SCHEMA) as add:
        for start in range(0, len(items), BLOCK):
            block = items[start : start + BLOCK]
            known = catalog[start : start + BLOCK]
            names = [format_item(item["title"], item["year"] or NO_YEAR) for item in block]
            texts = ["\n".join(filter(None, both)) for both in zip(names, known, strict=True)]
            if asker:
                prompts = [_prompt(name, text) for name, text in zip(names, known, strict=True)]
                answers = asker.ask(
                    prompts, lambda _, text: is_description(text), PROMPTS["metadata_again"], "metadata", names=names
                )
                for i, given in enumerate(answers):
                    if is_description(given[-1]):
                        texts[i] += "\n" + given[-1].strip()
                    else:
                        fallbacks += 1
            for item, text in zip(block, texts, strict=True):
                add({**item, "text": text})
    return {"items": len(items)} | ({"kept_catalog_text": fallbacks} | asker.summary() if asker else {})


def has_only_titles(folder: Path) -> bool:
    """Whether metadata.parquet tells items apart by nothing but their names: what it says besides, if anything, are
    numbers, or the same words of every item that it says something about (the letters of an id)."""
    words = []
    for item in pq.read_table(folder / FILE).to_pylist():
        name = format_item(item["title"], item["year"] or NO_YEAR)
        said = {word.lower() for word in _WORD.findall(item["text"].removeprefix(name))}
        if said:
            words.append(said)
    return not words or set.union(*words) == set.intersection(*words)


def _prompt(name: str, text: str) -> Messages:
    content = PROMPTS["metadata"].format(item=name) + (PROMPTS["metadata_catalog"].format(text=text) if text else "")
    return [{"role": "user", "content": content}]


def is_description(text: str) -> bool:
    lowered = text.lower()
    return "keywords:" in lowered and "plot:" in lowered
