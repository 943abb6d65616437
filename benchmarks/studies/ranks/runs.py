"""A study's evaluated runs, by variant and seed."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from convrec.base.files import read_json
from convrec.report.curves import Series, read_logged_series
from recipes.evaluation.options import EvaluationOptions
from recipes.evaluation.single import evaluate
from recipes.experiments.local_runs import make_evaluation_options
from recipes.experiments.matrix_file import read_matrix
from recipes.experiments.matrix_runs import MatrixRun, expand_matrix

BEYOND = ("coverage", "popularity_lift", "diversity")
BEYOND_FILE = "beyond.json"  # what kept.py leaves of an evaluation's metrics.json
LAST_STEPS = 10  # of which a checkpoint's KL, entropy and repeats are the means: one step has 128 lists


@dataclass(frozen=True)
class Trained:
    """A run and its curves.

    Attributes:
        run: the run.
        folder: its folder.
        curves: metric -> {step: value}.
    """

    run: MatrixRun
    folder: Path
    curves: Mapping[str, Series]

    def near(self, name: str, step: int) -> float:
        """Return the mean of a metric over the LAST_STEPS up to a step.

        Args:
            name: of the metric.
            step: at least LAST_STEPS; every one of these steps must have the metric.
        """
        return float(np.mean([self.curves[name][at] for at in range(step - LAST_STEPS + 1, step + 1)]))

    @property
    def kl_of_step(self) -> dict[int, float]:
        """Of each checkpoint: the KL to the start, in nats a token."""
        return {step: self.near("actor/kl", step) for step in self.steps}

    @property
    def steps(self) -> list[int]:
        """Of the checkpoints; results that were kept (kept.py) have none, and the file says which there were."""
        every, last = (int(self.run.variables[name]) for name in ("SAVE_FREQ", "TOTAL_STEPS"))
        return sorted({*range(every, last + 1, every), last})


def mean_curve(runs: Sequence[Trained], name: str) -> Series:
    """Average a curve over runs, at the steps that all have.

    Args:
        runs: at least one.
        name: of the metric.
    """
    steps = set.intersection(*(set(run.curves[name]) for run in runs))
    return {step: float(np.mean([run.curves[name][step] for run in runs])) for step in sorted(steps)}


def beyond_accuracy(evaluation: Path) -> dict[str, float]:
    """Return BEYOND of the model's lists, by the protocol `paper`.

    Args:
        evaluation: folder of the evaluation, or of its stored results.

    Returns:
        Measure -> value, without those that the catalog cannot give (diversity needs genres); {} if nothing was stored.
    """
    if (evaluation / "metrics.json").exists():
        model = read_json(evaluation / "metrics.json")["results"]["paper"]["model"]
        return {name: model[name]["mean"] for name in BEYOND if name in model}
    file = evaluation / BEYOND_FILE
    return {name: float(value) for name, value in read_json(file).items()} if file.exists() else {}


class Study:
    """The evaluated runs of a matrix file, by variant and seed."""

    def __init__(self, file: Path) -> None:
        self.matrix = read_matrix(file)
        self.out = Path(self.matrix.out).absolute()  # what is read is cached by its path
        self.runs: dict[str, dict[str, Trained]] = {}
        self.starts: dict[str, dict[str, Path]] = {}  # evaluations
        for run in expand_matrix(self.matrix):
            if run.recipe == "rank_grpo" and (self.evaluation(run.name) / "rows.parquet").exists():
                folder = self.out / run.name
                self.runs.setdefault(run.variant, {})[run.seed] = Trained(run, folder, read_logged_series(folder))
                self.starts[run.variant] = self.starts.get(run.variant, {}) | {run.seed: self.evaluation(run.start)}

    def evaluation(self, name: str | None) -> Path:
        return self.out / "evaluation" / str(name)

    def shared(self, contrasts: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str, list[tuple[Trained, Trained]]]]:
        """Yield each contrast whose variants have seeds in common.

        Args:
            contrasts: pairs of variants.

        Yields:
            Both variants, and their runs with the same seed, as pairs.
        """
        for one, other in contrasts:
            seeds = self.runs.get(one, {}).keys() & self.runs.get(other, {}).keys()
            if seeds:
                yield one, other, [(self.runs[one][seed], self.runs[other][seed]) for seed in sorted(seeds)]

    def checkpoint(self, trained: Trained, step: int) -> Path:
        """Evaluate a checkpoint, unless that was done.

        Args:
            trained: the run.
            step: one of its steps.

        Returns:
            The folder of the evaluation.
        """
        if step == max(trained.steps):
            return self.evaluation(trained.run.name)
        out = self.out / "equal_kl" / f"{trained.run.name}_step_{step}"
        if (out / "rows.parquet").exists():
            return out
        print(f"== {trained.run.name}, step {step}", file=sys.stderr)
        options = make_evaluation_options(trained.run, self.out, self.matrix.evaluate)
        options |= {"model": str(trained.folder / f"global_step_{step}"), "out": str(out), "against": None}
        evaluate(EvaluationOptions(**options))
        return out
