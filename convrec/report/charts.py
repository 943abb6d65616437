"""Line charts as inline SVG, for the report: no script, no font, no file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape

from convrec.report.curves import Series, smoothed, window_of


@dataclass(frozen=True)
class Chart:
    """series: name in the legend -> {step: value}; errors: the same of standard errors, where they are known.

    ordered: colours run from first to last, as ranks do. smooth, span: as of curves.Panel.
    """

    title: str
    y_label: str
    series: Mapping[str, Series]
    ordered: bool = False
    smooth: bool = False
    from_zero: bool = False
    span: float = 0.0
    errors: Mapping[str, Series] = field(default_factory=dict)


_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 480, 300, 52, 12, 12, 40
_ORDERED = (
    "#08306b",
    "#1f5fa8",
    "#2a9d8f",
    "#8ab17d",
    "#d98e04",
    "#b5471b",
)  # rank 1 to 20; dashes tell them apart too
_CATEGORIES = ("#1f5fa8", "#b5471b", "#2f7d4f", "#7a4ea3", "#8c6d1f", "#555555")
_DASHES = ("", "7 3", "2 3", "10 3 2 3", "5 5", "1 4")


def _ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers that cover [low, high]: steps of 1, 2 or 5 times a power of ten."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def _tick_label(value: float) -> str:
    return f"{value:g}" if abs(value) >= 1e-12 else "0"


def _tick_text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def draw(chart: Chart) -> str:
    """One figure: an SVG line chart that scales with the page, and its legend and caption in HTML."""
    title, smooth, from_zero = chart.title, chart.smooth, chart.from_zero
    points_of = {
        name: [(int(step), float(values[step])) for step in sorted(values) if math.isfinite(values[step])]
        for name, values in chart.series.items()
    }
    points_of = {name: points for name, points in points_of.items() if points}
    if not points_of:
        return f"<figure><h3>{escape(title)}</h3><p>Nothing was logged.</p></figure>"
    window = max(map(window_of, points_of.values())) if smooth else 1
    drawn = {name: smoothed(points, window) for name, points in points_of.items()}

    # a single conversation has no standard error
    error_of = {
        name: {step: error for step, error in chart.errors.get(name, {}).items() if math.isfinite(error)}
        for name in drawn
    }
    last = max(1, *(step for points in drawn.values() for step, _ in points))
    ends = [
        value + sign * error_of[name].get(step, 0.0)
        for name, points in drawn.items()
        for step, value in points
        for sign in (-1, 1)
    ]
    low, high = min(*ends, max(ends) - chart.span), max(ends)
    if from_zero:
        low = min(0.0, low)
    if high - low < 1e-9:
        margin = abs(high) * 0.1 or 0.5
        low, high = (low, high + margin) if from_zero else (low - margin, high + margin)
    y_ticks = _ticks(low, high, 5)
    low, high = y_ticks[0], y_ticks[-1]
    # round steps, and the last one in place of those that its label would touch
    x_ticks = [tick for tick in _ticks(0, last, 6) if tick <= 0.9 * last and float(tick).is_integer()] + [last]

    def x(step: float) -> float:
        return _LEFT + step / last * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _TOP + (high - value) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    svg = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title, quote=True)} over steps">']
    for tick in y_ticks:
        svg.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        svg.append(
            f'<text class="tick" x="{_LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{_tick_label(tick)}</text>'
        )
    for tick in x_ticks:
        svg.append(
            f'<text class="tick" x="{x(tick):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{int(tick)}</text>'
        )
    svg.append(_tick_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 5, "step"))
    legend = []
    for name, points in drawn.items():
        index = list(chart.series).index(name)  # a run keeps its colour where another has nothing
        colour = (_ORDERED if chart.ordered else _CATEGORIES)[index % 6]
        dashes = _DASHES[(index + index // 6) % 6]  # 36 runs look different
        style = f'stroke="{colour}" stroke-dasharray="{dashes}"'
        path = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in points)
        svg.append(f'<polyline class="curve" points="{path}" {style}/>')
        if len(points) == 1 or (len(points) <= 25 and not smooth):
            svg += [f'<circle cx="{x(step):.1f}" cy="{y(value):.1f}" r="3" fill="{colour}"/>' for step, value in points]
        for step, value in points:
            if error := error_of[name].get(step):
                bar = f'y1="{y(value - error):.1f}" y2="{y(value + error):.1f}"'
                svg.append(f'<line class="error" x1="{x(step):.1f}" x2="{x(step):.1f}" {bar} stroke="{colour}"/>')
        start, end = points[0][1], points[-1][1]
        legend.append(
            f'<li><svg viewBox="0 0 30 8" class="key"><line x1="0" x2="30" y1="4" y2="4" class="curve" {style}/></svg>'
            f"{escape(name)} <small>{start:.3f} → {end:.3f}</small></li>"
        )
    svg.append("</svg>")
    caption = f"{chart.y_label[:1].upper()}{chart.y_label[1:]} by step"
    if window > 1:
        caption += f", each point the mean of about {window} steps"
    if any(error_of.values()):
        caption += ", bars of one standard error to each side"
    return (
        f'<figure><h3>{escape(title)}</h3>{"".join(svg)}<ul class="keys">{"".join(legend)}</ul>'
        f"<figcaption>{escape(caption)}; the legend gives first and last value.</figcaption></figure>"
    )
