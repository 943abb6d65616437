"""files.md: the files that users write and that runs leave, with their columns."""

from importlib import import_module

import pyarrow as pa

from convrec.checkpoints import saving
from convrec.data import schema as data
from convrec.inference import answers
from convrec.judges import schema as judges
from convrec.runs import folder
from reference_pages.markdown import block, code, table

COLUMN_HELP = {
    "prompt": "one {role: user, content}: the instruction, then the conversation as `USER:` and `SYSTEM:` lines",
    "seen_titles": "titles, without years, that the conversation mentions; recommending them earns nothing",
    data.TRUTH: 'relevant items as [title, "YYYY"]; not empty for RL; "" for items without a year',
    "sample_id": "name of the row; the part before `_t` and a number names the conversation",
    "completion": "one {role: assistant, content}: the list to imitate, one `Title (Year)` per line",
    "title": "title of the item",
    "year": "year of the item; null in every row of a catalog without years",
    "prompt_id": "hash of the prompt; rows with the same prompt share one answer",
    "text": "answer of the model",
    "token_ids": "tokens of the answer",
    "finish_reason": "`stop`, or `length` if the answer was cut off",
    "prompt_tokens": "number of tokens in the prompt",
    "prompt_truncated": "whether the beginning of the conversation was cut off",
}
TABLES: dict[str, pa.Schema] = {
    "TRAIN_FILE and VAL_FILE for RL, and evaluation splits": data.RL_SCHEMA,
    "TRAIN_FILE and VAL_FILE for SFT": data.SFT_SCHEMA,
    "CATALOG_FILE": data.CATALOG_SCHEMA,
}


def files_page() -> str:
    """Return the page."""
    tables = "\n\n".join(f"## {title}\n\n{_column_table(schema)}" for title, schema in TABLES.items())
    return f"""
# Files and columns
Every table is a parquet file. `convrec data sample --out data/sample` writes an example of each.

{tables}

Files for SFT need only `prompt`, `completion` and `sample_id`. A catalog may have more columns:

- `item_id`: rows with the same id are one item;
- `display`: text in brackets after the title in lists, as in `Hello [Adele]`;
- `mentions`: how often the item is a training target;
- `genres`: a list of strings, or one string separated by commas or bars;
- any columns of your own, which rewards and slices can read.

A pickled list of (title, year) is also accepted as a catalog.

## Judge data
{block(judges.__doc__ or "")}

## Run folder
{block(folder.__doc__ or "")}

{block(saving.__doc__ or "")}

## generations.parquet of an evaluation
{_column_table(answers.SCHEMA)}

## outputs/demo
{block(import_module("recipes.demo").__doc__ or "")}
"""


def _column_table(schema: pa.Schema) -> str:
    rows = ((code(field.name), code(_describe_type(field.type)), COLUMN_HELP[field.name]) for field in schema)
    return table(("column", "type", "meaning"), rows)


def _describe_type(kind: pa.DataType) -> str:
    return str(kind).replace("element: ", "").replace("item: ", "")
