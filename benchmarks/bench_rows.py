"""A row of a large training table, as RL and SFT read it. Prints JSON.

python benchmarks/bench_rows.py --rows 400000 --gib 3 [--large-strings]

Conversations of equal length are generated and written under --folder (a temporary one), in row groups of 50,000 rows;
--large-strings writes them as pandas 3 and polars do. Milliseconds are medians over rows drawn from anywhere: of the
table alone, of the dataset with chat template and tokenizer, which shortens no prompt here, and of `Table.take`.
Drawing a hundredth of the rows is what `max_samples` does. `peak GiB` is the whole process's.
"""

import argparse
import json
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from omegaconf import OmegaConf

from convrec.data.schema import SFT_SCHEMA, TRUTH, format_prompt
from convrec.training.dataset import ConvRecDataset, DemonstrationDataset, draw_rows, read_row
from recipes.tiny_model import train_tokenizer

GROUP_ROWS = 50_000
SENTENCE = "I like slow films about trains and the people who miss them, please name some more of these. "
ANSWER = "\n".join(f"Heat ({year})" for year in range(1990, 2010))


def write_table(file: Path, num_rows: int, row_bytes: int, schema: pa.Schema) -> None:
    """Rows of about `row_bytes` of text, each with a number of its own."""
    words = " ".join(random.Random(1).choices(SENTENCE.split(), k=row_bytes // 4))
    with pq.ParquetWriter(file, schema) as writer:
        for start in range(0, num_rows, GROUP_ROWS):
            numbers = range(start, min(start + GROUP_ROWS, num_rows))
            rows = [make_row(number, words[: row_bytes - len(ANSWER)]) for number in numbers]
            writer.write_table(pa.Table.from_pylist(rows, schema))


def make_row(number: int, words: str) -> dict[str, Any]:
    text = format_prompt(f"USER: {number} {words}\n")
    return {
        "prompt": [{"role": "user", "content": text}],
        "seen_titles": ["Alien"],
        TRUTH: [["Heat", "1995"]],
        "sample_id": f"row_{number:06d}",
        "completion": [{"role": "assistant", "content": ANSWER}],
    }


def large(kind: pa.DataType) -> pa.DataType:
    """The type as pandas 3 and polars write it."""
    if pa.types.is_string(kind):
        return pa.large_string()
    if pa.types.is_list(kind):
        return pa.list_(large(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, large(field.type)) for field in kind])
    return kind


def median_milliseconds(read: Callable[[int], object], rows: list[int]) -> float:
    seconds = []
    for row in rows:
        begin = time.perf_counter()
        read(row)
        seconds.append(time.perf_counter() - begin)
    return round(1000 * statistics.median(seconds), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--gib", type=float, default=3.0, help="of text in all (%(default)s)")
    parser.add_argument("--reads", type=int, default=200, help="rows that are timed (%(default)s)")
    parser.add_argument("--folder", type=Path, help="for the table (a temporary one)")
    parser.add_argument("--large-strings", action="store_true")
    options = parser.parse_args()
    schema = pa.schema([(field.name, large(field.type)) for field in SFT_SCHEMA])
    row_bytes = int(options.gib * 2**30 / options.rows)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        file = Path(folder) / "rows.parquet"
        write_table(file, options.rows, row_bytes, schema if options.large_strings else SFT_SCHEMA)
        print(json.dumps(measure(file, options.rows, options.reads, row_bytes), indent=2))


def measure(file: Path, num_rows: int, num_reads: int, row_bytes: int) -> dict[str, Any]:
    tokenizer = train_tokenizer([format_prompt(SENTENCE) + ANSWER] * 40, vocab_size=1000)
    config = OmegaConf.create({"max_prompt_length": 2 * row_bytes, "max_length": 2 * row_bytes, "seed": 1})
    rows = random.Random(2).choices(range(num_rows), k=num_reads)
    report: dict[str, Any] = {"rows": num_rows, "bytes of a row": row_bytes}
    # One after the other: two of these tables are more than a small machine holds.
    report["RL"] = measure_dataset(lambda: ConvRecDataset(str(file), tokenizer, config), "dataframe", rows)
    report["SFT"] = measure_dataset(lambda: DemonstrationDataset(str(file), tokenizer, config), "table", rows)
    report["peak GiB"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)
    return report


def measure_dataset(load: Callable[[], Any], table_name: str, rows: list[int]) -> dict[str, Any]:
    """Figures of a dataset, which holds its table as `table_name`."""
    begin = time.perf_counter()
    dataset = load()
    loaded = time.perf_counter()
    table = getattr(dataset, table_name)
    draw_rows(table, max(1, len(table) // 100), seed=1)
    drawn = time.perf_counter()
    return {
        "GiB": round(table.nbytes / 2**30, 2),
        "seconds to load": round(loaded - begin, 2),
        "seconds to draw a hundredth": round(drawn - loaded, 3),
        "ms of a row": median_milliseconds(lambda row: read_row(table, row), rows),
        "ms of a row, tokenized": median_milliseconds(dataset.__getitem__, rows),
        "ms of a row by take": take_milliseconds(table, rows[:1]),
    }


def take_milliseconds(table: pa.Table, rows: list[int]) -> float | str:
    """What `Table.take` takes for a row, or why it fails."""
    try:
        return median_milliseconds(lambda row: table.take([row]), rows)
    except pa.ArrowInvalid as error:
        return str(error)


if __name__ == "__main__":
    main()
