"""What a matrix does on this machine: make its data, check its evaluation, train and evaluate a run."""

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
from convrec.runs.supervisor import die_with
from convrec.settings.run import Run
from convrec.settings.training import TrainingConfig
from recipes.cluster.jobs import say
from recipes.evaluation.constrained import read_allowed
from recipes.evaluation.options import EvaluationOptions
from recipes.evaluation.setup import prepare_evaluation
from recipes.evaluation.single import evaluate
from recipes.experiments.matrix_file import Preparation
from recipes.experiments.matrix_runs import MatrixRun
from recipes.launch.recipe import RECIPES

OURS = {"python": [sys.executable], "convrec": [sys.executable, "-m", "recipes"]}  # of a preparation, not those on PATH


def prepare(steps: Sequence[Preparation]) -> None:
    """Run each command whose `creates` is not there."""
    for step in steps:
        if Path(step.creates).exists():
            continue
        program, *arguments = shlex.split(step.run)
        command = [*OURS.get(program, [program]), *arguments]
        print(f"preparing {step.creates}", file=sys.stderr)
        if subprocess.run(command, check=False).returncode:
            raise UserError(f"prepare: `{step.run}` failed")
        if not Path(step.creates).exists():
            raise UserError(f"prepare: `{step.run}` ended, but {step.creates}, which it creates, is not there")


def _list_length(settings: TrainingConfig) -> int:
    """Return the items of a run's lists; SFT's are of the default length."""
    return settings.num_items if isinstance(settings, ListSettings) else ListSettings().num_items


def check_evaluation(settings: Mapping[str, Any], trainings: Mapping[str, Run[TrainingConfig]], out: Path) -> None:
    """What an evaluation checks of its files and settings, as far as it needs no model; before anything is trained.

    settings: of `evaluate`. trainings: the runs; `ks` must fit the shortest of their lists. Raises UserError.
    """
    shortest = min(_list_length(training.settings) for training in trainings.values())
    options = {"num_items": shortest} | {name: value for name, value in settings.items() if value is not None}
    constrained, allow = (options.pop(name, None) for name in ("constrained", "allow"))
    # a baseline in the model's place; where no training split is given, of the split itself
    options = {"train": options.get("data")} | options | {"out": str(out / "evaluation"), "baselines": ["popularity"]}
    try:
        split = prepare_evaluation(EvaluationOptions(**options)).data.split
        if allow and not constrained:
            raise UserError("allow: it says what constrained lists may hold; add constrained: true")
        if allow:
            read_allowed(Path(allow), split.matcher)
    except UserError as error:
        raise UserError(f"evaluate: {error}") from None


def train(run: MatrixRun, out: Path) -> None:
    """The recipe's command; a finished run is left alone, an unfinished one resumed. Raises UserError when it fails.

    It ends with this process. Each Ctrl-C here is one there: after the first it saves, the second ends it at once.
    """
    words = RECIPES[run.recipe].command
    command = [*OURS["convrec"], *words.split(), *run.overrides]
    environment = run.environment(out)
    status = None
    was_interrupted = False
    with subprocess.Popen(command, env=environment, preexec_fn=partial(die_with, os.getpid())) as process:
        while status is None:
            try:
                status = process.wait()
            except KeyboardInterrupt:
                was_interrupted = True
                process.send_signal(signal.SIGINT)
    if was_interrupted:
        raise KeyboardInterrupt
    if status:
        raise UserError(f"convrec {words} ended with status {status}; the same command resumes")


def train_and_evaluate(run: MatrixRun, out: Path, settings: Mapping[str, Any]) -> Generator[None]:
    """settings: of `evaluate`. Yields between the two. Raises UserError when one fails."""
    say(f"== {run.name}")
    if not run.model:
        train(run, out)
    yield
    evaluate(EvaluationOptions(**make_evaluation_options(run, out, settings)))


def make_evaluation_options(run: MatrixRun, out: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of EvaluationOptions: the run against its start."""
    folder = out / "evaluation"
    against = str(folder / run.start) if run.start else None
    return {"model": run.model or str(out / run.name), "out": str(folder / run.name), "against": against, **settings}
