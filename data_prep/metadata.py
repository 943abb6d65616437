"""What an item is, in words, for its embedding: keywords and plot by a language model, or what the catalog says."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.asking import BLOCK, Asker
from data_prep.rows import CATALOG, item_name
from data_prep.stages import Summary, parquet_writer
from data_prep.teacher import ITEMS

FILE = "metadata.parquet"
SCHEMA = pa.schema([("title", pa.string()), ("year", pa.int32()), ("text", pa.string())])
PROMPT = (
    "Describe {item} for a recommender system that compares descriptions. Reply with two lines and nothing else:\n"
    "Keywords: ten to fifteen, separated by commas: genre, themes, mood, style, setting, period, who it is for\n"
    "Plot: one or two sentences"
)
CORRECTION = 'That is not the form. Reply with two lines, one that begins with "Keywords:" and one with "Plot:".'


def catalog_texts(catalog: pa.Table) -> list[str]:
    """`title (year)` and every text column of the catalog, `name: value`; lists are joined; numbers are left out."""
    texts = []
    for row in catalog.to_pylist():
        parts = [item_name(row["title"], row["year"])]
        for name, value in row.items():
            words = ", ".join(map(str, value)) if isinstance(value, list) else value
            if name not in ("title", "year") and isinstance(words, str) and words.strip():
                parts.append(f"{name}: {words}")
        texts.append("\n".join(parts))
    return texts


def run(folder: Path, settings: dict[str, Any], asker: Asker | None) -> Summary:
    """settings: metadata ("llm" or "columns"); asker: for the former. An item that the model says nothing usable about
    keeps the catalog's text."""
    catalog, items = pq.read_table(folder / CATALOG), pq.read_table(folder / ITEMS).to_pylist()
    texts = catalog_texts(catalog)
    texts += [item_name(item["title"], item["year"]) for item in items[len(texts) :]]
    fallbacks = 0
    with parquet_writer(folder / FILE, SCHEMA) as writer:
        for start in range(0, len(items), BLOCK):
            block, found = items[start : start + BLOCK], texts[start : start + BLOCK]
            if asker:
                names = [item_name(item["title"], item["year"]) for item in block]
                prompts = [[{"role": "user", "content": PROMPT.format(item=name)}] for name in names]
                answers = asker.ask(prompts, lambda _, text: is_description(text), CORRECTION, "metadata")
                for i, (name, given) in enumerate(zip(names, answers, strict=True)):
                    if is_description(given[-1]):
                        found[i] = f"{name}\n{given[-1].strip()}"
                    else:
                        fallbacks += 1
            rows = [{**item, "text": text} for item, text in zip(block, found, strict=True)]
            writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
    return {"items": len(items)} | ({"kept_catalog_text": fallbacks} | asker.summary() if asker else {})


def is_description(text: str) -> bool:
    lowered = text.lower()
    return "keywords:" in lowered and "plot:" in lowered
