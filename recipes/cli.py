"""`convrec`: every command of the project, and the one way to start each. `convrec COMMAND --help` is its own help.

`python -m recipes COMMAND` is the same in a checkout that is not installed: run_*.sh and Ray jobs call that. Next to
nothing is imported before the command's process is under its supervisor, and for a `--help` next to nothing at all.
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

GROUPS: Mapping[str, Mapping[str, str]] = {  # what somebody wants -> what is typed -> help
    "Start here": {
        "demo": "the whole method, small, on a CPU",
        "doctor": "is a run possible here, or on that cluster?",
        "gpu-check": "does all that a run needs of GPUs work on this machine?",
        "plan": "steps, hours, memory and network of a run on any cluster, computed",
    },
    "Data": {
        "data own": "conversations and a catalog of your own",
        "data ratings": "ratings of users, as conversations",
        "data feedback": "what users did with the lists that were served",
        "data reddit-v2": "the released Reddit-v2 download",
        "data sample": "the sample data",
        "data judge": "preferences and ratings for judges",
        "data judge-demonstrations": "SFT demonstrations for judges",
        "data judge-sample": "sample data for judges",
        "demonstrations": "SFT demonstrations for a catalog: Remap, Reflect, Adjust",
        "retrieval fit": "lists without a model, from training conversations",
        "retrieval candidates": "tables whose prompts name what it finds",
        "tiny-model": "a model of a million parameters with its own tokenizer",
    },
    "Train": {
        "train sft": "SFT warm start",
        "train rank-grpo": "Rank-GRPO, GRPO or GSPO",
        "train judge pointwise": "a judge that scores a response",
        "train judge pairwise": "a judge that says which of two responses is better",
        "matrix": "many training runs, evaluated the same way",
        "submit": "follow or stop a job of a cluster",
    },
    "Evaluate": {
        "evaluate": "metrics of a model, or of every checkpoint",
    },
    "Use": {
        "recommend": "lists for the conversations of a file",
        "serve": "a model over HTTP, with a chat page",
        "push": "a checkpoint to the Hugging Face Hub",
    },
    "Look": {
        "plot": "curves of one run or several",
        "report": "one HTML file about a run, or several side by side",
    },
}
COMMANDS = {name: text for commands in GROUPS.values() for name, text in commands.items()}
OPTIONS = {  # of each command but the trainings, whose options are variables and Hydra overrides
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
# Others are `main` of a module of their name: recipes/NAME.py, and of `data NAME` data_prep/NAME.py
ELSEWHERE = {
    "demonstrations": "data_prep.build:main",
    "retrieval fit": "recipes.retrieval:main",
    "retrieval candidates": "recipes.retrieval:candidates_main",
}
# Quick ones, and those that answer Ctrl-C in their own way
UNSUPERVISED = {"doctor", "plan", "gpu-check", "plot", "report", "matrix", "submit", "tiny-model"}
SECONDS = {
    # what it starts may save first, and ends in the same way then
    "demo": supervisor.SAVE_SECONDS + 2 * supervisor.SECONDS + supervisor.GUARD_SECONDS,
    "serve": 300 + supervisor.SECONDS,  # the most of --drain-seconds; a second signal does not wait for that
}
HELP = {"--help", "-h"}
SHELLS: tuple[Literal["bash", "zsh", "fish"], ...] = ("bash", "zsh", "fish")


def main() -> None:
    with errors.exit_on_unwritable_output():
        run(sys.argv[1:])


def run(given: list[str]) -> NoReturn:
    """Run what these arguments ask for, and end with its exit status."""
    need_packages("omegaconf", "pyarrow", "torch", "verl", "ray", "cyclopts")
    command = next((name for name in COMMANDS if given[: len(name.split())] == name.split()), "")
    if command in ("", "plan") or {*HELP, "--print-config"} & set(given):
        # all that is done is to print: `| head` ends it without a word, where Python would print a BrokenPipeError
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if not command:
        sys.exit(list_commands(given))
    arguments = given[len(command.split()) :]
    if command in OPTIONS:
        check_options(command, arguments)
    elif HELP & set(arguments):
        print_training_help(command)
        sys.exit(0)
    os.environ["PYTHONPATH"] = python_path()
    os.environ[guard.COMPILED] = guard.compile_cache()
    is_supervised = command not in UNSUPERVISED and not is_submitted(command)
    if is_supervised:
        supervisor.begin(SECONDS.get(command, supervisor.SECONDS))
    try:
        sys.exit(resolve_command(command)(arguments))
    except KeyboardInterrupt:
        if is_supervised:  # its supervisor says what there is to say
            raise
        sys.exit(supervisor.STOPPED)


def list_commands(given: list[str]) -> int:
    """For --help, of a group of commands too, --version, --completion, and what is no command. Exit status."""
    if given == ["--version"]:
        print_version()
        return 0
    if given[:1] == ["--completion"]:
        return print_completion(given[1:])
    words = list(takewhile(lambda word: not word.startswith("-"), given))
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
        shown = [f"  {name:{width}}  {commands[name]}" for name in commands if name in listed]
        if shown:
            print("", title, *shown, sep="\n")
    return 0 if HELP & set(given) else 2


def print_version() -> None:
    """The version, and the commit of a checkout."""
    from pathlib import Path

    from convrec.runs.starts import installed_version, source_commit

    print(*filter(None, (installed_version("convrec"), source_commit(Path(__file__)))))


def print_completion(given: Sequence[str]) -> int:
    """Print what a shell reads to complete commands and options. Exit status."""
    shell = next((shell for shell in SHELLS if given == [shell]), None)
    if shell is None:
        print(f"error: --completion {' '.join(given)}: give one of {', '.join(SHELLS)}", file=sys.stderr)
        return 2
    from convrec.base.options import completion_script

    records = {name: resolve_options(name, ()) if name in OPTIONS else None for name in COMMANDS}
    print(completion_script(records, shell))
    return 0


def check_options(command: str, arguments: Sequence[str]) -> None:
    """End with the help, or with what is wrong, before the command's own imports, which take seconds."""
    from convrec.base.options import parse

    try:
        parse(resolve_options(command, arguments), arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def print_training_help(command: str) -> None:
    """Print the help of a training."""
    from recipes.launch.help_text import training_help

    print(training_help(find_recipe(command)))


def resolve_options(command: str, arguments: Sequence[str]) -> Any:
    """The record of the command's options, which these arguments are for."""
    if command == "evaluate":
        from recipes.evaluation.options import is_for_judges

        return resolve_name(JUDGES if is_for_judges(arguments) else OPTIONS[command])
    return resolve_name(OPTIONS[command])


def is_submitted(command: str) -> bool:
    """Whether this is a training for the cluster of RAY_ADDRESS. There, in the job, the address is no http one."""
    return command.startswith("train ") and os.environ.get("RAY_ADDRESS", "").startswith("http")


def resolve_command(command: str) -> Callable[[Sequence[str]], int]:
    """What runs the command: given its arguments, it returns the exit status."""
    if command.startswith("train "):
        return _training(command)
    package = "data_prep" if command.startswith("data ") else "recipes"
    name = command.removeprefix("data ")
    return resolve_name(ELSEWHERE.get(command, f"{package}.{name.replace('-', '_')}:main"))


def find_recipe(command: str) -> Any:
    """Return the recipe that this command trains by."""
    from recipes.launch.recipe import RECIPES

    return next(recipe for recipe in RECIPES.values() if recipe.command == command)


def _training(command: str) -> Callable[[Sequence[str]], int]:
    recipe = find_recipe(command)
    if is_submitted(command):
        from recipes import submit

        return partial(submit.submit_recipe, recipe)
    from recipes.launch.runner import run

    return partial(run, recipe)
