"""study.png: NDCG over the steps and over the KL, and where in the list the hits come from."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from benchmarks.studies.ranks.comparisons import BANDS, K, recall_by_band
from benchmarks.studies.ranks.runs import Study, mean_curve
from convrec.base.files import atomic_write


def draw(study: Study, path: Path) -> None:
    figure = Figure(figsize=(13, 4), layout="constrained")
    over_steps, over_kl, bands = figure.subplots(1, 3)
    width = 0.8 / len(study.runs)
    for number, (variant, of_seeds) in enumerate(study.runs.items()):
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
        pairs = [(study.evaluation(one.run.name), study.starts[variant][seed]) for seed, one in of_seeds.items()]
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
    with atomic_write(path) as partial:
        figure.savefig(partial, dpi=130, format="png")
