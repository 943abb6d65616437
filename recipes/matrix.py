"""Train and evaluate the runs of a matrix with the same settings; rerunning it resumes. docs/how-to/matrix.md"""

import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from convrec.base.errors import UserError
from convrec.base.options import command
from convrec.runs.folder import METRICS
from recipes.cluster.job_environment import find_withheld_variables
from recipes.cluster.jobs import connect, say, warn_if_open
from recipes.experiments import local_runs
from recipes.experiments.cluster_runs import PATHS, MatrixJobs, check_slots
from recipes.experiments.matrix_file import Matrix, read_matrix
from recipes.experiments.matrix_runs import MatrixRun, composed, described, expand_matrix
from recipes.experiments.tables import metrics_file, write_tables
from recipes.launch.variables import VARIABLES, find_misspelt_variables
from recipes.options.matrix import MatrixOptions
from recipes.plot import plot


def choose_runs(runs: Sequence[MatrixRun], only: Sequence[str], out: Path) -> list[MatrixRun]:
    """Choose the runs named by `only`, or all.

    Raises:
        UserError: A name is not a run's, or the initial model of a run is not evaluated yet.
    """
    names = {run.name for run in runs}
    if unknown := set(only) - names:
        choices = ", ".join(run.name for run in runs)
        raise UserError("matrix.unknown-only", f"--only {min(unknown)}: no such run. Choose from {choices}.")
    chosen = [run for run in runs if run.name in (only or names)]
    for run in chosen:
        if only and run.start and run.start not in only and not metrics_file(out, run.start).exists():
            raise UserError(
                "matrix.unevaluated-start",
                f"--only {run.name}: starts from {run.start}, which is not evaluated yet. Add it to --only.",
            )
    return chosen


def collect_shell_warnings(runs: Sequence[MatrixRun], environment: Mapping[str, str]) -> list[str]:
    """Warn of each variable of the shell that applies to runs because the file does not set it.

    Args:
        runs: all runs of the matrix.
        environment: of this process.
    """
    names = {variable.name for variable in VARIABLES if environment.get(variable.name)} - {"SAVE_PATH"}
    counts = {name: sum(name not in run.variables for run in runs) for name in sorted(names)}
    return [
        f"{name} is set in the shell and applies to {count} of {len(runs)} runs, for which the file does not set it"
        for name, count in counts.items()
        if count
    ]


def run_matrix(matrix: Matrix, only: Sequence[str], parallel: int | None, dry_run: bool) -> int:
    """Run a matrix, on this machine or on RAY_ADDRESS.

    Args:
        matrix: the file's content.
        only: names of runs; (): all.
        parallel: number of simultaneous runs on a cluster; None: 1.
        dry_run: check everything, and start nothing.

    Returns:
        The exit status, 1 if a run failed.

    Raises:
        UserError: The matrix cannot be run.
    """
    out = Path(matrix.out)
    all_runs = expand_matrix(matrix)
    runs = choose_runs(all_runs, only, out)
    address = os.environ.get("RAY_ADDRESS", "")
    client = _connect_to_cluster(address, parallel)
    on_cluster = client is not None
    _print_warnings(runs, on_cluster)
    trainings = composed(runs, out, on_cluster)
    if on_cluster:
        check_slots(address, matrix.evaluate)
    if not dry_run:
        local_runs.prepare(matrix.prepare or ())
    # In a dry run or on a cluster, files that are missing here may be made by runs, or be on the cluster.
    if not (dry_run or on_cluster) or _has_evaluation_files(matrix):
        local_runs.check_evaluation(matrix.evaluate, trainings, out)
    say(described(runs, trainings, out))
    if dry_run:
        say("nothing was started (--dry-run)")
        return 0

    runs_in_table: list[str] = []

    def after_each(run: MatrixRun) -> None:
        say(described(runs, trainings, out))
        runs_in_table[:] = write_tables(out, all_runs, run.name)

    steps: Callable[[MatrixRun], Generator[None]]
    if on_cluster:
        steps = MatrixJobs(client, trainings, out, matrix.evaluate).train_and_evaluate
    else:
        steps = partial(local_runs.train_and_evaluate, out=out, settings=matrix.evaluate)
    failures = train_and_evaluate(runs, steps, parallel or 1, after_each)
    _show_results(out, runs_in_table)
    for line in failures:
        print(line, file=sys.stderr)
    return 1 if failures else 0


def _connect_to_cluster(address: str, parallel: int | None) -> Any:
    """Connect to the cluster of RAY_ADDRESS; None for this machine. Raises UserError."""
    if not address.startswith("http"):
        if parallel:
            raise UserError(
                "matrix.parallel-without-cluster",
                f"--parallel {parallel}: this machine runs one training at a time. Set RAY_ADDRESS=http://head:8265.",
            )
        return None
    client = connect(address)
    warn_if_open(client, address)
    return client


def _print_warnings(runs: Sequence[MatrixRun], on_cluster: bool) -> None:
    """Print warnings about variables of the environment."""
    warnings = find_misspelt_variables(os.environ) + collect_shell_warnings(runs, os.environ)
    if on_cluster:
        warnings += find_withheld_variables(os.environ)
    for warning in warnings:
        say(f"warning: {warning}")


def _has_evaluation_files(matrix: Matrix) -> bool:
    """Return whether all files of the evaluation are on this machine."""
    names = [matrix.evaluate.get(name) for name in PATHS]
    return all(Path(name).exists() for name in names if name)


def _show_results(out: Path, runs_in_table: Sequence[str]) -> None:
    """Plot the runs of the table, if their curves are here, and print the table."""
    # a run's folder may be gone although its evaluation is here, and a given model has no run
    folders = [out / name for name in runs_in_table if any((out / name / METRICS).glob("[0-9]*.jsonl"))]
    if folders:
        plot(folders, out / "plots")
    if runs_in_table:
        print(f"{(out / 'table.md').read_text(encoding='utf-8')}written to {out}")


def train_and_evaluate(
    runs: Sequence[MatrixRun],
    steps: Callable[[MatrixRun], Generator[None]],
    parallel: int,
    after_each: Callable[[MatrixRun], None],
) -> list[str]:
    """Train and evaluate all runs, each after the run that it starts from.

    Args:
        runs: of the matrix.
        steps: trains and evaluates a run; it yields to the other runs while it waits, and raises UserError if the run
            fails.
        parallel: number of simultaneous runs.
        after_each: called with each evaluated run.

    Returns:
        A line for each run that failed, or was skipped because the run that it starts from failed.
    """
    waiting = list(runs)
    failures: dict[str, str] = {}
    running: list[tuple[MatrixRun, Generator[None]]] = []
    try:
        while waiting or running:
            for run in list(waiting):
                unfinished = {other.name for other in waiting} | {other.name for other, _ in running}
                if run.start in failures:
                    failures[run.name] = f"{run.name} was not started because {run.start} failed"
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
    finally:  # after Ctrl-C each prints what continues
        for _, work in running:
            work.close()
    return list(failures.values())


@command(MatrixOptions)
def main(options: MatrixOptions) -> int:
    """Run a matrix; return the exit status."""
    try:
        return run_matrix(read_matrix(options.matrix), options.only, options.parallel, options.dry_run)
    except KeyboardInterrupt:
        say("interrupted; the same command resumes")
        return 130
