"""Draw charts with matplotlib: as SVG pictures for the page, as one PNG for a folder of plots.

Pictures have colours on white; on a dark page, page.css inverts them.
"""

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from convrec.base.files import atomic_write
from convrec.report.charts import Chart, smooth_points

LINES = ("#1f5fa8", "#b5471b", "#2f7d4f", "#7a4ea3", "#8c6d1f", "#555555")
RANKS = ("#08306b", "#2060aa", "#238276", "#5f8a50", "#a86e03", "#b5461a")
DASHES = ((), (7, 3), (2, 3), (10, 3, 2, 3), (5, 5), (1, 4))  # in points; with six colours 36 lines look different
FEW = 4  # up to so many lines, a chart also shows the single steps behind the smoothed curves
POINTS = 400  # the most points drawn of a line; more cannot be told apart
WIDTH = 4.8  # of a chart, in inches
HEIGHT = 3.0
STYLE = Path(__file__).with_name("charts.mplstyle")


def render_svg(chart: Chart) -> str:
    """Draw the chart as SVG, without title and legend: these are on the page."""
    with matplotlib.style.context(STYLE):
        figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
        axis = figure.subplots()
        draw_chart(axis, chart)
        for patch in (figure.patch, axis.patch):
            patch.set_visible(False)  # the page's own background
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def write_png(path: Path, charts: Sequence[Chart]) -> None:
    """Write the charts in rows with one legend below them; the file appears only when complete.

    Args:
        path: the file.
        charts: at least one. All charts whose lines are runs share the legend of the first of them.
    """
    names = list(next((chart.lines for chart in charts if not chart.ordered), ()))
    columns = min(3, len(charts))
    rows = math.ceil(len(charts) / columns)
    legend_rows = math.ceil(len(names) / columns) if len(names) > 1 else 0
    with matplotlib.style.context(STYLE):
        engine = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)  # inches around each chart
        figure = Figure(figsize=(WIDTH * columns, HEIGHT * rows + 0.22 * legend_rows), layout=engine)
        axes = figure.subplots(rows, columns, squeeze=False)
        for axis in axes.flat[len(charts) :]:
            axis.axis("off")
        for chart, axis in zip(charts, axes.flat, strict=False):
            draw_chart(axis, chart)
            axis.set_title(chart.title)
            if chart.ordered:
                # The legend must not cover the lines.
                axis.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
        if legend_rows:
            handles = [Line2D([], [], label=name, **_make_style(index, False)) for index, name in enumerate(names)]
            figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)
        with atomic_write(path) as partial:
            figure.savefig(partial, dpi=130, format="png")


def write_bars(path: Path, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """Write one picture with a bar chart for each of `names`.

    Args:
        path: the PNG file; it appears only when complete.
        rows: a bar in every chart for each row: its label "run", its value `<name>` and its standard error
            `<name> se`.
        names: the values to draw, at least two.
    """
    with matplotlib.style.context(STYLE):
        figure = Figure(figsize=(3 * len(names), 1 + 0.3 * len(rows)), layout="constrained")
        from_below = rows[::-1]
        runs = [row["run"] for row in from_below]
        for axis, name in zip(figure.subplots(1, len(names), sharey=True), names, strict=True):
            values = [row.get(name, math.nan) for row in from_below]
            errors = [row.get(f"{name} se", math.nan) for row in from_below]
            axis.barh(runs, values, xerr=errors, color=LINES[0])
            axis.set_title(name)
        with atomic_write(path) as partial:
            figure.savefig(partial, dpi=130, format="png")


def make_line_key(index: int, ordered: bool) -> dict[str, str]:
    """Return what a line of a chart looks like, as attributes of an SVG line.

    Args:
        index: the line's place in `Chart.lines`, from 0.
        ordered: as in Chart.
    """
    colour, dashes = _choose_look(index, ordered)
    return {"stroke": colour, "stroke-dasharray": " ".join(map(str, dashes))}


def draw_chart(axis: Axes, chart: Chart) -> None:
    """Draw the lines of a chart, their errors and the axes. A line without points is not drawn."""
    for index, (name, line) in enumerate(chart.lines.items()):
        if line:
            _draw_line(axis, chart, name, _make_style(index, chart.ordered))
    _set_x_axis(axis, chart)
    axis.yaxis.set_major_locator(MaxNLocator(5))
    low, high = _compute_limits(chart, axis)
    axis.set_ylim(low, high)
    axis.set_ylabel(f"{chart.y_label} ± standard error" if any(chart.errors.values()) else chart.y_label)


def _draw_line(axis: Axes, chart: Chart, name: str, style: Mapping[str, Any]) -> None:
    """Draw a curve over its error band; in a chart with few curves, also the unsmoothed steps behind it."""
    points = sorted(chart.lines[name].items())
    thinned = _thin_points(points)
    steps = [step for step, _ in thinned]
    values = [value for _, value in thinned]
    errors = chart.errors.get(name)
    if errors:
        bars = [errors.get(step, math.nan) for step in steps]
        _draw_errors(axis, steps, values, bars, style["color"])
    if chart.window > 1 and not chart.ordered and len(chart.lines) <= FEW:
        axis.plot(steps, values, color=style["color"], alpha=0.25, linewidth=0.8, clip_on=False)
    is_sparse = len(points) == 1 or (len(points) <= 25 and chart.window == 1)
    curve = _thin_points(smooth_points(points, chart.window))
    axis.plot(
        [step for step, _ in curve],
        [value for _, value in curve],
        color=style["color"],
        linestyle=style["linestyle"],
        marker="o" if is_sparse else None,
        clip_on=False,
        label=name,
    )


def _draw_errors(axis: Axes, steps: Sequence[int], values: Sequence[float], bars: Sequence[float], colour: str) -> None:
    """Draw standard errors as a band around a line, as a bar at a single point."""
    low = [value - bar for value, bar in zip(values, bars, strict=True)]
    high = [value + bar for value, bar in zip(values, bars, strict=True)]
    if len(steps) > 1:
        axis.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0, clip_on=False)
    else:
        axis.vlines(steps, low, high, color=colour, alpha=0.6, clip_on=False)


def _set_x_axis(axis: Axes, chart: Chart) -> None:
    last = chart.last_step or max((step for line in chart.lines.values() for step in line), default=0) or 1
    rounded = MaxNLocator(6, integer=True).tick_values(0, last)
    # the last step replaces ticks whose labels its own label would touch
    axis.set_xticks([tick for tick in rounded if 0 <= tick <= 0.9 * last] + [last])
    axis.set_xlim(-0.02 * last, 1.02 * last)
    axis.grid(axis="x", visible=False)
    axis.set_xlabel(chart.x_label)


def _compute_limits(chart: Chart, axis: Axes) -> tuple[float, float]:
    """Widen the limits of the axis to the chart's span: downwards, but not below 0 unless a value is below 0."""
    low, high = axis.get_ylim()
    low = min(low, high - chart.span, 0.0 if chart.ordered else low)
    if axis.dataLim.y0 >= 0:
        low = max(low, 0.0)
    return low, max(high, low + chart.span) + 0.05 * chart.span


def _thin_points(points: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
    every = math.ceil(len(points) / POINTS)
    return [*points[:-1:every], points[-1]]


def _choose_look(index: int, ordered: bool) -> tuple[str, tuple[int, ...]]:
    colours = RANKS if ordered else LINES
    return colours[index % len(colours)], DASHES[(index + index // len(colours)) % len(DASHES)]


def _make_style(index: int, ordered: bool) -> dict[str, Any]:
    colour, dashes = _choose_look(index, ordered)
    return {"color": colour, "linestyle": (0, dashes) if dashes else "-"}
