"""Time and memory of remap and adjust on generated data. Prints JSON, and a table to stderr.

python benchmarks/bench_remap_adjust.py [--items 7404] [--conversations 10000] [--dimensions 256] [--workers 2]

Each stage is the command that a user runs, `convrec demonstrations STAGE`, on what the stages before it would have
left: lists of 20 and 100 candidates. Wall and CPU seconds of all its processes, start included; the peak of their
memory together, shared pages counted once (PSS, asked twice a second). --checkout runs the commands of another checkout
of this program, as a comparison; --epochs are the passes of its fit.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.generated import draw_zipf
from benchmarks.machine import ROOT, print_report
from benchmarks.processes import iter_process_tree, read_pss
from convrec.data.schema import TRUTH, format_prompt
from convrec.titles.item import format_item
from data_prep.stages import metadata, rows, teacher
from data_prep.stages.record import Stage, read_record, run_stage
from data_prep.tables import open_parquet_writer

STAGES = ("remap", "reflect", "adjust")
WORDS_OF_A_CONVERSATION, WORDS = 80, 20_000
BLOCK = 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=7404)
    parser.add_argument("--conversations", type=int, default=10_000)
    parser.add_argument("--dimensions", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--checkout", type=Path, default=ROOT, help="of another commit, which knows no --workers")
    parser.add_argument("--seed", type=int, default=3407)
    parser.add_argument("--folder", type=Path, help="of the generated data, kept and used again (a temporary one)")
    given = parser.parse_args()
    report: dict = {name: getattr(given, name) for name in ("items", "conversations", "dimensions", "workers")}
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        generate(folder, given.items, given.conversations, given.seed)
        for name in STAGES:
            options = [
                f"--dimensions={given.dimensions}",
                f"--max-epochs={given.epochs}",
                "--judge=none",
                "--remap=full",
            ]
            options += [f"--workers={given.workers}"] if given.workers else []
            (folder / f"{name}.json").unlink(missing_ok=True)  # of a kept folder: what was done is done again
            command = [sys.executable, "-m", "recipes", "demonstrations", name]
            command += ["--out", str(folder), "--redo", *options]
            report[name] = measure(command, given.checkout)
            record = read_record(folder, name)
            assert record is not None
            report[name]["summary"] = {k: v for k, v in record["summary"].items() if k != "warnings"}
            print(f"{name:8} {report[name]['seconds']:8.1f} s   {report[name]['cpu_seconds']:8.1f} CPU s   "
                  f"{report[name]['peak_mib']:6,} MiB", file=sys.stderr)  # fmt: skip
    print_report(report)


def measure(command: list[str], checkout: Path) -> dict:
    """Raises CalledProcessError where the command fails."""
    before, start, peak = children_cpu(), time.perf_counter(), 0
    environment = {**psutil.Process().environ(), "PYTHONPATH": str(checkout)}
    with subprocess.Popen(command, cwd=checkout, env=environment, stdout=sys.stderr) as done:
        while done.poll() is None:
            peak = max(peak, sum(map(read_pss, iter_process_tree(done.pid))))
            time.sleep(0.5)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command)
    seconds, cpu_seconds = time.perf_counter() - start, children_cpu() - before
    return {"seconds": round(seconds, 1), "cpu_seconds": round(cpu_seconds, 1), "peak_mib": peak >> 20}


def children_cpu() -> float:
    times = psutil.Process().cpu_times()
    return times.children_user + times.children_system


# ---- what the stages before remap would leave


@dataclass(frozen=True)
class Generated:
    """What the generated stages depend on."""

    items: int
    conversations: int
    seed: int
    num_items: int


def generate(folder: Path, items: int, conversations: int, seed: int) -> None:
    """Made-up words by Zipf's law, popular items in the lists. What is there is kept."""
    rng = np.random.default_rng(seed)
    syllables = [a + b for a in "bcdfghklmnprstvwz" for b in "aeiou"]
    words = np.array(["".join(some) for some in rng.choice(syllables, (WORDS, 4))])
    named = rng.choice(words, (items, 2))
    titles = [f"{a} {b} {n}".title() for n, (a, b) in enumerate(named)]
    years = (2023 - 70 * rng.random(items) ** 2).astype(int).tolist()
    settings = Generated(items, conversations, seed, num_items=20)
    write_items = partial(_write_items, words=words, titles=titles, years=years, rng=rng)
    write_rows = partial(_write_rows, words=words, titles=titles, years=years, count=conversations, rng=rng)
    run_stage(Stage("rows", [], (rows.ROWS, rows.CATALOG, teacher.FILE), write_rows), folder, settings, False)
    run_stage(Stage("teacher", ["rows"], (teacher.FILE,), lambda *_: {}), folder, settings, True)
    run_stage(Stage("metadata", ["rows"], (metadata.FILE,), write_items), folder, settings, False)


def _write_items(
    folder: Path, _: Generated, words: np.ndarray, titles: list, years: list, rng: np.random.Generator
) -> dict:
    plots = words[draw_zipf(rng, WORDS, (len(titles), 40), first=1)]
    names = [format_item(*film) for film in zip(titles, years, strict=True)]
    texts = ["\n".join((name, "plot: " + " ".join(plot))) for name, plot in zip(names, plots, strict=True)]
    pq.write_table(pa.table({"title": titles, "year": years, "text": texts}), folder / metadata.FILE)
    return {}


def _write_rows(
    folder: Path, _: Generated, words: np.ndarray, titles: list, years: list, count: int, rng: np.random.Generator
) -> dict:
    pq.write_table(pa.table({"title": titles, "year": pa.array(years, pa.int32())}), folder / rows.CATALOG)
    with (
        open_parquet_writer(folder / rows.ROWS, rows.SCHEMA) as writer,
        open_parquet_writer(folder / teacher.FILE, teacher.SCHEMA) as lists,
    ):
        for start in range(0, count, BLOCK):
            size = min(BLOCK, count - start)
            said = words[draw_zipf(rng, WORDS, (size, WORDS_OF_A_CONVERSATION), first=1)]
            drawn = [list(dict.fromkeys(some))[:24] for some in draw_zipf(rng, len(titles), (size, 60)).tolist()]
            table = [
                {
                    "prompt": [{"content": format_prompt(f"USER: {' '.join(text)} {_name(titles, years, some[-1])}\n"),
                                "role": "user"}],
                    "seen_titles": [titles[some[-1]]],
                    TRUTH: [[titles[m], str(years[m])] for m in (some[0], some[5], some[-2])],
                    "sample_id": f"c{start + n}",
                    "split": "train",
                    "group": f"c{start + n}",
                }
                for n, (text, some) in enumerate(zip(said, drawn, strict=True))
            ]  # fmt: skip
            writer.write_table(pa.Table.from_pylist(table, rows.SCHEMA))
            listed = [{"sample_id": f"c{start + n}", "answer": "", "items": some[:20]} for n, some in enumerate(drawn)]
            lists.write_table(pa.Table.from_pylist(listed, teacher.SCHEMA))
    return {}


def _name(titles: list, years: list, item: int) -> str:
    return format_item(titles[item], years[item])


if __name__ == "__main__":
    main()
