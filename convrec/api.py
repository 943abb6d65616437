"""Training and evaluation from Python: they start the commands `convrec train ...` and `convrec evaluate`.

    run = train(RankGRPOConfig(model="runs/sft", train_file="train.parquet", ..., output_dir="runs/rank_grpo"))
    metrics = evaluate(run, data="test.parquet", catalog="catalog.parquet", out="runs/evaluation")

A command runs in a process of its own, under its supervisor: this one imports neither verl nor Ray, and hands an
interrupt on. A training then saves its step and stops; a second interrupt ends it at once. When this process ends, the
command does, too. Variables of the environment count where a config has its default.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from convrec.base.errors import UserError
from convrec.base.files import read_json
from convrec.base.shipped import python_path
from convrec.checkpoints import saving
from convrec.runs import supervisor
from convrec.runs.folder import latest_step, read_metrics
from convrec.settings.judges import PairwiseJudgeConfig, PointwiseJudgeConfig
from convrec.settings.overrides import overrides
from convrec.settings.rank_grpo import RankGRPOConfig
from convrec.settings.readers import absolute_path
from convrec.settings.sft import SFTConfig
from convrec.settings.training import TrainingConfig, default_run_folder

BAD_INPUT = 2  # exit status of a command
# The class of a recipe's settings -> (the recipe's name, its command)
RECIPES: Mapping[type[TrainingConfig], tuple[str, str]] = {
    SFTConfig: ("sft", "train sft"),
    RankGRPOConfig: ("rank_grpo", "train rank-grpo"),
    PointwiseJudgeConfig: ("judge_pointwise", "train judge pointwise"),
    PairwiseJudgeConfig: ("judge_pairwise", "train judge pairwise"),
}


class CommandFailed(RuntimeError):
    """A command failed although its input was good.

    Attributes:
        status: its exit status.
    """

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class TrainedRun:
    """A run that has trained. It is path-like: give it wherever a model or a run folder is taken.

    As a model it is its best checkpoint by validation, or the newest where no saved step was validated.
    """

    folder: Path

    def __fspath__(self) -> str:
        return str(self.folder)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of each step, by their names, with `step`."""
        return read_metrics(self.folder)

    @property
    def last_checkpoint(self) -> Path:
        """The folder of the newest checkpoint."""
        return saving.step_folder(self.folder, latest_step(self.folder))

    @property
    def best_checkpoint(self) -> Path | None:
        """The folder of the step with the best validation; None without a validation."""
        step = saving.best_step(self.folder)
        return None if step is None else saving.step_folder(self.folder, step)


def train(config: TrainingConfig, *, more: Sequence[str] = ()) -> TrainedRun:
    """Train as `convrec train` does: the same checks, run folder and log; an unfinished run in the folder is resumed.

    Args:
        config: the settings, of the class of a recipe.
        more: further overrides of Hydra's, `trainer.val_before_train=false` say.

    Raises:
        UserError: the run would be refused, with the sentence that the command prints.
        CommandFailed: the run has ended without its last step.
    """
    name, command = RECIPES[type(config)]
    folder = Path(absolute_path(config.output_dir or default_run_folder(name, config.model)))
    config = replace(config, output_dir=str(folder))
    _run([*command.split(), *overrides(config), *more], f"full log: {folder / 'run.log'}")
    return TrainedRun(folder)


def evaluate(
    model: str | os.PathLike[str] | None,
    *,
    data: str | os.PathLike[str],
    catalog: str | os.PathLike[str],
    out: str | os.PathLike[str],
    **options: Any,
) -> dict[str, Any]:
    """Score a model's lists as `convrec evaluate` does; results that are there already are used.

    Args:
        model: a run folder (its best checkpoint), another folder or a Hugging Face id; None: the baselines alone.
        data: the split to score, parquet.
        catalog: the catalog, parquet.
        out: folder for the results.
        options: the command's other options, with underscores: `num_items=10`, `baselines=["popularity"]`.

    Returns:
        What `metrics.json` in `out` holds.

    Raises:
        UserError: the command refuses its input.
        CommandFailed: the evaluation has failed.
    """
    given = {"model": model, "data": data, "catalog": catalog, "out": out, **options}
    _run(["evaluate", *_arguments(given)], f"results so far: {os.fspath(out)}")
    metrics: dict[str, Any] = read_json(Path(out) / "metrics.json")
    return metrics


def _arguments(options: Mapping[str, Any]) -> list[str]:
    """The options of a command, in its form."""
    arguments = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is None or value is False:
            continue
        if value is True:
            arguments.append(flag)
        elif isinstance(value, list | tuple):
            arguments += [flag, *map(str, value)]
        elif isinstance(value, dict):
            arguments.append(f"{flag}={json.dumps(value)}")
        else:
            arguments.append(f"{flag}={os.fspath(value) if isinstance(value, os.PathLike) else value}")
    return arguments


def _run(arguments: Sequence[str], hint: str) -> None:
    """Run a command of ours and print what it prints, here: a notebook shows the output of this process only."""
    command = [sys.executable, "-m", "recipes", *arguments]
    environment = {**os.environ, "PYTHONPATH": python_path()}
    last_line = ""
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        preexec_fn=partial(supervisor.die_with, os.getpid()),
    ) as process:
        assert process.stdout is not None
        was_interrupted = False
        has_ended = False
        while not has_ended:
            try:
                for line in process.stdout:
                    print(line, end="", flush=True)
                    if line.strip():
                        last_line = line.strip()
                has_ended = True
            except KeyboardInterrupt:
                was_interrupted = True
                process.send_signal(signal.SIGINT)
    if was_interrupted:
        raise KeyboardInterrupt
    if process.returncode == BAD_INPUT:
        raise UserError(last_line.removeprefix("error: "))
    if process.returncode:
        raise CommandFailed(f"{last_line} (exit status {process.returncode}; {hint})", process.returncode)
