"""What relevance alone does to coverage and popularity, and what parts of the reward cost: trains, evaluates, draws.

    python benchmarks/studies/pareto.py

Runs pareto.yaml beside it (convrec matrix; stopped, it resumes) and draws of its table NDCG@20 against coverage and
against popularity lift: a small dot a seed, a large one with bars of one standard deviation between seeds a variant,
and the start.
"""

import argparse
import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from convrec.base.files import atomic_write
from recipes import matrix

FILE = Path(__file__).with_suffix(".yaml")
QUALITY = "ndcg@20"
MEASURES = {"coverage": "coverage: share of the catalog that is recommended", "popularity_lift": "popularity lift"}
LABELS = {
    "sft": "SFT, the start",
    "relevance": "relevance",
    "summed_0.1": "summed: + 0.1 diversity - 0.1 popularity",
    "summed_0.3": "summed: + 0.3, - 0.3",
    "normalised_0.1": "each normalised: + 0.1, - 0.1",
    "normalised_0.3": "each normalised: + 0.3, - 0.3",
}


def draw(rows: Sequence[Mapping[str, str]], path: Path) -> None:
    """rows: of table.csv, a run each."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots(1, len(MEASURES), sharey=True)
    for axis, (measure, label) in zip(axes, MEASURES.items(), strict=True):
        for number, (variant, text) in enumerate(LABELS.items()):
            of_seeds = [(float(row[measure]), float(row[QUALITY])) for row in rows if row["variant"] == variant]
            points = np.array(of_seeds).reshape(-1, 2)
            (x, y), colour = points.mean(0), f"C{number}"
            spread_x, spread_y = points.std(0, ddof=1) if len(points) > 1 else (0.0, 0.0)
            axis.scatter(*points.T, s=12, color=colour, alpha=0.5)
            axis.errorbar(x, y, xerr=spread_x, yerr=spread_y, fmt="o", markersize=8, color=colour, label=text)
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("NDCG@20")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    with atomic_write(path) as partial:
        figure.savefig(partial, dpi=130, format="png")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--figure", type=Path, default=Path("outputs/pareto/pareto.png"))
    options = parser.parse_args()
    if status := matrix.main([str(FILE)]):
        return status
    with open("outputs/pareto/table.csv", encoding="utf-8", newline="") as file:
        draw(list(csv.DictReader(file)), options.figure)
    print(options.figure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
