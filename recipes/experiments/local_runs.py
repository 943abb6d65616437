"""Steps of a matrix on this machine: prepare the data, check the evaluation, train and evaluate a run."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from convrec.base.errors import UserError
from convrec.lists.settings import ListSettings
from convrec.runs.supervisor import die_with_parent
from convrec.settings.run import Run
from convrec.settings.training import TrainingConfig
from recipes.cluster.jobs import say
from recipes.evaluation.constrained import read_allowed_items
from recipes.evaluation.options import EvaluationOptions
from recipes.evaluation.setup import prepare_evaluation
from recipes.evaluation.single import evaluate
from recipes.experiments.matrix_file import Preparation
from recipes.experiments.matrix_runs import MatrixRun
from recipes.launch.recipe import RECIPES

# Commands of this environment, which a preparation and a run use instead of those on PATH.
OURS = {"python": [sys.executable], "convrec": [sys.executable, "-m", "recipes"]}


def prepare(steps: Sequence[Preparation]) -> None:
    """Run the command of each preparation whose `creates` does not exist.

    Raises:
        UserError: a command fails, or does not create its file.
    """
    for step in steps:
        if Path(step.creates).exists():
            continue
        program, *arguments = shlex.split(step.run)
        command = [*OURS.get(program, [program]), *arguments]
        print(f"preparing {step.creates}", file=sys.stderr)
        if subprocess.run(command, check=False).returncode:
            raise UserError("matrix.failed-preparation", f"prepare: `{step.run}` failed")
        if not Path(step.creates).exists():
            raise UserError("matrix.failed-preparation", f"prepare: `{step.run}` did not create {step.creates}")


def _list_length(settings: TrainingConfig) -> int:
    """Return the number of items of a run's lists; SFT has the default."""
    return settings.num_items if isinstance(settings, ListSettings) else ListSettings().num_items


def check_evaluation(settings: Mapping[str, Any], trainings: Mapping[str, Run[TrainingConfig]], out: Path) -> None:
    """Check the files and settings of an evaluation before anything is trained, except for the checks of its model.

    Args:
        settings: the section `evaluate` of the matrix file.
        trainings: the runs; `ks` must fit the shortest of their lists.
        out: the matrix's folder.

    Raises:
        UserError: the evaluation would fail.
    """
    shortest = min(_list_length(training.settings) for training in trainings.values())
    options = {"num_items": shortest} | {name: value for name, value in settings.items() if value is not None}
    constrained = options.pop("constrained", None)
    allow = options.pop("allow", None)
    # A baseline stands for the model. Without a training split, popularity is counted in the split itself.
    options = {"train": options.get("data")} | options | {"out": str(out / "evaluation"), "baselines": ["popularity"]}
    try:
        split = prepare_evaluation(EvaluationOptions(**options)).data.split
        if allow and not constrained:
            raise UserError(
                "matrix.allow-without-constrained",
                f"allow={allow}: it limits constrained lists only: add constrained: true",
            )
        if allow:
            read_allowed_items(Path(allow), split.matcher)
    except UserError as error:
        raise UserError(error.code, f"evaluate: {error}") from None


def train(run: MatrixRun, out: Path) -> None:
    """Run the recipe's command: it resumes an unfinished run and returns at once for a finished one.

    The command ends with this process. Each Ctrl-C is passed on: after the first the run saves, the second ends it at
    once.

    Raises:
        UserError: the command fails.
    """
    words = RECIPES[run.recipe].command
    command = [*OURS["convrec"], *words.split(), *run.overrides]
    environment = run.make_environment(out)
    status = None
    was_interrupted = False
    with subprocess.Popen(command, env=environment, preexec_fn=partial(die_with_parent, os.getpid())) as process:
        while status is None:
            try:
                status = process.wait()
            except KeyboardInterrupt:
                was_interrupted = True
                process.send_signal(signal.SIGINT)
    if was_interrupted:
        raise KeyboardInterrupt
    if status:
        raise UserError(
            "matrix.failed-training",
            f"convrec {words} ended with status {status}: start the matrix again to resume it",
        )


def train_and_evaluate(run: MatrixRun, out: Path, settings: Mapping[str, Any]) -> Generator[None]:
    """Train and evaluate a run; yield once in between.

    Args:
        run: the run.
        out: the matrix's folder.
        settings: the section `evaluate` of the matrix file.

    Raises:
        UserError: the training or the evaluation fails.
    """
    say(f"== {run.name}")
    if not run.model:
        train(run, out)
    yield
    evaluate(EvaluationOptions(**make_evaluation_options(run, out, settings)))


def make_evaluation_options(run: MatrixRun, out: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return values for EvaluationOptions that compare a run with its start.

    Args:
        run: a training run, or a given model.
        out: folder of the matrix.
        settings: further options, which win.
    """
    folder = out / "evaluation"
    against = str(folder / run.start) if run.start else None
    return {"model": run.model or str(out / run.name), "out": str(folder / run.name), "against": against, **settings}
