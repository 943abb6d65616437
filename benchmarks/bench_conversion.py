"""Rows per second and peak memory of `convrec data reddit-v2` on a generated tree. Prints one JSON object.

python benchmarks/bench_conversion.py [--rows 400000] [--folder FOLDER]

The tree has the release's layout and proportions: --rows rows of RL training data, a quarter of them as SFT training
data, 1/40 each of validation and test; prompts of 380 to 5,300 characters, 1,160 in the mean, one row in three
repeating an earlier row's prompt, one to 65 ground truths of a catalog of 7,404. The conversion runs in a process of
its own; its peak is that process's largest resident set, imports included.
"""

import argparse
import json
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.machine import ROOT, print_report
from convrec.data.schema import MESSAGES, format_prompt
from convrec.titles.item import format_item

SHARD_ROWS = 100_000
BATCH_ROWS = 1000  # as `datasets` writes
TREE = pa.schema(
    [
        ("prompt", MESSAGES),
        ("seen_titles", pa.list_(pa.string())),
        ("groundtruth_with_release_year", pa.list_(pa.list_(pa.string()))),
    ]
)
CHILD = """
import json, resource, sys, time
start = time.monotonic()
from data_prep.reddit_v2 import convert
begun = time.monotonic()
summary = convert(sys.argv[1], sys.argv[2])
seconds = time.monotonic() - begun
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
rows = sum(numbers["rows_read"] for numbers in summary["files"].values())
print(json.dumps({"import_seconds": round(begun - start, 2), "seconds": round(seconds, 1), "rows_read": rows,
                  "rows_per_second": round(rows / seconds), "peak_bytes": peak,
                  "rows": {name: numbers["rows"] for name, numbers in summary["files"].items()}}))
"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rows", type=int, default=400_000, help="of the RL training split (%(default)s)")
    arguments.add_argument("--folder", help="where the tree and the result go; needs 3 GB at 400,000 rows")
    arguments.add_argument("--seed", type=int, default=3407)
    options = arguments.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench_conversion_", dir=options.folder))
    try:
        print_report(measure(folder, options.rows, random.Random(options.seed)))
    finally:
        shutil.rmtree(folder)


def measure(folder: Path, rows: int, rng: random.Random) -> dict:
    tree, out = folder / "processed_datasets", folder / "converted"
    start = time.monotonic()
    write_tree(tree, rows, rng)
    generated = time.monotonic() - start
    command = [sys.executable, "-c", CHILD, str(tree), str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {
        "rl_train_rows": rows,
        "tree_bytes": size_of(tree),
        "parquet_bytes": size_of(out),
        "generation_seconds": round(generated, 1),
    } | json.loads(done.stdout)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def write_tree(tree: Path, rows: int, rng: random.Random) -> None:
    syllables = [a + b for a in "bcdfglmnprstvw" for b in "aeiou"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(5000)]
    catalog = [
        (" ".join(rng.choices(words, k=rng.randint(1, 4))).title(), rng.randint(1930, 2022)) for _ in range(7404)
    ]
    tree.mkdir(parents=True)
    (tree / "gt_catalog.pkl").write_bytes(pickle.dumps(catalog))
    completion = TREE.append(pa.field("completion", MESSAGES))
    for name, count, schema in (
        ("grpo/grpo_dataset/train", rows, TREE),
        ("sft_dataset/train", rows // 4, completion),
        ("sft_dataset/validation", rows // 40, completion),
        ("sft_dataset/test", rows // 40, completion),
    ):
        write_split(tree / name, count, schema, words, catalog, rng)


def write_split(
    folder: Path, count: int, schema: pa.Schema, words: list[str], catalog: list[tuple[str, int]], rng: random.Random
) -> None:
    """A split as save_to_disk leaves it: Arrow streams of BATCH_ROWS-row batches, and state.json."""
    folder.mkdir(parents=True)
    shards = max(1, -(-count // SHARD_ROWS))
    names = [f"data-{shard:05d}-of-{shards:05d}.arrow" for shard in range(shards)]
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": f"{count:x}"}
    (folder / "state.json").write_text(json.dumps(state))
    left = count
    for name in names:
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
            for start in range(0, min(left, SHARD_ROWS), BATCH_ROWS):
                size = min(BATCH_ROWS, min(left, SHARD_ROWS) - start)
                stream.write_batch(pa.RecordBatch.from_pylist(make_rows(size, words, catalog, rng), schema))
        left -= SHARD_ROWS


def make_rows(count: int, words: list[str], catalog: list[tuple[str, int]], rng: random.Random) -> list[dict]:
    rows: list[dict] = []
    for _ in range(count):
        if rows and rng.random() < 1 / 3:
            content = rng.choice(rows)["prompt"][0]["content"]
        else:
            length = min(800, int(rng.lognormvariate(4.5, 0.9)))
            content = format_prompt("USER: " + " ".join(rng.choices(words, k=length)) + "\n")
        size = 1 if rng.random() < 0.6 else min(65, 1 + int(rng.expovariate(0.3)))
        truth = rng.sample(catalog, size)
        shown = rng.sample(catalog, 20)
        rows.append(
            {
                "prompt": [{"role": "user", "content": content}],
                "seen_titles": [title for title, _ in rng.sample(catalog, rng.randint(0, 3))],
                "groundtruth_with_release_year": [[title, str(year)] for title, year in truth],
                "completion": [{"role": "assistant", "content": "\n".join(format_item(*item) for item in shown)}],
            }
        )
    return rows


if __name__ == "__main__":
    main()
