"""A matrix of trainings, one after the other, evaluated alike: one command that reruns an experiment.

    REDIAL=path/to/redial python -m recipes.matrix benchmarks/redial_matrix.yaml

The file says what to prepare, the trainings (a recipe, its environment variables, what it starts from, seeds) and how
to evaluate; benchmarks/redial_matrix.yaml is an annotated one. Stopped, it resumes: what is prepared is left alone, the
recipes go on from their checkpoints, generations are reused. OUT gets a folder a run, evaluation/<run>, and of all runs
evaluated so far, with --only too, table.csv, table.md (means over seeds) and plots/.
"""

import argparse
import itertools
import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import yaml

from convrec.errors import UserError
from convrec.files import read_json, write_text
from convrec.lists.metrics import paired
from convrec.report.curves import write_csv
from convrec.runs.folder import METRICS
from recipes.evaluation.beyond_accuracy import MEASURES
from recipes.evaluation.scoring import beyond_difference, constrained_gain, model_line
from recipes.evaluation.single import evaluate
from recipes.evaluation.slices import slice_lines
from recipes.launch.recipe import RECIPES
from recipes.launch.variables import VARIABLES
from recipes.plot import plot

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = {recipe.name: recipe.script for recipe in RECIPES.values() if recipe.answers == "lists"}
SECTIONS = {"out", "prepare", "variables", "seeds", "runs", "evaluate"}
COMPARABLE = ("data", "catalog", "num_items", "ks", "protocols", "matching", "limit", "max_tokens", "max_prompt_tokens")


@dataclass(frozen=True)
class Run:
    """One training. start: the run it starts from, None for MODEL_PATH of its variables."""

    name: str
    variant: str  # the name without the seed
    recipe: str
    start: str | None
    variables: Mapping[str, str]
    overrides: Sequence[str] = ()


def read_matrix(path: Path) -> dict[str, Any]:
    """The file with environment variables filled in. Raises UserError naming what is unset, unknown or missing."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    text = os.path.expandvars(path.read_text(encoding="utf-8"))
    if unset := re.search(r"\$\{?([A-Za-z_]\w*)", "\n".join(line.split("#")[0] for line in text.splitlines())):
        raise UserError(f"{path}: the environment variable {unset[1]} is not set")
    matrix = yaml.safe_load(text)
    if not isinstance(matrix, dict) or not {"out", "runs", "evaluate"} <= set(matrix):
        raise UserError(f"{path}: it needs out, runs and evaluate")
    if unknown := set(matrix) - SECTIONS:
        raise UserError(
            f"{path}: unknown section {', '.join(sorted(unknown))}; known are {', '.join(sorted(SECTIONS))}"
        )
    return matrix


def runs_of(matrix: Mapping[str, Any]) -> list[Run]:
    """The trainings in order; a run with several seeds becomes one for each, `name-s3407`, `name-s3408`. Where its
    start has several seeds, each starts from the one of its seed."""
    known = {variable.name for variable in VARIABLES}
    runs: list[Run] = []
    for variant, given in matrix["runs"].items():
        recipe, start = given.get("recipe", "rank_grpo"), given.get("start")
        if recipe not in SCRIPTS:
            raise UserError(f"runs.{variant}.recipe={recipe}: one of {', '.join(SCRIPTS)}")
        variables = {**(matrix.get("variables") or {}), **(given.get("variables") or {})}
        if unknown := set(variables) - known:
            raise UserError(f"runs.{variant}: {sorted(unknown)[0]} is no variable of the recipes")
        seeds = given.get("seeds", matrix.get("seeds", [3407]))
        for seed in seeds:
            name = variant if len(seeds) == 1 else f"{variant}-s{seed}"
            texts = {key: str(value) for key, value in variables.items()} | {"SEED": str(seed)}
            names = {run.name for run in runs}
            of_seed = next((one for one in (start, f"{start}-s{seed}") if one in names), None)
            if start and not of_seed:
                raise UserError(f"runs.{variant}.start={start}: no run of that name comes before it (seed {seed})")
            runs.append(Run(name, variant, recipe, of_seed, texts, given.get("overrides") or ()))
    return runs


def prepare(steps: Sequence[Mapping[str, str]]) -> None:
    """Run each command whose `creates` is not there."""
    for step in steps:
        if Path(step["creates"]).exists():
            continue
        command = [sys.executable if word == "python" else word for word in shlex.split(step["run"])]
        print(f"preparing {step['creates']}", file=sys.stderr)
        if subprocess.run(command, check=False).returncode:
            raise UserError(f"prepare: `{step['run']}` failed")


def train(run: Run, out: Path) -> None:
    """The recipe's script; a finished run is left alone, an unfinished one resumed. Raises UserError when it fails."""
    environment = {**os.environ, **run.variables, "SAVE_PATH": str(out / run.name), "PYTHON": sys.executable}
    if run.start:
        environment["MODEL_PATH"] = str(out / run.start)
    command = ["bash", str(ROOT / SCRIPTS[run.recipe]), *run.overrides]
    status = subprocess.run(command, env=environment, check=False).returncode
    if status:
        raise UserError(f"{run.name}: {SCRIPTS[run.recipe]} ended with status {status}; the same command resumes")


def row_of(run: Run, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """A run's line of table.csv: means, standard errors over conversations, and the paired gain over its start."""
    line: dict[str, Any] = {"run": run.name, "variant": run.variant, "seed": run.variables["SEED"]}
    protocol = metrics["settings"]["protocols"][0]
    result = metrics["results"][protocol]["model"]
    return line | {
        **model_line(metrics),
        "in catalog": result["catalog_hit_ratio"],
        "repeats per list": result["repeats_per_list"],
        "distinct items": result["distinct_items"],
        **constrained_gain(metrics),
    }


def markdown(table: Sequence[Mapping[str, Any]], k: int) -> str:
    """Variants in order: mean over seeds, standard deviation between seeds, mean gain over the start; of Recall and
    NDCG, then of what was measured beyond accuracy."""
    tables = [[f"recall@{k}", f"ndcg@{k}"], [name for name in MEASURES if all(name in row for row in table)]]
    return "\n\n".join(_markdown_table(table, columns) for columns in tables if columns)


def _markdown_table(table: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    lines = ["| variant | seeds | " + " | ".join(f"{name} | gain" for name in columns) + " |"]
    lines.append("|---" * (2 + 2 * len(columns)) + "|")
    for variant in dict.fromkeys(row["variant"] for row in table):
        rows = [row for row in table if row["variant"] == variant]
        cells = [variant, str(len(rows))]
        for name in columns:
            values = [row[name] for row in rows]
            spread = f" (sd {np.std(values, ddof=1):.4f})" if len(values) > 1 else ""
            cells.append(f"{np.mean(values):.4f}{spread}")
            gains = [row[f"{name} gain"] for row in rows if f"{name} gain" in row]
            errors = "/".join(f"{row[f'{name} gain se']:.4f}" for row in rows if f"{name} gain se" in row)
            cells.append(f"{np.mean(gains):+.4f} (se of each {errors})" if gains else "")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def evaluated(runs: Sequence[Run], out: Path, like: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """table.csv's lines, one for each run with an evaluation in OUT; and the runs left out, evaluated unlike `like`.

    like: settings of an evaluation.
    """
    table, left_out = [], []
    for run in runs:
        file = out / "evaluation" / run.name / "metrics.json"
        if not file.exists():
            continue
        metrics = json.loads(file.read_text(encoding="utf-8"), object_hook=_with_nan)
        if any(metrics["settings"].get(key) != like.get(key) for key in COMPARABLE):
            left_out.append(run.name)
        else:
            table.append(row_of(run, metrics))
    return table, left_out


def _with_nan(value: dict[str, Any]) -> dict[str, Any]:
    """JSON's null back to what it stood for."""
    return {key: math.nan if inner is None and key in ("mean", "se", "p") else inner for key, inner in value.items()}


def write_tables(out: Path, table: Sequence[Mapping[str, Any]], k: int) -> None:
    write_csv(out / "table.csv", table)
    write_text(out / "table.md", markdown(table, k) + "\n")


def pairs(table: Sequence[Mapping[str, Any]], out: Path, k: int, num_items: int) -> list[dict[str, Any]]:
    """Each two variants with the same seeds, or of which the earlier has one, as a start: the later minus the earlier.

    Conversation by conversation, a conversation's value being its mean over the seeds; se and p are over conversations.
    Differences between seeds are not in them: table.md has those. num_items: different items of the catalog.
    """
    names = (f"recall@{k}", f"ndcg@{k}")
    runs_of_variant: dict[str, dict[Any, str]] = {}
    for row in table:
        runs_of_variant.setdefault(row["variant"], {})[row["seed"]] = row["run"]

    def rows_of(variant: str) -> dict[tuple[str, str], dict[str, float]]:
        seeds = [
            {key: [row[name] for name in names] for key, row in _rows(out, run).items()}
            for run in runs_of_variant[variant].values()
        ]
        means = {key: np.mean([np.array(rows[key], float) for rows in seeds], axis=0) for key in seeds[0]}
        return {key: dict(zip(names, values, strict=True)) for key, values in means.items()}

    differences_of_pairs = []
    for first, second in itertools.combinations(runs_of_variant, 2):
        seeds_of_first, seeds = runs_of_variant[first].keys(), runs_of_variant[second].keys()
        if seeds_of_first != seeds and len(seeds_of_first) > 1:
            continue
        a, b = rows_of(first), rows_of(second)
        shared = [key for key in a if key in b]
        shared = [key for key in shared if not math.isnan(a[key][names[0]])]  # rows with ground truth
        contexts = [key[1] for key in shared]
        differences = paired([a[key] for key in shared], [b[key] for key in shared], [k], contexts)
        pair: dict[str, Any] = {"variant": second, "minus": first, "seeds": len(seeds)}
        for name in names:
            pair |= {f"{name} {what}": differences[name][what] for what in ("mean", "se", "p")}
        before, after = (
            [[rows[key] for key in shared] for run in runs_of_variant[variant].values() for rows in (_rows(out, run),)]
            for variant in (first, second)
        )
        for name, of in beyond_difference(before, after, contexts, num_items).items():
            pair |= {f"{name} {what}": of[what] for what in ("mean", "se")}
        differences_of_pairs.append(pair)
    return differences_of_pairs


def _rows(out: Path, run: str) -> dict[tuple[str, str], dict[str, Any]]:
    rows = pq.read_table(out / "evaluation" / run / "rows.parquet").to_pylist()
    return {(row["sample_id"], row["prompt_id"]): row for row in rows}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m recipes.matrix", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("matrix", type=Path, help="YAML file, like benchmarks/redial_matrix.yaml")
    parser.add_argument("--only", nargs="+", help="train and evaluate only these runs (their starts must be there)")
    options = parser.parse_args(arguments)
    try:
        matrix = read_matrix(options.matrix)
        runs, out = runs_of(matrix), Path(matrix["out"])
        if unknown := set(options.only or ()) - {run.name for run in runs}:
            raise UserError(
                f"--only {sorted(unknown)[0]}: no such run; there are {', '.join(run.name for run in runs)}"
            )
        chosen = [run for run in runs if not options.only or run.name in options.only]
        for run in chosen:
            start_is_evaluated = not run.start or (out / "evaluation" / run.start / "metrics.json").exists()
            if not start_is_evaluated and run.start not in {other.name for other in chosen}:
                raise UserError(f"--only {run.name}: {run.start}, its start, is not evaluated yet; add it to --only")
        prepare(matrix.get("prepare") or ())
        table: list[dict[str, Any]] = []
        left_out: list[str] = []
        for run in chosen:
            print(f"== {run.name}", file=sys.stderr)
            train(run, out)
            against = out / "evaluation" / run.start if run.start else None
            metrics = evaluate(
                model=out / run.name, out=out / "evaluation" / run.name, against=against, **matrix["evaluate"]
            )
            table, left_out = evaluated(runs, out, metrics["settings"])
            write_tables(out, table, max(metrics["settings"]["ks"]))
        of_slices = [
            {"run": row["run"], "variant": row["variant"], "seed": row["seed"]} | line
            for row in table
            for line in slice_lines(read_json(out / "evaluation" / row["run"] / "metrics.json").get("slices", {}))
        ]
        if of_slices:
            write_csv(out / "slices.csv", of_slices)
        if left_out:
            print(f"warning: {', '.join(left_out)}: evaluated with other settings, not in the table", file=sys.stderr)
        settings = metrics["settings"]
        if differences := pairs(table, out, max(settings["ks"]), settings["catalog_items"]):
            write_csv(out / "pairs.csv", differences)
        drawn = [out / row["run"] for row in table]  # a run's folder may be gone, its evaluation kept
        plot([run for run in drawn if any((run / METRICS).glob("[0-9]*.jsonl"))], out / "plots")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print((out / "table.md").read_text(encoding="utf-8"), end="")
    print(f"written to {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
