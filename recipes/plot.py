"""Plot comparable curves of one or more runs, as in the paper's figures 2-6. docs/how-to/sweep-and-report.md"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from convrec.base.errors import UserError
from convrec.base.options import command
from convrec.report.charts import make_charts
from convrec.report.curves import RunCurves, group_by_recipe, make_long_rows, read_curves, write_csv
from convrec.runs.folder import find_recipe, read_config, setting
from convrec.settings.choices import ALGORITHMS
from recipes.launch.recipe import RECIPES
from recipes.options.look import PlotOptions


def read_runs(folders: Sequence[Path], split: str | None = None) -> list[RunCurves]:
    """Read the curves of runs, named by the shortest unique paths; prints their warnings to stderr.

    Raises:
        UserError: A run cannot be read (curves.read_curves), or sweeps were scored with different settings.
    """
    paths = [folder.resolve() for folder in folders]
    depth = next(
        (n for n in range(1, 5) if len({path.parts[-n:] for path in paths}) == len(set(paths))), len(paths[0].parts)
    )
    runs = [
        read_curves(path, "/".join(path.parts[-depth:]), split, format_method(read_config(path)))
        for path in dict.fromkeys(paths)
    ]
    for run in runs:
        for warning in run.warnings:
            print(f"warning: {warning}", file=sys.stderr)
    swept = {
        run.name: {"split": run.split, "k": run.k} | {key: run.sweep[key] for key in ("protocol", "matching", "limit")}
        for run in runs
        if run.split
    }
    check_comparable(swept, "swept", "Sweep all with the same settings and choose with --split, or plot them apart.")
    return runs


def format_method(config: dict[str, Any]) -> str | None:
    """Return the name of the method that a config trains; None for an unknown recipe."""
    recipe = RECIPES.get(find_recipe(config))
    algorithm = setting(config, "run.algorithm")
    return recipe.title.format(algorithm=ALGORITHMS.get(algorithm, recipe.name)) if recipe else None


def check_comparable(facts_by_name: Mapping[str, Mapping[str, Any]], verb: str, fix: str) -> None:
    """Check that runs or evaluations were made alike.

    Args:
        facts_by_name: name -> the facts that must be equal, with the same keys.
        verb: what was done with these facts, for the message.
        fix: what to do, for the message.

    Raises:
        UserError: a fact differs from that of the first entry.
    """
    for name, facts in facts_by_name.items():
        name_of_first, first = next(iter(facts_by_name.items()))
        if different := next((key for key in first if facts[key] != first[key]), None):
            raise UserError(
                "plot.different-settings",
                f"{name}: {verb} with {different} {facts[different]}, {name_of_first} with {different} "
                f"{first[different]}. {fix}",
            )


def plot(folders: Sequence[Path], out: Path, split: str | None = None) -> list[Path]:
    """Write a figure per recipe, and a table of all curves.

    Args:
        folders: of the runs.
        out: the folder to write, which need not exist.
        split: a file of rows; see `read_runs`.

    Returns:
        The paths of the figures, then that of the table.

    Raises:
        UserError: `out` is a file, a run cannot be read or compared, or no run has logged anything yet.
    """
    if out.exists() and not out.is_dir():
        raise UserError("plot.out-is-file", f"--out {out}: is a file. Name a folder.")
    runs = read_runs(folders, split)
    from convrec.report.drawing import write_png  # imports matplotlib, so after all checks

    written = []
    for recipe, recipe_runs in group_by_recipe(runs).items():
        if charts := make_charts(recipe_runs):
            write_png(out / f"{recipe}.png", charts)
            written.append(out / f"{recipe}.png")
    if not written:
        raise UserError(
            "plot.nothing-logged", f"{', '.join(run.name for run in runs)}: nothing logged yet. Wait for a step."
        )
    write_csv(out / "curves.csv", make_long_rows(runs))
    return [*written, out / "curves.csv"]


@command(PlotOptions)
def main(options: PlotOptions) -> int:
    """Plot runs; return the exit status."""
    for path in plot(options.runs, options.out, options.split):
        print(path)
    return 0
