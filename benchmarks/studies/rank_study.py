"""Does credit by rank beat credit by list? Trains and evaluates a study's runs, and compares them as its plan says.

    LR_GRPO=... LR_GSPO=... LR_EXP_INF=... LR_LOG_DECAY=... \\
        python benchmarks/studies/rank_study.py benchmarks/studies/rank_study.yaml

Runs the matrix (recipes.matrix; stopped, it resumes). Of each pair of CONTRASTS it then evaluates on the test rows the
checkpoints that are equally far from their start. OUT, the matrix's, gets

study.md   the variants at the last step, their pairs there and at equal KL, the step at which each passes a level
study.png  NDCG@20 on validation over the steps, the same over the KL, and where in the list the hits come from

The plan and its results: notes/rank_study.md.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from convrec.errors import UserError
from convrec.files import write_text, written_whole
from convrec.lists.metrics import paired
from convrec.report.curves import Series, read_curves
from recipes import matrix
from recipes.evaluation.gains import rows_of
from recipes.evaluation.single import evaluate
from recipes.experiments.here import evaluation_of
from recipes.experiments.matrix_file import Run, read_matrix, runs_of

K = 20
NDCG, RECALL = f"ndcg@{K}", f"recall@{K}"
BANDS = {"1-5": (0, 5), "6-10": (5, 10), "11-15": (10, 15), "16-20": (15, 20)}
# the first minus the second
CONTRASTS = (
    ("rank_exp_inf", "grpo"),
    ("rank_log_decay", "grpo"),
    ("rank_exp_inf", "gspo"),
    ("rank_log_decay", "gspo"),
    ("rank_exp_inf", "rank_log_decay"),
    ("gspo", "grpo"),
    ("grpo_mu2", "grpo"),
    ("rank_exp_inf_mu2", "rank_exp_inf"),
    ("rank_exp_inf_mu2", "grpo_mu2"),
)
AT_EQUAL_KL = CONTRASTS[:4]
LAST_STEPS = 10  # of which a checkpoint's KL, entropy and repeats are the means: one step has 128 lists


@dataclass(frozen=True)
class Trained:
    """A run and its curves (name -> {step: value})."""

    run: Run
    folder: Path
    curves: Mapping[str, Series]

    def near(self, name: str, step: int) -> float:
        """Mean over the LAST_STEPS up to this one."""
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


@cache
def recall_by_band(folder: Path) -> dict[str, float]:
    """Recall of an evaluation that the ranks of each band add."""
    rows = rows_of(folder).values()
    recall = {k: np.nanmean([row[f"recall@{k}"] for row in rows]) for k in (5, 10, 15, 20)}
    return {band: float(recall[last] - recall.get(first, 0.0)) for band, (first, last) in BANDS.items()}


def difference(seeds: Sequence[tuple[Path, Path]]) -> dict[str, tuple[float, float, float]]:
    """Of (minuend's, subtrahend's) evaluation of each seed: metric -> the mean difference, its standard error over
    conversations (a conversation's difference being its mean over the seeds), and the standard deviation of the seeds'
    differences (NaN of one seed)."""
    means_of_seeds, rows = [], []
    for minuend, subtrahend in seeds:
        pair = rows_of(minuend), rows_of(subtrahend)
        values_RM = np.array([[pair[0][at][m] - pair[1][at][m] for m in (NDCG, RECALL)] for at in pair[1]])
        means_of_seeds.append(np.nanmean(values_RM, axis=0))
        rows.append(values_RM)
    mean_RM, zero = np.mean(rows, axis=0), {NDCG: 0.0, RECALL: 0.0}
    of_rows = [dict(zip((NDCG, RECALL), map(float, values), strict=True)) for values in mean_RM]
    found = paired([zero] * len(of_rows), of_rows, [K], [row["prompt_id"] for row in pair[1].values()])
    between = np.std(means_of_seeds, axis=0, ddof=1) if len(seeds) > 1 else np.full(2, np.nan)
    return {m: (found[m]["mean"], found[m]["se"], float(sd)) for m, sd in zip((NDCG, RECALL), between, strict=True)}


def equal_kl(one: Mapping[int, float], other: Mapping[int, float]) -> tuple[int, int]:
    """A checkpoint of each (step -> KL): the last of the one that ends nearer to its start, the other's nearest."""
    last_one, last_other = max(one), max(other)
    if one[last_one] > other[last_other]:
        return equal_kl(other, one)[::-1]
    return last_one, min(other, key=lambda step: abs(np.log(other[step] / one[last_one])))


def first_passing(curve: Series, level: float) -> int | None:
    """The first step from which on the curve is not below the level again."""
    below = [step for step, value in curve.items() if value < level]
    after = [step for step in curve if step > max(below, default=-1)]
    return min(after, default=None)


def mean_curve(runs: Sequence[Trained], name: str) -> Series:
    steps = set.intersection(*(set(run.curves[name]) for run in runs))
    return {step: float(np.mean([run.curves[name][step] for run in runs])) for step in sorted(steps)}


class Study:
    """The evaluated runs of a matrix file, by variant and seed."""

    def __init__(self, file: Path) -> None:
        self.matrix = read_matrix(file)
        self.out = Path(self.matrix["out"])
        self.runs: dict[str, dict[str, Trained]] = {}
        self.starts: dict[str, dict[str, Path]] = {}  # evaluations
        for run in runs_of(self.matrix):
            if run.recipe == "rank_grpo" and (self.evaluation(run.name) / "rows.parquet").exists():
                folder = self.out / run.name
                self.runs.setdefault(run.variant, {})[run.seed] = Trained(run, folder, read_curves(folder).series)
                self.starts[run.variant] = self.starts.get(run.variant, {}) | {run.seed: self.evaluation(run.start)}

    def evaluation(self, name: str | None) -> Path:
        return self.out / "evaluation" / str(name)

    def shared(self, contrasts: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str, list[tuple[Trained, Trained]]]]:
        """Each contrast whose variants have seeds in common, with their runs of these."""
        for one, other in contrasts:
            seeds = self.runs.get(one, {}).keys() & self.runs.get(other, {}).keys()
            if seeds:
                yield one, other, [(self.runs[one][seed], self.runs[other][seed]) for seed in sorted(seeds)]

    def checkpoint(self, trained: Trained, step: int) -> Path:
        """The folder of this checkpoint's evaluation, which is made; lists that are there are used again."""
        if step == max(trained.steps):
            return self.evaluation(trained.run.name)
        out = self.out / "equal_kl" / f"{trained.run.name}_step_{step}"
        if (out / "rows.parquet").exists():
            return out
        print(f"== {trained.run.name}, step {step}", file=sys.stderr)
        options = evaluation_of(trained.run, self.out, self.matrix["evaluate"])
        evaluate(**options | {"model": trained.folder / f"global_step_{step}", "out": out, "against": None})
        return out

    def variants_table(self) -> list[str]:
        titles = ("seeds", NDCG, RECALL, *(f"recall {band}" for band in BANDS), "KL", "entropy", "repeats", "items")
        lines = _header("variant", *titles)
        starts = dict(pair for of in self.starts.values() for pair in of.items())
        lines.append(_row("the start", len(starts), *_accuracy([*starts.values()])))
        for variant, of_seeds in self.runs.items():
            trained = list(of_seeds.values())
            evaluations = [self.evaluation(one.run.name) for one in trained]
            names = ("actor/kl", "actor/entropy", "rank_grpo/duplicates", "rank_grpo/num_items")
            sampled = [[one.near(name, max(one.steps)) for name in names] for one in trained]
            means = (f"{value:.3f}" for value in np.mean(sampled, axis=0))
            lines.append(_row(variant, len(trained), *_accuracy(evaluations), *means))
        return lines

    def contrasts_table(self) -> list[str]:
        lines = _header("at the last step", "seeds", NDCG, "sd of seeds", RECALL, "sd of seeds")
        for one, other, runs in self.shared(CONTRASTS):
            found = difference([(self.evaluation(a.run.name), self.evaluation(b.run.name)) for a, b in runs])
            lines.append(_row(f"{one} - {other}", len(runs), *_difference(found)))
        return lines

    def equal_kl_table(self) -> list[str]:
        lines = _header("at equal KL", "seeds", "steps", "KL", NDCG, "sd of seeds", RECALL, "sd of seeds")
        for one, other, runs in self.shared(AT_EQUAL_KL):
            chosen = [(pair, equal_kl(pair[0].kl_of_step, pair[1].kl_of_step)) for pair in runs]
            steps = [" / ".join(str(of_pair[side]) for _, of_pair in chosen) for side in (0, 1)]
            kl = [np.mean([pair[side].kl_of_step[at[side]] for pair, at in chosen]) for side in (0, 1)]
            found = difference(
                [(self.checkpoint(pair[0], at[0]), self.checkpoint(pair[1], at[1])) for pair, at in chosen]
            )
            shown = f"{steps[0]}; {steps[1]}", f"{kl[0]:.3f}; {kl[1]:.3f}"
            lines.append(_row(f"{one} - {other}", len(runs), *shown, *_difference(found)))
        return lines

    def levels_table(self) -> list[str]:
        """The steps to half of what GRPO gains on validation, and to all of it."""
        curves = {variant: mean_curve([*of.values()], "val/ndcg") for variant, of in self.runs.items()}
        grpo = curves["grpo"]
        first, last = grpo[min(grpo)], grpo[max(grpo)]
        levels = (first + last) / 2, last
        lines = _header("steps to NDCG on validation of", *(f"{level:.4f}" for level in levels))
        for variant, curve in curves.items():
            steps = [first_passing(curve, level) for level in levels]
            lines.append(_row(variant, *("not" if step is None else step for step in steps)))
        return lines

    def draw(self, path: Path) -> None:
        figure = Figure(figsize=(13, 4), layout="constrained")
        over_steps, over_kl, bands = figure.subplots(1, 3)
        width = 0.8 / len(self.runs)
        for number, (variant, of_seeds) in enumerate(self.runs.items()):
            trained, colour = [*of_seeds.values()], f"C{number}"
            curve = mean_curve(trained, "val/ndcg")
            over_steps.plot(curve.keys(), curve.values(), color=colour, label=variant)
            for one in trained:
                over_steps.plot(
                    *zip(*sorted(one.curves["val/ndcg"].items()), strict=True), color=colour, alpha=0.25, lw=0.7
                )
                kl = one.kl_of_step
                points = sorted((kl[step], one.curves["val/ndcg"][step]) for step in kl)
                over_kl.plot(*zip(*points, strict=True), "o-", color=colour, ms=3, lw=0.7)
            pairs = [(self.evaluation(one.run.name), self.starts[variant][seed]) for seed, one in of_seeds.items()]
            gains = [[recall_by_band(run)[b] - recall_by_band(start)[b] for b in BANDS] for run, start in pairs]
            spread = np.std(gains, axis=0, ddof=1) if len(gains) > 1 else np.zeros(len(BANDS))
            bands.bar(np.arange(len(BANDS)) + number * width, np.mean(gains, axis=0), width, yerr=spread, color=colour)
        for axis, x, y in (
            (over_steps, "step", f"NDCG@{K} on validation"),
            (over_kl, "KL to the start, nats a token", ""),
            (bands, "ranks", "recall on test, minus the start's"),
        ):
            axis.set(xlabel=x, ylabel=y)
            axis.grid(alpha=0.3)
        over_kl.set_xscale("log")
        over_kl.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        over_kl.xaxis.set_major_formatter("{x:g}")
        over_kl.xaxis.set_minor_locator(NullLocator())
        bands.set_xticks(np.arange(len(BANDS)) + 0.4 - width / 2, list(BANDS))
        figure.legend(*over_steps.get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False)
        with written_whole(path) as partial:
            figure.savefig(partial, dpi=130, format="png")


def _header(*titles: object) -> list[str]:
    return ["", _row(*titles), "|---" * len(titles) + "|"]


def _row(*cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _accuracy(evaluations: Sequence[Path]) -> Iterator[str]:
    for name in (NDCG, RECALL):
        values = [np.nanmean([row[name] for row in rows_of(folder).values()]) for folder in evaluations]
        yield f"{np.mean(values):.4f}" + (f" (sd {np.std(values, ddof=1):.4f})" if len(values) > 1 else "")
    added = [recall_by_band(folder) for folder in evaluations]
    yield from (f"{np.mean([of[band] for of in added]):.4f}" for band in BANDS)


def _difference(found: Mapping[str, tuple[float, float, float]]) -> Iterator[str]:
    for mean, error, between in found.values():
        yield f"{mean:+.4f} ± {error:.4f}"
        yield f"{between:.4f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("matrix", type=Path, help="rank_study.yaml or rank_study_redial.yaml")
    parser.add_argument(
        "--as-far-as-it-is", action="store_true", help="train nothing: compare what is evaluated so far"
    )
    options = parser.parse_args()
    if not options.as_far_as_it_is and (status := matrix.main([str(options.matrix)])):
        return status
    try:
        study = Study(options.matrix)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if "grpo" not in study.runs:
        print(f"error: {study.out}: no run of grpo is evaluated yet", file=sys.stderr)
        return 2
    tables = (study.variants_table, study.contrasts_table, study.equal_kl_table, study.levels_table)
    text = "\n".join(line for table in tables for line in table()).lstrip()
    write_text(study.out / "study.md", text + "\n")
    study.draw(study.out / "study.png")
    print(f"{text}\n\nwritten to {study.out}/study.md and study.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
