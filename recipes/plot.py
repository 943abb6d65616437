"""Curves of one run or several, comparable: the paper's figures 2-6 as one command.

    python -m recipes.plot RUN [RUN ...] --out outputs/plots

OUT gets sft.png and rank_grpo.png, for the recipes among the runs, and curves.csv (run, metric, step, value). The
recommendations of checkpoints are drawn once `python -m recipes.evaluate --model RUN --sweep ...` has evaluated them.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from convrec.errors import UserError
from convrec.report.charts import charts_of
from convrec.report.curves import PANELS, RunCurves, long_rows, read_curves, write_csv
from convrec.runs.folder import read_config, recipe_of, setting
from recipes.launch.algorithms import ALGORITHMS
from recipes.launch.recipe import RECIPES
from recipes.launch.settings import CONF

_CHOSEN_BY_ALGORITHM = ("algorithm.adv_estimator", "actor_rollout_ref.actor.policy_loss.loss_mode")


def read_runs(folders: Sequence[Path], split: str | None = None) -> list[RunCurves]:
    """The runs' curves under the shortest names that tell them apart; what their reader should know goes to stderr.

    Raises UserError as curves.read_curves does, and for sweeps that differ in what makes their figures comparable.
    """
    paths = [folder.resolve() for folder in folders]
    depth = next(
        (n for n in range(1, 5) if len({path.parts[-n:] for path in paths}) == len(set(paths))), len(paths[0].parts)
    )
    runs = [
        read_curves(path, "/".join(path.parts[-depth:]), split, method_of(read_config(path)))
        for path in dict.fromkeys(paths)
    ]
    for run in runs:
        for warning in run.warnings:
            print(f"warning: {warning}", file=sys.stderr)
    _check_sweeps([run for run in runs if run.split])
    return runs


def method_of(config: dict[str, Any]) -> str | None:
    """What a run with this config calls itself; None without a config.

    Version 0.1 did not note the algorithm: it is the one whose settings in conf/algorithm_preset the run has, and else
    called by verl's names.
    """
    recipe = RECIPES.get(recipe_of(config)) if config else None
    if recipe is None:
        return None
    algorithm = setting(config, "run.algorithm")
    if algorithm in ALGORITHMS:
        return recipe.title.format(algorithm=ALGORITHMS[algorithm])
    ours = [setting(config, key) for key in _CHOSEN_BY_ALGORITHM]
    for name in ALGORITHMS:
        preset = yaml.safe_load((CONF / "algorithm_preset" / f"{name}.yaml").read_text(encoding="utf-8"))
        if ours == [setting(preset, key) for key in _CHOSEN_BY_ALGORITHM]:
            return recipe.title.format(algorithm=ALGORITHMS[name])
    return recipe.title.format(algorithm=" with ".join(str(name) for name in ours if name) or recipe.name)


def _check_sweeps(runs: Sequence[RunCurves]) -> None:
    seen: dict[str, tuple[Any, str]] = {}
    for run in runs:
        facts: dict[str, Any] = {"split": run.split, "k": run.k}
        if run.sweep:  # a sweep of an earlier version says no more
            facts |= {"protocol": run.sweep["protocols"][0]} | {key: run.sweep[key] for key in ("matching", "limit")}
        for key, value in facts.items():
            first, name = seen.setdefault(key, (value, run.name))
            if value != first:
                raise UserError(
                    f"{run.name}: swept with {key} {value}, {name} with {key} {first}; sweep all alike and choose the "
                    "sweep with --split, or draw them apart"
                )


def plot(folders: Sequence[Path], out: Path, split: str | None = None) -> list[Path]:
    """Write the figures and the table; returns their paths. Raises UserError when no run has logged anything yet."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: a file is there; name a folder")
    runs = read_runs(folders, split)
    from convrec.report.drawing import write_png  # matplotlib, after what can be refused

    written = []
    for recipe in PANELS:
        of_recipe = [run for run in runs if run.recipe == recipe]
        if of_recipe and (charts := charts_of(of_recipe)):
            write_png(out / f"{recipe}.png", charts)
            written.append(out / f"{recipe}.png")
    if not written:
        raise UserError(
            f"{', '.join(run.name for run in runs)}: nothing logged yet that could be drawn; wait for a step"
        )
    write_csv(out / "curves.csv", long_rows(runs))
    return [*written, out / "curves.csv"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m recipes.plot", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folder (SAVE_PATH)")
    parser.add_argument("--out", type=Path, default=Path("outputs/plots"), help="folder to write (%(default)s)")
    parser.add_argument("--split", help="whose sweep to show, where a run has several")
    options = parser.parse_args(arguments)
    try:
        for path in plot(options.runs, options.out, options.split):
            print(path)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
