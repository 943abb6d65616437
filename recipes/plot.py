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

from convrec.errors import UserError
from convrec.report.curves import PANELS, RunCurves, long_rows, read_curves, write_csv, write_png


def read_runs(folders: Sequence[Path], split: str | None = None) -> list[RunCurves]:
    """The runs' curves under the shortest names that tell them apart; what their reader should know goes to stderr.

    Raises UserError as curves.read_curves does, and for sweeps that differ in what makes their figures comparable.
    """
    paths = [folder.resolve() for folder in folders]
    depth = next(
        (n for n in range(1, 5) if len({path.parts[-n:] for path in paths}) == len(set(paths))), len(paths[0].parts)
    )
    runs = [read_curves(path, "/".join(path.parts[-depth:]), split) for path in dict.fromkeys(paths)]
    for run in runs:
        for warning in run.warnings:
            print(f"warning: {warning}", file=sys.stderr)
    _check_sweeps([run for run in runs if run.split])
    return runs


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
    runs = read_runs(folders, split)
    written = []
    for recipe, panels in PANELS.items():
        alike = [run for run in runs if run.recipe == recipe]
        if some := [run for run in alike if any(run.series.get(panel.metric) for panel in panels)]:
            write_png(out / f"{recipe}.png", some)
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
    parser.add_argument("--out", type=Path, default=Path("outputs/plots"))
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
