"""`convrec`: every command of the project under one name. Nothing but names is imported before a command runs.

convrec COMMAND --help is the command's own help. `python -m recipes.X` and the shell recipes do the same.
"""

import os
import runpy
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).resolve().parents[1]  # of the packages and conf/
COMMANDS = {  # what is typed -> (module, help)
    "demo": ("recipes.demo", "the whole method, small, on a CPU"),
    "doctor": ("recipes.doctor", "is a run possible here, or on that cluster?"),
    "plan": ("recipes.plan", "steps, hours, memory and network of a run on any cluster, computed"),
    "gpu-check": ("recipes.gpu_check", "does all that a run needs of GPUs work on this machine?"),
    "recommend": ("recipes.recommend", "lists for the conversations of a file"),
    "evaluate": ("recipes.evaluate", "metrics of a model, or of every checkpoint"),
    "serve": ("recipes.serve", "a model over HTTP, with a chat page"),
    "plot": ("recipes.plot", "curves of one run or several"),
    "report": ("recipes.report", "one HTML file about a run, or several side by side"),
    "matrix": ("recipes.matrix", "many trainings, evaluated alike"),
    "submit": ("recipes.submit", "follow or stop a job of a cluster"),
    "tiny-model": ("recipes.tiny_model", "a model of a million parameters with its own tokenizer"),
    "demonstrations": ("data_prep.build", "SFT demonstrations for a catalog: Remap, Reflect, Adjust"),
    "train sft": ("recipes.sft", "SFT warm start"),
    "train rank-grpo": ("recipes.rank_grpo", "Rank-GRPO, GRPO or GSPO"),
    "train judge": ("recipes.judge.train", "a judge: pointwise or pairwise"),
    "data reddit-v2": ("data_prep.reddit_v2", "the released Reddit-v2 download"),
    "data own": ("data_prep.own", "conversations and a catalog of your own"),
    "data sample": ("data_prep.sample", "the sample data"),
    "data judge": ("data_prep.judge", "preferences and ratings for judges"),
    "data judge-sample": ("data_prep.judge_sample", "sample data for judges"),
    "data judge-demonstrations": ("data_prep.judge_demonstrations", "SFT demonstrations for judges"),
}
GROUPS = {
    "train": "train on this machine, or on the cluster of RAY_ADDRESS",
    "data": "make the files that recipes read",
}
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

app = typer.Typer(help="Rank-GRPO for conversational recommenders.", no_args_is_help=True, rich_markup_mode=None)


def run_module(module: str, arguments: list[str]) -> None:
    """As `python -m module`; trainings go to the cluster of an http RAY_ADDRESS as the shell recipes do."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    if os.environ.get("RAY_ADDRESS", "").startswith("http"):
        from recipes.launch.recipe import RECIPES

        for recipe in RECIPES.values():
            if recipe.command == (module, *arguments)[: len(recipe.command)]:
                module, arguments = "recipes.submit", [recipe.name, *arguments[len(recipe.command) - 1 :]]
                break
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("convrec"))
        raise typer.Exit


@app.callback()
def _top(
    shown: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="and exit")] = False,
) -> None: ...


def _add_commands() -> None:
    groups = {name: typer.Typer(help=text, no_args_is_help=True) for name, text in GROUPS.items()}
    for name, group in groups.items():
        app.add_typer(group, name=name)
    for typed, (module, text) in COMMANDS.items():
        *group_name, name = typed.split()
        parent = groups[group_name[0]] if group_name else app
        parent.command(name, help=text, context_settings=PASSED_ON)(_runner_of(module))


def _runner_of(module: str) -> Callable[[typer.Context], None]:
    def command(context: typer.Context) -> None:
        run_module(module, context.args)

    return command


_add_commands()


def main() -> None:
    app(prog_name="convrec")


if __name__ == "__main__":
    main()
