"""The paper's table 2, small: demonstrations without one stage each, and a small model trained on each. Writes tables.

python benchmarks/studies/rra_ablation.py --source REDIAL --out OUT [--titles 200] [--num-items 20] [--steps 250]

--source is a folder for `benchmarks.studies.retrieval`. The retrieval teacher and the rule `--judge cooccurrence` stand
in for language models. All variants start from one model, trained from scratch on lists for short prompts; held-out
rows are validation and the test rows of `benchmarks.studies.retrieval`. What is in OUT is used again. OUT/tables.json
has, for the demonstrations themselves and for the models' greedy lists, each variant's metrics with standard errors and
`full` minus each other variant, row by row.
"""

import argparse
import csv
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.base.files import write_json
from convrec.data.schema import get_truth
from convrec.lists.metrics import evaluate_row, list_metric_names, paired, summarise
from convrec.lists.ranks import parse_items
from convrec.lists.settings import ListSettings
from convrec.titles.catalog import load_catalog
from convrec.titles.matching import Matcher

ROOT = Path(__file__).resolve().parents[2]
FULL = ("--judge", "cooccurrence")
VARIANTS = {
    "teacher": ("--judge", "none", "--remap", "none", "--max-epochs", "0"),
    "without remap": (*FULL, "--remap", "none"),
    "without reflect": ("--judge", "none"),
    "without adjust": (*FULL, "--max-epochs", "0"),
    "full": FULL,
}
TRAINED = ("teacher", "without remap", "without reflect", "full")
PROMPT = 200  # tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--titles", type=int, default=200)
    parser.add_argument("--num-items", type=int, default=ListSettings.num_items)
    parser.add_argument("--start-steps", type=int, default=400)
    parser.add_argument("--steps", type=int, default=250)
    options = parser.parse_args()
    data, num_items = options.out / "data", str(options.num_items)
    prepare(options, data)

    start = options.out / "start"
    texts_of = ["--data", data / "sft_train.parquet", data / "catalog.parquet"]
    sizes = ["--hidden-size", 128, "--num-layers", 3, "--vocab-size", 3072]
    make(options.out / "model", "recipes tiny-model", *texts_of, *sizes, "--out", options.out / "model")
    train(data / "sft_titles.parquet", options.out / "model", start, options.start_steps, 4e-3, options.num_items)
    demonstrations, models = {}, {}
    for name, choice in VARIANTS.items():
        folder = options.out / name.replace(" ", "_")
        inputs = ["--train", data / "train.parquet", "--validation", data / "heldout.parquet"]
        inputs += ["--catalog", data / "genres.parquet", "--share", 1, "--num-items", num_items, "--out", folder]
        inputs += ["--teacher", "retrieval", *choice]
        make(folder / "sft_validation.parquet", "recipes demonstrations all", *inputs)
        demonstrations[name] = folder / "sft_validation.parquet"
        if name in TRAINED:
            train(folder / "sft_train.parquet", start, folder / "model", options.steps, 3e-3, options.num_items)
            lengths = ["--max-prompt-length", PROMPT, "--max-response-length", 3 * options.num_items]
            make(folder / "lists" / "rows.parquet", "recipes evaluate", "--model", folder / "model",
                 "--data", data / "heldout.parquet", "--catalog", data / "catalog.parquet", "--num-items", num_items,
                 *lengths, "--baselines", "--out", folder / "lists")  # fmt: skip
            models[name] = folder / "lists" / "rows.parquet"
    rows = {row["sample_id"]: row for row in pq.read_table(data / "heldout.parquet").to_pylist()}
    matcher = Matcher(load_catalog(data / "catalog.parquet"))
    tables = {
        "demonstrations": compare({name: texts(path) for name, path in demonstrations.items()}, rows, matcher, options),
        "models": compare({name: texts(path) for name, path in models.items()}, rows, matcher, options),
    }
    write_json(options.out / "tables.json", tables)
    for title, lines in tables.items():
        print(title)
        for name, figures in lines.items():
            print(f"  {name:<26}", "  ".join(f"{key} {value}" for key, value in figures.items()))


def prepare(options: argparse.Namespace, data: Path) -> None:
    """Data, held-out rows in one file, and a catalog with the genres of films.csv where it has the film."""
    task = ["--titles", options.titles, "--num-items", options.num_items, "--test-rows", 1200]
    make(data, "benchmarks.studies.retrieval", "--source", options.source, *task, "--out", data)
    held = [pq.read_table(data / f"{name}.parquet") for name in ("validation", "test")]
    pq.write_table(pa.concat_tables(held), data / "heldout.parquet")
    with open(ROOT / "data_prep" / "sample_data" / "films.csv", newline="", encoding="utf-8") as file:
        genres = {(row["title"], int(row["year"])): row["genres"].replace(";", ", ") for row in csv.DictReader(file)}
    catalog = pq.read_table(data / "catalog.parquet")
    known = [genres.get((row["title"], row["year"])) for row in catalog.to_pylist()]
    pq.write_table(catalog.append_column("genres", pa.array(known, pa.string())), data / "genres.parquet")


def make(result: Path, module: str, *arguments: Any) -> None:
    if not result.exists():
        print(f"{module}: {result}", file=sys.stderr)
        words = [sys.executable, "-m", *module.split(), *map(str, arguments)]
        subprocess.run(words, cwd=ROOT, check=True, stdout=sys.stderr)


def train(file: Path, model: Path, out: Path, steps: int, lr: float, num_items: int) -> None:
    if (out / f"global_step_{steps}").exists():
        return
    variables: dict[str, Any] = {
        "TRAIN_FILE": file,
        "VAL_FILE": file.with_name("sft_validation.parquet"),
        "MODEL_PATH": model,
    }
    variables |= {"SAVE_PATH": out, "TOTAL_STEPS": steps, "SAVE_FREQ": steps, "TEST_FREQ": steps, "LR": lr}
    variables |= {"TRAIN_BATCH_SIZE": 32, "TOTAL_EPOCHS": 100, "MAX_LENGTH": PROMPT + 2 * num_items + 20}
    variables |= {"PYTHON": sys.executable}
    environment = os.environ | {name: str(value) for name, value in variables.items()}
    subprocess.run(["bash", "run_sft.sh"], cwd=ROOT, check=True, env=environment, stdout=sys.stderr)


def texts(path: Path) -> dict[str, str]:
    """sample_id -> list, of demonstrations or of `convrec evaluate`."""
    table = pq.read_table(path)
    if "completion" in table.column_names:
        return {row["sample_id"]: row["completion"][0]["content"] for row in table.to_pylist()}
    return dict(zip(table["sample_id"].to_pylist(), table["text"].to_pylist(), strict=True))


def compare(
    lists: dict[str, dict[str, str]], rows: dict[str, dict], matcher: Matcher, options: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Metrics of each variant, and `full` minus each, on the rows that all have."""
    ks = tuple(k for k in (5, 10, 20) if k <= options.num_items)
    common = [name for name in rows if all(name in some for some in lists.values())]
    contexts = [rows[name]["prompt"][0]["content"] for name in common]

    def score(text: str, row: dict) -> Any:
        return evaluate_row(parse_items(text), get_truth(row), row["seen_titles"], matcher, ks=ks)

    scored = {variant: [score(some[name], rows[name]) for name in common] for variant, some in lists.items()}
    found: dict[str, dict[str, Any]] = {}
    for variant, results in scored.items():
        summary = summarise(results, ks, contexts, num_items=options.num_items)
        found[variant] = {
            key: f"{value['mean']:.4f} ± {value['se']:.4f}" for key, value in summary.items() if isinstance(value, dict)
        } | {"distinct": summary["distinct_items"], "n": summary["n"]}
    for variant in scored:
        if variant != "full":
            differences = paired(scored[variant], scored["full"], list_metric_names(ks), contexts)
            found[f"full minus {variant}"] = {
                key: f"{value['mean']:+.4f} ± {value['se']:.4f}" for key, value in differences.items()
            }
    return found


if __name__ == "__main__":
    main()
