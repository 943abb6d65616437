"""Data of the study of repair (notes/repair.md).

    python -m benchmarks.studies.ranks.repair_data wanted-first DATA/train.parquet DATA/sft_train.parquet OUT.parquet
    python -m benchmarks.studies.ranks.repair_data one-wanted DATA OUT

wanted-first: the demonstrations of each training row with its wanted titles at their head, as long as they were: what
SFT makes of the very titles that a repair puts in. one-wanted: a folder's tables with one wanted title a row, drawn by
seed 3407; the rest as it is.
"""

import argparse
import shutil
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.base.files import write_table
from convrec.data.schema import TRUTH
from convrec.lists.ranks import split_lines
from convrec.titles.item import format_item

SEED = 3407


def wanted_first(truth: list[list[str]], text: str) -> str:
    """Put the relevant titles at the head of a list, which keeps its length.

    Args:
        truth: title and year of each.
        text: the list.
    """
    lines = split_lines(text)
    wanted = [format_item(title, int(year)) for title, year in truth]
    return "\n".join([*wanted, *(line for line in lines if line not in wanted)][: len(lines)])


def write_wanted_first(train: Path, demonstrations: Path, out: Path) -> None:
    """Write the demonstrations of training rows with their relevant titles first.

    Args:
        train: the training rows, found by their prompts.
        demonstrations: those without a row, or whose row has no ground truth, are left out.
        out: the file to write.
    """
    truths = {row["prompt"][0]["content"]: row[TRUTH] for row in pq.read_table(train).to_pylist()}
    rows = []
    for row in pq.read_table(demonstrations).to_pylist():
        if truth := truths.get(row["prompt"][0]["content"]):
            answer = row["completion"][0]
            rows.append(row | {"completion": [answer | {"content": wanted_first(truth, answer["content"])}]})
    write_table(out, pa.Table.from_pylist(rows, pq.read_schema(demonstrations)))
    print(f"{out}: {len(rows)} demonstrations, the wanted titles first")


def write_one_wanted(data: Path, out: Path) -> None:
    """Copy a folder's tables, with one relevant title per row, drawn by SEED.

    Args:
        data: the folder; tables for SFT and tables without ground truth are copied as they are.
        out: the folder to write.
    """
    out.mkdir(parents=True, exist_ok=True)
    random = Random(SEED)
    for file in sorted(data.glob("*.parquet")):
        table = pq.read_table(file)
        if TRUTH not in table.schema.names or file.name.startswith("sft"):
            shutil.copyfile(file, out / file.name)
            continue
        rows = [row | {TRUTH: random.sample(row[TRUTH], min(1, len(row[TRUTH])))} for row in table.to_pylist()]
        write_table(out / file.name, pa.Table.from_pylist(rows, table.schema))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("wanted-first", "one-wanted"))
    parser.add_argument("paths", type=Path, nargs="+")
    options = parser.parse_args()
    (write_wanted_first if options.what == "wanted-first" else write_one_wanted)(*options.paths)


if __name__ == "__main__":
    main()
