"""Line charts of runs over steps, as data; convrec.report.drawing draws them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from convrec.report.curves import ERROR, RunCurves, Series, label_runs
from convrec.report.panels import PANELS, REPORTED_RANKS

SMOOTHING_PARTS = 12  # each point of a noisy curve is the mean of about 1 / SMOOTHING_PARTS of its steps


@dataclass(frozen=True)
class Chart:
    """Curves over steps.

    Attributes:
        title: the heading of the chart.
        y_label: the label of the value axis.
        lines: name in the legend -> {step: value}. A run without values has an empty line, which keeps its colour.
        errors: name in the legend -> {step: standard error}, where known.
        error: what the standard errors are taken over; "" for a metric without them.
        ordered: whether the lines are ranks: colours run from first to last, and the value axis begins at 0.
        smooth: as in panels.Panel.
        span: as in panels.Panel.
        last_step: where the step axis ends; None for the last step of the lines.
        x_label: the label of the step axis.
    """

    title: str
    y_label: str
    lines: Mapping[str, Series]
    errors: Mapping[str, Series] = field(default_factory=dict)
    error: str = ""
    ordered: bool = False
    smooth: bool = False
    span: float = 0.0
    last_step: int | None = None
    x_label: str = "step"

    @property
    def window(self) -> int:
        """The number of neighbouring points that a drawn point is the mean of."""
        if not self.smooth or not self.lines:
            return 1
        longest = max(len(line) for line in self.lines.values())
        return max(1, longest // SMOOTHING_PARTS)

    @property
    def caption(self) -> str:
        """What the reader must know about the curves: the smoothing and the error."""
        sentences = []
        if self.window > 1:
            sentences.append(f"Each point is the mean of about {self.window} steps.")
        without = [name for name, line in self.lines.items() if line and not self.errors.get(name)]
        if self.error and len(without) < len(self.lines):
            sentences.append(f"Band: one standard error to each side ({self.error}).")
        if self.error and without:
            of = f" of {', '.join(without)}" if len(self.lines) > 1 else ""
            sentences.append(f"The standard error{of} was not logged: a small change may be noise.")
        return " ".join(sentences)


def make_charts(runs: Sequence[RunCurves]) -> list[Chart]:
    """Make a chart, with a line per run, for each panel that any of these runs has.

    For a single run the returns of all ranks share one chart, with a line per rank.

    Args:
        runs: runs of one recipe, at least one.
    """
    panels = PANELS[runs[0].recipe]
    labels = label_runs(runs)
    steps = [step for run in runs for panel in panels for step in run.series.get(panel.metric, ())]
    last_step = max(steps, default=None)
    charts = []
    returns: dict[str, Series] = {}
    if len(runs) == 1:
        names = {f"rank {k}": f"rank_grpo/return@{k}" for k in REPORTED_RANKS}
        returns = {rank: runs[0].series[name] for rank, name in names.items() if name in runs[0].series}
    if returns:
        charts.append(Chart("Return per rank", "mean return", returns, ordered=True, smooth=True, last_step=last_step))
    for panel in panels:
        drawn = [run for run in runs if run.series.get(panel.metric)]
        if not drawn or (returns and "/return@" in panel.metric):
            continue
        charts.append(
            Chart(
                title=panel.title.format(k=drawn[0].k, split=drawn[0].split),
                y_label=panel.y_label,
                lines={labels[run.name]: run.series.get(panel.metric, {}) for run in runs},
                errors={labels[run.name]: run.series.get(panel.metric + ERROR, {}) for run in runs},
                error=panel.error,
                smooth=panel.smooth,
                span=panel.span,
                last_step=last_step,
            )
        )
    return charts


def smooth_points(points: Sequence[tuple[int, float]], window: int) -> list[tuple[int, float]]:
    """Replace each point by the mean of the points around it.

    The first point keeps its value, so that a steep start is drawn where it is and not later, as with a trailing mean.

    Args:
        points: (step, value), in order of step.
        window: about how many points a mean covers; near the ends there are fewer. 1 changes nothing.

    Returns:
        (step, mean) for each of the points.
    """
    values = [value for _, value in points]
    smoothed = []
    for index, (step, _) in enumerate(points):
        reach = min(index, window // 2)
        around = values[index - reach : index + reach + 1]
        smoothed.append((step, sum(around) / len(around)))
    return smoothed
