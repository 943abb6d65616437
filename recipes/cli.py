"""`convrec`: every command of the project, and the one way to start each. `convrec COMMAND --help` is its own help.

`python -m recipes COMMAND` is the same in a checkout that is not installed: run_*.sh and Ray jobs call that. Next to
nothing is imported before the command's process is under its supervisor.
"""

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from pkgutil import resolve_name

from convrec.errors import need_packages
from convrec.runs import guard, supervisor
from convrec.shipped import python_path

COMMANDS = {  # what is typed -> help
    "demo": "the whole method, small, on a CPU",
    "doctor": "is a run possible here, or on that cluster?",
    "plan": "steps, hours, memory and network of a run on any cluster, computed",
    "gpu-check": "does all that a run needs of GPUs work on this machine?",
    "recommend": "lists for the conversations of a file",
    "evaluate": "metrics of a model, or of every checkpoint",
    "serve": "a model over HTTP, with a chat page",
    "push": "a checkpoint to the Hugging Face Hub",
    "plot": "curves of one run or several",
    "report": "one HTML file about a run, or several side by side",
    "matrix": "many trainings, evaluated alike",
    "submit": "follow or stop a job of a cluster",
    "tiny-model": "a model of a million parameters with its own tokenizer",
    "retrieval fit": "lists without a model, from training conversations",
    "retrieval candidates": "tables whose prompts name what it finds",
    "demonstrations": "SFT demonstrations for a catalog: Remap, Reflect, Adjust",
    "train sft": "SFT warm start",
    "train rank-grpo": "Rank-GRPO, GRPO or GSPO",
    "train judge pointwise": "a judge that scores a response",
    "train judge pairwise": "a judge that says which of two responses is better",
    "data reddit-v2": "the released Reddit-v2 download",
    "data own": "conversations and a catalog of your own",
    "data feedback": "what users did with the lists that were served",
    "data ratings": "ratings of users, as conversations",
    "data sample": "the sample data",
    "data judge": "preferences and ratings for judges",
    "data judge-sample": "sample data for judges",
    "data judge-demonstrations": "SFT demonstrations for judges",
}
# Others are `main` of a module of their name: recipes/NAME.py, and of `data NAME` data_prep/NAME.py
ELSEWHERE = {
    "demonstrations": "data_prep.build:main",
    "retrieval fit": "recipes.retrieval:main",
    "retrieval candidates": "recipes.retrieval:candidates_main",
}
# Quick ones, and those that answer Ctrl-C in their own way
UNSUPERVISED = {"doctor", "plan", "gpu-check", "plot", "report", "matrix", "submit", "tiny-model"}
SECONDS = {
    "demo": 2 * supervisor.SECONDS + supervisor.GUARD_SECONDS,  # what it starts ends in the same way
    "serve": 300 + supervisor.SECONDS,  # the most of --drain-seconds; a second signal does not wait for that
}
HELP = {"--help", "-h"}


def main() -> None:
    need_packages("omegaconf", "pyarrow", "torch", "verl", "ray")
    given = sys.argv[1:]
    command = next((name for name in COMMANDS if given[: len(name.split())] == name.split()), "")
    if command in ("", "plan") or {*HELP, "--print-config"} & set(given):
        # all that is done is to print: `| head` ends it without a word, where Python would print a BrokenPipeError
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if not command:
        sys.exit(list_commands(given))
    os.environ["PYTHONPATH"] = python_path()
    os.environ[guard.COMPILED] = guard.compile_cache()
    is_supervised = command not in UNSUPERVISED and not is_submitted(command)
    if is_supervised:
        supervisor.begin(SECONDS.get(command, supervisor.SECONDS))
    try:
        sys.exit(function_of(command)(given[len(command.split()) :]))
    except KeyboardInterrupt:
        if is_supervised:  # its supervisor says what there is to say
            raise
        sys.exit(supervisor.STOPPED)


def list_commands(given: list[str]) -> int:
    """For --help, of a group of commands too, --version, and what is no command. Exit status."""
    if given == ["--version"]:
        from pathlib import Path

        from convrec.runs.starts import installed_version, source_commit

        print(*filter(None, (installed_version("convrec"), source_commit(Path(__file__)))))
        return 0
    words = list(takewhile(lambda word: not word.startswith("-"), given))
    listed = [name for name in COMMANDS if name.split()[: len(words)] == words]
    if not listed:
        from convrec.kinds import did_you_mean

        typed = " ".join(words)
        print(f"error: convrec {typed}: no such command; {did_you_mean(typed, COMMANDS)}", file=sys.stderr)
        return 2
    print("Rank-GRPO for conversational recommenders\n\nusage: convrec COMMAND [--help] ... | --version\n")
    for name in listed:
        print(f"  {name:{max(map(len, listed))}}  {COMMANDS[name]}")
    return 0 if HELP & set(given) else 2


def is_submitted(command: str) -> bool:
    """Whether this is a training for the cluster of RAY_ADDRESS. There, in the job, the address is no http one."""
    return command.startswith("train ") and os.environ.get("RAY_ADDRESS", "").startswith("http")


def function_of(command: str) -> Callable[[list[str]], int]:
    """What runs the command: given its arguments, it returns the exit status."""
    if command.startswith("train "):
        return _training(command)
    package, name = "data_prep" if command.startswith("data ") else "recipes", command.removeprefix("data ")
    return resolve_name(ELSEWHERE.get(command, f"{package}.{name.replace('-', '_')}:main"))


def _training(command: str) -> Callable[[list[str]], int]:
    from recipes.launch.recipe import RECIPES

    recipe = next(recipe for recipe in RECIPES.values() if recipe.command == command)
    if is_submitted(command):
        from recipes import submit

        return lambda arguments: submit.main([recipe.name, *arguments])
    from recipes.launch.runner import run

    return partial(run, recipe)
