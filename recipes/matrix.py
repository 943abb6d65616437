"""A matrix of trainings, evaluated alike: one command that reruns an experiment. docs/how-to/matrix.md"""

import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from convrec.base.errors import UserError
from convrec.base.options import command
from convrec.runs.folder import METRICS
from recipes.cluster.job_environment import withheld
from recipes.cluster.jobs import connect, say, warn_if_open
from recipes.experiments import local_runs
from recipes.experiments.cluster_runs import PATHS, MatrixJobs, check_slots
from recipes.experiments.matrix_file import Matrix, read_matrix
from recipes.experiments.matrix_runs import MatrixRun, composed, described, expand_matrix
from recipes.experiments.tables import metrics_file, write_tables
from recipes.launch.variables import VARIABLES, misspelt_variables
from recipes.options.matrix import MatrixOptions
from recipes.plot import plot


def chosen_runs(runs: Sequence[MatrixRun], only: Sequence[str], out: Path) -> list[MatrixRun]:
    """Those of `only`, or all. Raises UserError for one that is none, and one whose start is not evaluated yet."""
    names = {run.name for run in runs}
    if unknown := set(only) - names:
        raise UserError(f"--only {min(unknown)}: no such run; there are {', '.join(run.name for run in runs)}")
    chosen = [run for run in runs if run.name in (only or names)]
    for run in chosen:
        if only and run.start and run.start not in only and not metrics_file(out, run.start).exists():
            raise UserError(f"--only {run.name}: {run.start}, its start, is not evaluated yet; add it to --only")
    return chosen


def shell_warnings(runs: Sequence[MatrixRun], environment: Mapping[str, str]) -> list[str]:
    """A warning for each of the recipes' variables that is set outside of the file and counts for some runs."""
    names = {variable.name for variable in VARIABLES if environment.get(variable.name)} - {"SAVE_PATH"}
    counts = {name: sum(name not in run.variables for run in runs) for name in sorted(names)}
    return [
        f"{name} is set in the shell, and counts for {count} of {len(runs)} runs, for which the file has none"
        for name, count in counts.items()
        if count
    ]


def run_matrix(matrix: Matrix, only: Sequence[str], parallel: int | None, dry_run: bool) -> int:
    """Exit status: 0, or 1 where runs failed. Raises UserError."""
    out = Path(matrix.out)
    all_runs = expand_matrix(matrix)
    runs = chosen_runs(all_runs, only, out)
    address = os.environ.get("RAY_ADDRESS", "")
    client = _connect_to_cluster(address, parallel)
    on_cluster = client is not None
    _print_warnings(runs, on_cluster)
    trainings = composed(runs, out, on_cluster)
    if on_cluster:
        check_slots(address, matrix.evaluate)
    if not dry_run:
        local_runs.prepare(matrix.prepare or ())
    if not (dry_run or on_cluster) or _has_evaluation_files(matrix):  # else they may come, or be the cluster's
        local_runs.check_evaluation(matrix.evaluate, trainings, out)
    say(described(runs, trainings, out))
    if dry_run:
        say("nothing was started (--dry-run)")
        return 0

    in_table: list[str] = []

    def after_each(run: MatrixRun) -> None:
        say(described(runs, trainings, out))
        in_table[:] = write_tables(out, all_runs, run.name)

    steps: Callable[[MatrixRun], Generator[None]]
    if on_cluster:
        steps = MatrixJobs(client, trainings, out, matrix.evaluate).train_and_evaluate
    else:
        steps = partial(local_runs.train_and_evaluate, out=out, settings=matrix.evaluate)
    failures = train_and_evaluate(runs, steps, parallel or 1, after_each)
    _show_results(out, in_table)
    for line in failures:
        print(line, file=sys.stderr)
    return 1 if failures else 0


def _connect_to_cluster(address: str, parallel: int | None) -> Any:
    """The client of the cluster that RAY_ADDRESS names; None for this machine. Raises UserError."""
    if not address.startswith("http"):
        if parallel:
            raise UserError("--parallel: on this machine runs go one after the other; set RAY_ADDRESS=http://head:8265")
        return None
    client = connect(address)
    warn_if_open(client, address)
    return client


def _print_warnings(runs: Sequence[MatrixRun], on_cluster: bool) -> None:
    """Print what is wrong with the environment's variables."""
    warnings = misspelt_variables(os.environ) + shell_warnings(runs, os.environ)
    if on_cluster:
        warnings += withheld(os.environ)
    for warning in warnings:
        say(f"warning: {warning}")


def _has_evaluation_files(matrix: Matrix) -> bool:
    """Whether all files that the evaluation names are on this machine."""
    names = [matrix.evaluate.get(name) for name in PATHS]
    return all(Path(name).exists() for name in names if name)


def _show_results(out: Path, in_table: Sequence[str]) -> None:
    """Plot the runs of the table, as far as their curves are here, and print it."""
    # A run's folder may be gone, its evaluation kept; of a given model there is none.
    folders = [out / name for name in in_table if any((out / name / METRICS).glob("[0-9]*.jsonl"))]
    if folders:
        plot(folders, out / "plots")
    if in_table:
        print(f"{(out / 'table.md').read_text(encoding='utf-8')}written to {out}")


def train_and_evaluate(
    runs: Sequence[MatrixRun],
    steps: Callable[[MatrixRun], Generator[None]],
    parallel: int,
    after_each: Callable[[MatrixRun], None],
) -> list[str]:
    """Do all runs, each once its start is done. Returns a line for each that failed or, as its start did, was left out.

    steps: trains and evaluates a run; whenever it yields, it is the turn of the others, up to `parallel` at once. It
    raises UserError when the run fails. after_each: called with each run that is evaluated.
    """
    waiting = list(runs)
    failures: dict[str, str] = {}
    running: list[tuple[MatrixRun, Generator[None]]] = []
    try:
        while waiting or running:
            for run in list(waiting):
                unfinished = {other.name for other in waiting} | {other.name for other, _ in running}
                if run.start in failures:
                    failures[run.name] = f"{run.name} was not started, as {run.start} failed"
                    waiting.remove(run)
                elif run.start not in unfinished and len(running) < parallel:
                    running.append((run, steps(run)))
                    waiting.remove(run)
            for run, work in list(running):
                try:
                    next(work)
                    continue
                except StopIteration:
                    after_each(run)
                except UserError as error:
                    failures[run.name] = f"{run.name} failed: {error}"
                    say(failures[run.name])
                running.remove((run, work))
    finally:  # after Ctrl-C each says what goes on
        for _, work in running:
            work.close()
    return list(failures.values())


@command(MatrixOptions)
def main(options: MatrixOptions) -> int:
    try:
        return run_matrix(read_matrix(options.matrix), options.only, options.parallel, options.dry_run)
    except KeyboardInterrupt:
        say("interrupted; the same command goes on")
        return 130
