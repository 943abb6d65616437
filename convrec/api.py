"""Train and evaluate from Python, by starting the commands `convrec train ...` and `convrec evaluate`.

    run = train(RankGRPOConfig(model="runs/sft", train_file="train.parquet", ..., output_dir="runs/rank_grpo"))
    metrics = evaluate(run, data="test.parquet", catalog="catalog.parquet", out="runs/evaluation")

A command runs in its own process, under its supervisor: this one imports neither verl nor Ray, and forwards interrupts.
A training run then saves its step and stops; a second interrupt ends it at once. When this process ends, the command
ends too. Environment variables apply to settings that have their default in the config.
"""

import json
import os
import re
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

BAD_INPUT = 2  # a command's exit status
CODE = re.compile(r" \[([a-z0-9-]+\.[a-z0-9-]+)\]$")  # at the end of a command's error
# The class of a recipe's settings -> (the recipe's name, its command)
RECIPES: Mapping[type[TrainingConfig], tuple[str, str]] = {
    SFTConfig: ("sft", "train sft"),
    RankGRPOConfig: ("rank_grpo", "train rank-grpo"),
    PointwiseJudgeConfig: ("judge_pointwise", "train judge pointwise"),
    PairwiseJudgeConfig: ("judge_pairwise", "train judge pairwise"),
}


class CommandFailed(RuntimeError):
    """A command failed although its input was valid.

    Attributes:
        status: its exit status.
    """

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class TrainedRun:
    """A completed training run. It is path-like: pass it wherever a model or a run folder is accepted.

    As a model it is its best checkpoint by validation, or the newest if no saved step was validated.
    """

    folder: Path

    def __fspath__(self) -> str:
        return str(self.folder)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of each step by name, including `step`."""
        return read_metrics(self.folder)

    @property
    def last_checkpoint(self) -> Path:
        """The folder of the last step's checkpoint."""
        return saving.step_folder(self.folder, latest_step(self.folder))

    @property
    def best_checkpoint(self) -> Path | None:
        """The folder of the checkpoint with the best validation score; None without a validation."""
        step = saving.best_step(self.folder)
        return None if step is None else saving.step_folder(self.folder, step)


def train(config: TrainingConfig, *, more: Sequence[str] = ()) -> TrainedRun:
    """Train like `convrec train`, with the same checks, run folder and log. Resumes an unfinished run in the folder.

    Args:
        config: the settings of a recipe.
        more: further Hydra overrides, such as `trainer.val_before_train=false`.

    Raises:
        UserError: the command refuses the run; the error has its message and code.
        CommandFailed: the run ended before its last step.
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
    """Score a model's lists like `convrec evaluate`, reusing existing results.

    Args:
        model: a run folder (its best checkpoint), another folder or a Hugging Face id; None: the baselines alone.
        data: the split to score, parquet.
        catalog: the catalog, parquet.
        out: folder for the results.
        options: the command's other options, with underscores: `num_items=10`, `baselines=["popularity"]`.

    Returns:
        The content of `metrics.json` in `out`.

    Raises:
        UserError: the command refuses its input; the error has its message and code.
        CommandFailed: the evaluation failed.
    """
    all_options = {"model": model, "data": data, "catalog": catalog, "out": out, **options}
    _run(["evaluate", *_format_arguments(all_options)], f"results so far: {os.fspath(out)}")
    metrics: dict[str, Any] = read_json(Path(out) / "metrics.json")
    return metrics


def _format_arguments(options: Mapping[str, Any]) -> list[str]:
    """Return options as a command line has them."""
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
    """Run one of our commands, and print its output here: a notebook shows only the output of this process."""
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
        preexec_fn=partial(supervisor.die_with_parent, os.getpid()),
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
        raise _parse_user_error(last_line)
    if process.returncode:
        raise CommandFailed(f"{last_line} (exit status {process.returncode}; {hint})", process.returncode)


def _parse_user_error(line: str) -> UserError:
    """Return the error in a command's last line, `error: MESSAGE [CODE]`."""
    message = line.removeprefix("error: ")
    match = CODE.search(message)
    if match is None:
        return UserError("api.refused-input", message)
    return UserError(match[1], message.removesuffix(match[0]))
