"""A matrix of trainings, evaluated alike: one command that reruns an experiment.

    REDIAL=path/to/redial python -m recipes.matrix benchmarks/studies/redial_matrix.yaml

The file says what to prepare, the trainings (a recipe, its environment variables, what it starts from, seeds) and how
to evaluate; benchmarks/studies/redial_matrix.yaml is an annotated one. A variable that is a list (`LR: [1e-6, 3e-6]`)
makes a run for each of its values. On this machine the runs go one after the other; with RAY_ADDRESS=http://head:8265
they are jobs of that cluster, side by side. Stopped, it resumes: what is prepared is left alone, the recipes go on from
their checkpoints, generations are reused, jobs that still run are waited for. OUT gets a folder a run,
evaluation/<run>, and of all runs evaluated so far, with --only too, table.csv, table.md (means over seeds) and plots/.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from convrec.errors import UserError
from convrec.files import read_json
from convrec.runs.folder import METRICS
from recipes.cluster.client import connect
from recipes.experiments import here, there
from recipes.experiments.amount import composed, described, work_of
from recipes.experiments.matrix_file import Run, read_matrix, runs_of
from recipes.experiments.matrix_jobs import PATHS, MatrixJobs
from recipes.experiments.needs import nodes_of, tasks_of, with_devices
from recipes.experiments.tables import write_comparisons, write_tables
from recipes.launch.misspelt import misspelt_variables
from recipes.launch.variables import VARIABLES
from recipes.plot import plot


def say(text: str) -> None:
    tqdm.write(text, file=sys.stderr)


def chosen_runs(runs: Sequence[Run], only: Sequence[str], out: Path) -> list[Run]:
    """Those of `only`, or all. Raises UserError for one that is none, and one whose start is not evaluated yet."""
    if unknown := set(only) - {run.name for run in runs}:
        raise UserError(f"--only {sorted(unknown)[0]}: no such run; there are {', '.join(run.name for run in runs)}")
    chosen = [run for run in runs if not only or run.name in only]
    names = {run.name for run in chosen}
    for run in chosen:
        if run.start and run.start not in names and not _metrics_file(out, run.start).exists():
            raise UserError(f"--only {run.name}: {run.start}, its start, is not evaluated yet; add it to --only")
    return chosen


def of_the_shell(runs: Sequence[Run], environment: Mapping[str, str]) -> list[str]:
    """A warning for each of the recipes' variables that is set outside of the file and counts for some runs."""
    names = sorted({variable.name for variable in VARIABLES} & {name for name, value in environment.items() if value})
    others = {name: sum(name not in run.variables for run in runs) for name in names if name != "SAVE_PATH"}
    return [
        f"{name} is set in the shell, and counts for {count} of {len(runs)} runs, for which the file has none"
        for name, count in others.items()
        if count
    ]


def run_matrix(matrix: Mapping[str, Any], only: Sequence[str], parallel: int | None, dry_run: bool) -> int:
    """Exit status: 0, or 1 where runs failed on the cluster. Raises UserError; on this machine for a failed run too."""
    out, all_runs = Path(matrix["out"]), runs_of(matrix)
    runs = chosen_runs(all_runs, only, out)
    address = os.environ.get("RAY_ADDRESS", "")
    if is_there := address.startswith("http"):
        client, nodes = connect(address), nodes_of(address)
        runs = with_devices(runs, nodes)
    elif parallel:
        raise UserError("--parallel: on this machine runs go one after the other; set RAY_ADDRESS=http://head:8265")
    for warning in misspelt_variables(os.environ):
        say(f"warning: {warning}")
    for warning in of_the_shell(runs, os.environ):
        say(f"warning: {warning}")
    configs = composed(runs, out)
    if is_there:
        rewards = there.check(runs, configs)
        tasks = tasks_of(runs, configs, matrix["evaluate"], nodes)
        say(f"{address}: {len(nodes)} nodes with {sum(node.gpus for node in nodes)} GPU slots")
    if not dry_run:
        here.prepare(matrix.get("prepare") or ())
    files = [Path(matrix["evaluate"][name]) for name in PATHS if matrix["evaluate"].get(name)]
    if not (dry_run or is_there) or all(file.exists() for file in files):  # else they may come, or be the cluster's
        here.check_evaluation(matrix["evaluate"], configs, out)
    works = work_of(runs, configs, out)
    say("\n".join(described(works)))
    if dry_run:
        say("nothing was started (--dry-run)")
        return 0

    evaluated: list[Run] = []

    def after_each(run: Run, is_training: bool) -> None:
        if is_training:
            say("\n".join(described(work_of(runs, configs, out))))
        else:
            evaluated.append(run)
            write_tables(out, all_runs, _settings(out, run))

    failures: list[str] = []
    if is_there:
        schedule = there.schedule_of(tasks, works, nodes, parallel)
        jobs = MatrixJobs(client, runs, out, matrix["evaluate"], rewards, say)
        failures = there.train_and_evaluate(jobs, schedule, after_each)
    else:
        here.train_and_evaluate(runs, out, matrix["evaluate"], say, after_each)
    if evaluated:
        finish(out, all_runs, _settings(out, evaluated[-1]))
    for line in failures:
        print(line, file=sys.stderr)
    return 1 if failures else 0


def finish(out: Path, runs: Sequence[Run], settings: Mapping[str, Any]) -> None:
    """Write the tables and plots of all runs evaluated with these settings, and print the table."""
    table = write_tables(out, runs, settings)
    write_comparisons(out, runs, settings)
    drawn = [out / row["run"] for row in table]  # a run's folder may be gone, its evaluation kept
    plot([run for run in drawn if any((run / METRICS).glob("[0-9]*.jsonl"))], out / "plots")
    print((out / "table.md").read_text(encoding="utf-8"), end="")
    print(f"written to {out}")


def _settings(out: Path, run: Run) -> dict[str, Any]:
    return read_json(_metrics_file(out, run.name))["settings"]


def _metrics_file(out: Path, name: str) -> Path:
    return out / "evaluation" / name / "metrics.json"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m recipes.matrix", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("matrix", type=Path, help="YAML file, like benchmarks/studies/redial_matrix.yaml")
    parser.add_argument("--only", nargs="+", default=[], help="only these runs (their starts must be there)")
    of_parallel = "jobs of the cluster at once, at most (as many as have room; 1 where Ray has no GPU slots)"
    parser.add_argument("--parallel", type=int, metavar="N", help=of_parallel)
    of_dry_run = "check the file and say what would run: runs, steps, hours as far as they are known"
    parser.add_argument("--dry-run", action="store_true", help=of_dry_run)
    options = parser.parse_args(arguments)
    if options.parallel is not None and options.parallel < 1:
        parser.error("--parallel: at least 1")
    try:
        return run_matrix(read_matrix(options.matrix), options.only, options.parallel, options.dry_run)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        say("interrupted; the same command goes on")
        return 130


if __name__ == "__main__":
    sys.exit(main())
