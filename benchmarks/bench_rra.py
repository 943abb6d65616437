"""Time and memory of remap and adjust on generated data. Prints one JSON object.

python benchmarks/bench_rra.py [--items 7404] [--conversations 10000] [--dimensions 256] [--out FILE]

Each stage is what `data_prep.build` runs, on files it would have written, in a process of its own: peak_mib is that
process's highest resident memory, base_mib what its imports take. remap with lists of 20 and 100 candidates; its
seconds contain fitting TF-IDF and SVD. adjust on 90 % of the conversations, 10 epochs. Wall and CPU seconds, one start.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from convrec.data.schema import TRUTH, prompt_text
from convrec.lists.ranks import format_item
from data_prep.stages import metadata, reflect, remap, rows, teacher

WORDS_OF_A_CONVERSATION, WORDS = 80, 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=7404)
    parser.add_argument("--conversations", type=int, default=10_000)
    parser.add_argument("--dimensions", type=int, default=256)
    parser.add_argument("--seed", type=int, default=3407)
    parser.add_argument("--out", help="also write the JSON there")
    parser.add_argument("--stage", nargs=2, metavar=("NAME", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.stage:
        print(json.dumps(measure(*given.stage, given)))
        return
    report: dict = {"items": given.items, "conversations": given.conversations, "dimensions": given.dimensions}
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder), given.items, given.conversations, np.random.default_rng(given.seed))
        for name in ("remap", "reflect", "adjust"):
            command = [sys.executable, __file__, *sys.argv[1:], "--stage", name, folder]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, env=os.environ)
            report[name] = json.loads(done.stdout)
    text = json.dumps(report, indent=2)
    print(text)
    if given.out:
        Path(given.out).write_text(text + "\n")


def measure(name: str, folder: str, given: argparse.Namespace) -> dict:
    """Run one stage here. `reflect` is the one without a judge: what reading and writing cost."""
    if name == "adjust":
        from data_prep.stages import adjust  # torch belongs to what its process takes before the stage

    base = peak_mib()
    wall, cpu = time.perf_counter(), time.process_time()
    if name == "remap":
        settings = {"remap": "full", "embedding": "tfidf-svd", "dimensions": given.dimensions, "seed": given.seed}
        summary = remap.run(Path(folder), settings | {"candidates": 100, "conversation_weight": 1.0})
    elif name == "reflect":
        summary = reflect.run(Path(folder), {"judge": "none", "gamma": 0.5, "judged": 100}, None)
    else:
        settings = {"penalty": 0.01, "learning_rate": 0.02, "batch_size": 512, "max_epochs": 10, "patience": 10}
        summary = adjust.run(Path(folder), settings | {"held_out": 0.1, "seed": given.seed})
    seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
    summary.pop("moved", None)
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu_seconds, 2),
        "rows_per_second": round(given.conversations / seconds),
        "rows_per_cpu_second": round(given.conversations / cpu_seconds),  # for a machine that does other things too
        "peak_mib": peak_mib(),
        "base_mib": base,
        "summary": summary,
    }


def peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def generate(folder: Path, items: int, conversations: int, rng: np.random.Generator) -> None:
    """What the stages before remap would leave: made-up words by Zipf's law, popular items in the lists."""
    syllables = [a + b for a in "bcdfghklmnprstvwz" for b in "aeiou"]
    words = np.array(["".join(rng.choice(syllables, 4)) for _ in range(WORDS)])
    share = 1 / np.arange(1, WORDS + 1)
    share /= share.sum()
    titles = [f"{a} {b} {n}".title() for n, (a, b) in enumerate(rng.choice(words, (items, 2)))]
    years = (2023 - 70 * rng.random(items) ** 2).astype(int).tolist()
    names = [format_item(*film) for film in zip(titles, years, strict=True)]
    plots = rng.choice(words, (items, 40), p=share)
    texts = ["\n".join((name, "plot: " + " ".join(plot))) for name, plot in zip(names, plots, strict=True)]
    pq.write_table(pa.table({"title": titles, "year": pa.array(years, pa.int32())}), folder / rows.CATALOG)
    pq.write_table(pa.table({"title": titles, "year": years, "text": texts}), folder / metadata.FILE)
    (folder / "rows.json").write_text(
        json.dumps({"id": "", "settings": {"num_items": 20}, "inputs": {}, "files": [], "summary": {}})
    )

    popularity = 1 / np.arange(10, items + 10)
    popularity /= popularity.sum()
    drawn = [rng.choice(items, 24, replace=False, p=popularity) for _ in range(conversations)]
    said = rng.choice(words, (conversations, WORDS_OF_A_CONVERSATION), p=share)
    table = [
        {
            "prompt": [{"content": prompt_text(f"USER: {' '.join(text)} {names[some[20]]}\n"), "role": "user"}],
            "seen_titles": [titles[some[20]]],
            TRUTH: [[titles[m], str(years[m])] for m in (some[0], some[5], some[21])],
            "sample_id": f"c{n}",
            "split": "train",
            "group": f"c{n}",
        }
        for n, (text, some) in enumerate(zip(said, drawn, strict=True))
    ]
    pq.write_table(pa.Table.from_pylist(table, rows.SCHEMA), folder / rows.ROWS)
    lists = [{"sample_id": f"c{n}", "answer": "", "items": some[:20].tolist()} for n, some in enumerate(drawn)]
    pq.write_table(pa.Table.from_pylist(lists, teacher.SCHEMA), folder / teacher.FILE)


if __name__ == "__main__":
    main()
