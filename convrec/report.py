"""One self-contained HTML file about a run: metrics table, curves as inline SVG, lists before and after, settings.

No script, no network, no image file: it can be mailed, printed, or opened on a phone. Whatever a model or a user wrote
is escaped.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from convrec import ranks
from convrec.matching import Matcher

REPORTED_RANKS = (1, 2, 5, 10, 15, 20)
Series = Mapping[int, float]  # step -> value

HIT, MISS, REPEATED, SEEN, OUT_OF_CATALOG, NOT_AN_ITEM = "hit", "miss", "repeated", "seen", "not in catalog", "no item"
SYMBOLS = {HIT: "✓", MISS: "", REPEATED: "↻", SEEN: "◉", OUT_OF_CATALOG: "∅", NOT_AN_ITEM: "?"}


@dataclass(frozen=True)
class ListLine:
    text: str
    marks: tuple[str, ...]  # of the words above; never empty


@dataclass(frozen=True)
class Example:
    conversation: str
    ground_truth: Sequence[tuple[str, Any]]
    lists: Mapping[str, Sequence[ListLine]]  # "before"/"after" or model names -> list
    label: str = ""  # why this one is shown


def mark_list(
    text: str, matcher: Matcher, ground_truth: Sequence[tuple[str, Any]], seen: Sequence[str], num_items: int = 20
) -> list[ListLine]:
    """The first `num_items` lines of a response, each with what became of it."""
    lines = ranks.split_lines(text)[:num_items]
    items = [ranks.parse_item(line, matcher.catalog.dated) for line in lines]
    match = matcher.match(items, list(ground_truth), list(seen))
    marked = []
    for rank, (line, item) in enumerate(zip(lines, items, strict=True)):
        marks = []
        if item is None:
            marks.append(NOT_AN_ITEM)
        else:
            if match.relevance[rank]:
                marks.append(HIT)
            if match.duplicate[rank]:
                marks.append(REPEATED)
            if match.seen[rank]:
                marks.append(SEEN)
            if not match.in_catalog[rank]:
                marks.append(OUT_OF_CATALOG)
        marked.append(ListLine(line, tuple(marks or [MISS])))
    return marked


def series(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """runs.read_metrics' rows as metric -> {step: value}; what is no finite number is left out."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        for key, value in row.items():
            if key != "step" and isinstance(value, int | float) and math.isfinite(value):
                found.setdefault(key, {})[int(row["step"])] = float(value)
    return found


def return_per_rank(metrics: Mapping[str, Series], prefix: str = "rank_grpo/return@") -> dict[str, Series]:
    """The curves "rank 1", "rank 2", ... that a run has logged."""
    return {f"rank {k}": metrics[f"{prefix}{k}"] for k in REPORTED_RANKS if f"{prefix}{k}" in metrics}


def table_row(model: str, summary: Mapping[str, Any], ks: Sequence[int]) -> dict[str, Any]:
    """A model's column of the tables from what recipes.evaluate found."""
    row: dict[str, Any] = {"model": model}
    for metric, name in (("recall", "Recall"), ("ndcg", "NDCG")):
        for k in ks:
            value = summary[f"{metric}@{k}"]
            row[f"{name}@{k}"] = (value["mean"], value["se"])
    return row | {
        "in catalog": summary["catalog_hit_ratio"],
        "distinct items": summary["distinct_items"],
        "wrong list length": f"{summary['list_length_errors']} of {summary['n']}",
        "repeats in a list": summary["repeats_per_list"],
    }


def text_table(table: Sequence[Mapping[str, Any]]) -> str:
    """The report's table for a terminal: a line for each metric, a column for each model."""
    metrics = list(dict.fromkeys(key for row in table for key in row if key != "model"))
    lines = [["", *(str(row["model"]) for row in table)]]
    for metric in metrics:
        lines.append([metric, *(_text_cell(row.get(metric)) for row in table)])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]).rstrip()
        for line in lines
    )


def _text_cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, tuple | list):
        return f"{_number(value[0])} ±{_number(value[1])}"
    return value if isinstance(value, str) else _number(value)


def write_report(
    out_html: str | Path,
    *,
    title: str,
    settings: Mapping[str, Any],
    table: Sequence[Mapping[str, Any]],
    curves: Mapping[str, Series],
    return_per_rank: Mapping[str, Series],
    examples: Sequence[Example],
    notes: Sequence[str] = (),
) -> Path:
    """Write the report and return its path.

    table: a mapping for each model: "model" (its name) and metric -> number, (mean, standard error) or text; metrics
    become the table's rows, in order of first appearance. curves: name -> {step: value}, validation metrics over steps.
    return_per_rank: "rank 1" -> {step: value}.
    """
    parts = [
        f"<h1>{escape(title)}</h1>",
        *(f"<p>{escape(note)}</p>" for note in notes),
        "<h2>Test split</h2>",
        _table(table),
        "<h2>Training</h2>",
        '<div class="charts">',
        _chart("Return per rank", "mean return", return_per_rank, ordered=True, smooth=True, from_zero=True),
        _chart("Validation", "metric", curves),
        "</div>",
    ]
    if examples:
        parts += ["<h2>Lists before and after</h2>", _legend_of_marks()]
        parts += [_example(number, example) for number, example in enumerate(examples, start=1)]
    parts += ["<h2>Settings</h2>", _settings(settings)]
    body = "\n".join(parts)
    css = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{css}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )
    out = Path(out_html)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page, encoding="utf-8")
    return out


# ---- parts of the page


def _number(value: float) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return escape(str(value))
    if not math.isfinite(value):
        return "–"
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.1f}"


def _mean_of(value: Any) -> float | None:
    mean = value[0] if isinstance(value, tuple | list) else value
    return float(mean) if isinstance(mean, int | float) and not isinstance(mean, bool) and math.isfinite(mean) else None


def _cell(value: Any, best: bool) -> str:
    if value is None:
        return "<td>–</td>"
    if isinstance(value, tuple | list):
        text = f'{_number(value[0])} <span class="se">±\u202f{_number(value[1])}</span>'
    else:
        text = _number(value)
    return f'<td class="best">{text}</td>' if best else f"<td>{text}</td>"


def _table(table: Sequence[Mapping[str, Any]]) -> str:
    if not table:
        return "<p>No metrics.</p>"
    metrics = list(dict.fromkeys(key for row in table for key in row if key != "model"))
    head = "".join(f'<th scope="col">{escape(str(row["model"]))}</th>' for row in table)
    lines = []
    for metric in metrics:
        values = [row.get(metric) for row in table]
        means = [_mean_of(value) for value in values]
        known = [mean for mean in means if mean is not None]
        higher_is_better = metric.lower().startswith(("recall", "ndcg"))
        best = max(known) if higher_is_better and len(known) > 1 else None
        cells = "".join(
            _cell(value, best is not None and mean == best) for value, mean in zip(values, means, strict=True)
        )
        lines.append(f'<tr><th scope="row">{escape(metric)}</th>{cells}</tr>')
    return (
        f'<div class="scroll"><table><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
        '<p class="caption">Mean ± standard error (bootstrap over conversations); bold is the best of a row.</p>'
    )


def _settings(settings: Mapping[str, Any]) -> str:
    rows = "".join(f"<dt>{escape(str(key))}</dt><dd>{escape(str(value))}</dd>" for key, value in settings.items())
    return f"<dl>{rows}</dl>"


def _legend_of_marks() -> str:
    entries = "".join(f"<li>{_badge(mark)}</li>" for mark in SYMBOLS if mark != MISS) + "<li>no mark: a miss</li>"
    return f'<ul class="legend">{entries}</ul>'


def _badge(mark: str) -> str:
    return f'<span class="badge {mark.replace(" ", "-")}">{SYMBOLS[mark]} {escape(mark)}</span>'


def _example(number: int, example: Example) -> str:
    truth = ", ".join(f"{title} ({year})" for title, year in example.ground_truth)
    columns = []
    for name, lines in example.lists.items():
        hits = sum(HIT in line.marks for line in lines)
        items = "".join(
            f'<li class="{line.marks[0].replace(" ", "-")}"><span class="title">{escape(line.text)}</span>'
            + "".join(_badge(mark) for mark in line.marks if mark != MISS)
            + "</li>"
            for line in lines
        )
        empty = "" if lines else "<p>(no lines)</p>"
        found = f"{hits} of {len(example.ground_truth)} found"
        columns.append(f"<section><h4>{escape(name)}: {found}</h4><ol>{items}</ol>{empty}</section>")
    return (
        f"<article><h3>Conversation {number}{escape(': ' + example.label if example.label else '')}</h3>"
        f'<p class="conversation">{escape(example.conversation.strip())}</p>'
        f'<p><strong>Wanted:</strong> {escape(truth)}</p><div class="lists">{"".join(columns)}</div></article>'
    )


# ---- charts

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


def _trailing_mean(points: list[tuple[int, float]], window: int) -> list[tuple[int, float]]:
    values = [value for _, value in points]
    out = []
    for index, (step, _) in enumerate(points):
        recent = values[max(0, index - window + 1) : index + 1]
        out.append((step, sum(recent) / len(recent)))
    return out


def _chart(
    title: str,
    y_label: str,
    series: Mapping[str, Series],
    *,
    ordered: bool = False,
    smooth: bool = False,
    from_zero: bool = False,
) -> str:
    """One figure: an SVG line chart that scales with the page, and its legend and caption in HTML."""
    points_of = {
        name: [(int(step), float(values[step])) for step in sorted(values) if math.isfinite(values[step])]
        for name, values in series.items()
    }
    points_of = {name: points for name, points in points_of.items() if points}
    if not points_of:
        return f"<figure><h3>{escape(title)}</h3><p>Nothing was logged.</p></figure>"
    longest = max(len(points) for points in points_of.values())
    window = max(1, longest // 12) if smooth else 1
    drawn = {name: _trailing_mean(points, window) for name, points in points_of.items()}

    every = [point for points in (*drawn.values(), *(points_of.values() if not smooth else ())) for point in points]
    first, last = min(step for step, _ in every), max(step for step, _ in every)
    low, high = min(value for _, value in every), max(value for _, value in every)
    if from_zero:
        low = min(0.0, low)
    if high - low < 1e-9:
        margin = abs(high) * 0.1 or 0.5
        low, high = (low, high + margin) if from_zero else (low - margin, high + margin)
    y_ticks = _ticks(low, high, 5)
    low, high = y_ticks[0], y_ticks[-1]
    span = max(1, last - first)
    x_ticks = [
        tick for tick in _ticks(first, first + span, 5) if first <= tick <= first + span and float(tick).is_integer()
    ]

    def x(step: float) -> float:
        return _LEFT + (step - first) / span * (_WIDTH - _LEFT - _RIGHT)

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
    for index, (name, points) in enumerate(drawn.items()):
        colour = (_ORDERED if ordered else _CATEGORIES)[index % 6]
        style = f'stroke="{colour}" stroke-dasharray="{_DASHES[index % 6]}"'
        path = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in points)
        svg.append(f'<polyline class="curve" points="{path}" {style}/>')
        if len(points) == 1 or (len(points) <= 25 and not smooth):
            svg += [f'<circle cx="{x(step):.1f}" cy="{y(value):.1f}" r="3" fill="{colour}"/>' for step, value in points]
        start, end = points[0][1], points[-1][1]
        legend.append(
            f'<li><svg viewBox="0 0 30 8" class="key"><line x1="0" x2="30" y1="4" y2="4" class="curve" {style}/></svg>'
            f"{escape(name)} <small>{start:.3f} → {end:.3f}</small></li>"
        )
    svg.append("</svg>")
    caption = f"{y_label} by step"
    if window > 1:
        caption += f", each point the mean of the last {window} steps"
    return (
        f'<figure><h3>{escape(title)}</h3>{"".join(svg)}<ul class="keys">{"".join(legend)}</ul>'
        f"<figcaption>{escape(caption.capitalize())}; the legend gives first and last value.</figcaption></figure>"
    )
