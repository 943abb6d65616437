"""`convrec`: the entry point of every command. `convrec COMMAND --help` prints a command's help.

`python -m recipes COMMAND` is the same in a checkout that is not installed; run_*.sh and Ray jobs call that. Almost
nothing is imported before the command's process is under its supervisor, and even less for `--help`.
"""

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from pkgutil import resolve_name
from typing import Any, Literal, NoReturn

from convrec.base import errors
from convrec.base.errors import UserError, need_packages
from convrec.base.shipped import python_path
from convrec.runs import guard, supervisor

GROUPS: Mapping[str, Mapping[str, str]] = {  # task -> command -> help
    "Start here": {
        "demo": "run the whole method, small, on a CPU",
        "doctor": "check whether a run is possible on this machine or a cluster",
        "gpu-check": "check everything that a run needs from this machine's GPUs",
        "plan": "compute steps, hours, memory and network of a run on any cluster",
    },
    "Data": {
        "data own": "convert your own conversations and catalog",
        "data ratings": "convert user ratings to conversations",
        "data feedback": "convert feedback on served lists",
        "data reddit-v2": "convert the released Reddit-v2 download",
        "data sample": "make sample data",
        "data judge": "convert preferences and ratings for judges",
        "data judge-demonstrations": "make SFT demonstrations for judges",
        "data judge-sample": "make sample data for judges",
        "demonstrations": "make SFT demonstrations for a catalog: Remap, Reflect, Adjust",
        "retrieval fit": "fit a retrieval to training conversations",
        "retrieval candidates": "add retrieved candidates to the prompts of tables",
        "tiny-model": "make a model of a million parameters with its own tokenizer",
    },
    "Train": {
        "train sft": "train by SFT, the warm start",
        "train rank-grpo": "train by Rank-GRPO, GRPO or GSPO",
        "train judge pointwise": "train a judge that scores a response",
        "train judge pairwise": "train a judge that compares two responses",
        "matrix": "train and evaluate many runs with the same settings",
        "submit": "submit, follow or stop a job on a cluster",
    },
    "Evaluate": {
        "evaluate": "compute metrics of a model, or of every checkpoint",
    },
    "Use": {
        "recommend": "write lists for the conversations in a file",
        "serve": "serve models over HTTP, with a chat page",
        "push": "upload a checkpoint to the Hugging Face Hub",
    },
    "Look": {
        "plot": "plot curves of one or more runs",
        "report": "write an HTML report about one or more runs",
    },
}
COMMANDS = {name: text for commands in GROUPS.values() for name, text in commands.items()}
OPTIONS = {  # of all commands except trainings, whose options are variables and Hydra overrides
    "demo": "recipes.options.demo:DemoOptions",
    "doctor": "recipes.options.cluster:DoctorOptions",
    "gpu-check": "recipes.options.gpu_check:GpuCheckOptions",
    "plan": "recipes.options.plan:PlanOptions",
    "data own": "data_prep.options.own:OwnOptions",
    "data ratings": "data_prep.options.ratings:RatingsOptions",
    "data feedback": "data_prep.options.feedback:FeedbackOptions",
    "data reddit-v2": "data_prep.options.reddit_v2:RedditOptions",
    "data sample": "data_prep.options.sample:SampleOptions",
    "data judge": "data_prep.options.judge:JudgeOptions",
    "data judge-demonstrations": "data_prep.options.judge:JudgeDemonstrationsOptions",
    "data judge-sample": "data_prep.options.judge:JudgeSampleOptions",
    "demonstrations": "data_prep.options.demonstrations:DemonstrationsOptions",
    "retrieval fit": "recipes.options.retrieval:FitOptions",
    "retrieval candidates": "recipes.options.retrieval:CandidatesOptions",
    "tiny-model": "recipes.options.tiny_model:TinyModelOptions",
    "matrix": "recipes.options.matrix:MatrixOptions",
    "submit": "recipes.options.cluster:SubmitOptions",
    "evaluate": "recipes.evaluation.options:EvaluateOptions",
    "recommend": "recipes.options.recommend:RecommendOptions",
    "serve": "recipes.options.serve:ServeOptions",
    "push": "recipes.options.push:PushOptions",
    "plot": "recipes.options.look:PlotOptions",
    "report": "recipes.options.look:ReportOptions",
}
JUDGES = "recipes.options.judge:JudgeEvaluationOptions"  # of `evaluate --judge`
# Other commands are `main` in recipes/NAME.py, and `data NAME` is `main` in data_prep/NAME.py.
ENTRY_POINTS = {
    "demonstrations": "data_prep.build:main",
    "retrieval fit": "recipes.retrieval:main",
    "retrieval candidates": "recipes.retrieval:candidates_main",
}
# Quick commands, and those that handle Ctrl-C themselves.
UNSUPERVISED = {"doctor", "plan", "gpu-check", "plot", "report", "matrix", "submit", "tiny-model"}
SECONDS = {
    # the training that it starts may save first, and then ends in the same way
    "demo": supervisor.SAVE_SECONDS + 2 * supervisor.SECONDS + supervisor.GUARD_SECONDS,
    "serve": 300 + supervisor.SECONDS,  # the largest --drain-seconds; a second signal does not wait for it
}
HELP = {"--help", "-h"}
SHELLS: tuple[Literal["bash", "zsh", "fish"], ...] = ("bash", "zsh", "fish")


def main() -> None:
    """Run the command on the command line."""
    with errors.exit_on_unwritable_output():
        run(sys.argv[1:])


def run(words: list[str]) -> NoReturn:
    """Run the command of a command line.

    Args:
        words: the words after `convrec`.

    Raises:
        SystemExit: the command has ended, with its status.
        KeyboardInterrupt: a Ctrl-C under a supervisor, which prints the message.
    """
    need_packages("omegaconf", "pyarrow", "torch", "verl", "ray", "cyclopts")
    command = next((name for name in COMMANDS if words[: len(name.split())] == name.split()), "")
    if command in ("", "plan") or {*HELP, "--print-config"} & set(words):
        # such a command only prints: `| head` should end it silently, without Python's BrokenPipeError
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if not command:
        sys.exit(list_commands(words))
    arguments = words[len(command.split()) :]
    if command in OPTIONS:
        check_options(command, arguments)
    elif HELP & set(arguments):
        print_training_help(command)
        sys.exit(0)
    os.environ["PYTHONPATH"] = python_path()
    os.environ[guard.COMPILED] = guard.compile_cache()
    is_supervised = command not in UNSUPERVISED and not is_submitted(command)
    if is_supervised:
        supervisor.fork_under_supervisor(SECONDS.get(command, supervisor.SECONDS))
    try:
        sys.exit(resolve_command(command)(arguments))
    except KeyboardInterrupt:
        if is_supervised:  # its supervisor prints the message
            raise
        sys.exit(supervisor.STOPPED)


def list_commands(arguments: list[str]) -> int:
    """Answer --help (of a group, too), --version, --completion and unknown commands; return the exit status."""
    if arguments == ["--version"]:
        print_version()
        return 0
    if arguments[:1] == ["--completion"]:
        return print_completion(arguments[1:])
    words = list(takewhile(lambda word: not word.startswith("-"), arguments))
    listed = [name for name in COMMANDS if name.split()[: len(words)] == words]
    if not listed:
        from convrec.base.kinds import did_you_mean

        typed = " ".join(words)
        print(f"error: convrec {typed}: no such command; {did_you_mean(typed, COMMANDS)}", file=sys.stderr)
        return 2
    print("Rank-GRPO for conversational recommenders\n")
    print("usage: convrec COMMAND [--help] ... | --version | --completion {bash,zsh,fish}")
    width = max(map(len, listed))
    for title, commands in GROUPS.items():
        lines = [f"  {name:{width}}  {commands[name]}" for name in commands if name in listed]
        if lines:
            print("", title, *lines, sep="\n")
    return 0 if HELP & set(arguments) else 2


def print_version() -> None:
    """Print the version, and the commit of a checkout."""
    from pathlib import Path

    from convrec.runs.starts import installed_version, source_commit

    print(*filter(None, (installed_version("convrec"), source_commit(Path(__file__)))))


def print_completion(arguments: Sequence[str]) -> int:
    """Print a shell's completion script for commands and options; return the exit status."""
    shell = next((shell for shell in SHELLS if arguments == [shell]), None)
    if shell is None:
        print(f"error: --completion {' '.join(arguments)}: choose from {', '.join(SHELLS)}", file=sys.stderr)
        return 2
    from convrec.base.options import completion_script

    records = {name: resolve_options(name, ()) if name in OPTIONS else None for name in COMMANDS}
    print(completion_script(records, shell))
    return 0


def check_options(command: str, arguments: Sequence[str]) -> None:
    """Check the options of a command before its own imports, which take seconds.

    Args:
        command: one of OPTIONS.
        arguments: the words after it.

    Raises:
        SystemExit: after `--help` with status 0, after a wrong option with status 2.
    """
    from convrec.base.options import parse

    try:
        parse(resolve_options(command, arguments), arguments)
    except UserError as error:
        print(error.as_line(), file=sys.stderr)
        sys.exit(2)


def print_training_help(command: str) -> None:
    """Print the help of a training."""
    from recipes.launch.help_text import format_training_help

    print(format_training_help(find_recipe(command)))


def resolve_options(command: str, arguments: Sequence[str]) -> Any:
    """Return the record of a command's options.

    Args:
        command: one of OPTIONS.
        arguments: the words after it, which decide between the records of `evaluate` and of its judges.
    """
    if command == "evaluate":
        from recipes.evaluation.options import is_for_judges

        return resolve_name(JUDGES if is_for_judges(arguments) else OPTIONS[command])
    return resolve_name(OPTIONS[command])


def is_submitted(command: str) -> bool:
    """Return whether the command is a training to submit to RAY_ADDRESS; inside a job that is not an http address."""
    return command.startswith("train ") and os.environ.get("RAY_ADDRESS", "").startswith("http")


def resolve_command(command: str) -> Callable[[Sequence[str]], int]:
    """Return the function that runs a command with its arguments and returns the exit status."""
    if command.startswith("train "):
        return _make_training_command(command)
    package = "data_prep" if command.startswith("data ") else "recipes"
    name = command.removeprefix("data ")
    return resolve_name(ENTRY_POINTS.get(command, f"{package}.{name.replace('-', '_')}:main"))


def find_recipe(command: str) -> Any:
    """Return the recipe of a training command."""
    from recipes.launch.recipe import RECIPES

    return next(recipe for recipe in RECIPES.values() if recipe.command == command)


def _make_training_command(command: str) -> Callable[[Sequence[str]], int]:
    recipe = find_recipe(command)
    if is_submitted(command):
        from recipes import submit

        return partial(submit.submit_recipe, recipe)
    from recipes.launch.runner import run

    return partial(run, recipe)
