"""One self-contained HTML file about runs: the result, metrics, curves as inline SVG, lists side by side, settings.

No script, no network, no image file: it can be mailed, printed, or opened on a phone. page.html is its template, which
escapes whatever a model or a user wrote.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from convrec.files import write_text
from convrec.report.charts import Chart, GainChart
from convrec.report.drawing import COLOURS, chart_svg, gains_svg, line_key
from convrec.report.page import MISS, SYMBOLS, Example, number_text

MANY = 5  # models or runs that fit beside each other


def write_report(
    out_html: str | Path,
    *,
    title: str,
    summary: Mapping[str, Mapping[str, Any]],
    settings: Mapping[str, Mapping[str, Any]],
    table: Sequence[Mapping[str, Any]],
    charts: Mapping[str, Sequence[Chart]],
    examples: Sequence[Example],
    headline: str = "",
    gains: Sequence[GainChart] = (),
    notes: Sequence[str] = (),
    about_table: Sequence[str] = (),
    about_lists: str = "",
    slices: Mapping[str, Sequence[Mapping[str, Any]]] = MappingProxyType({}),
) -> Path:
    """Write the report, whole or not at all, and return its path.

    summary, settings: run -> name -> value; of several runs, what differs comes first. headline: the result in a
    sentence. table: a mapping for each model: "model" (its name) and metric -> number, (mean, standard error) or text;
    metrics become the table's rows, in order of first appearance. slices: an evaluation's name -> a table of parts of
    the split, of the same form. charts: heading -> what is drawn under it.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"number": number_text, "breakable": _breakable}
    page = environment.get_template("page.html").render(
        title=title,
        colours=COLOURS,
        headline=headline,
        notes=notes,
        summary=_differing(summary),
        gains=[(chart, gains_svg(chart, f"gain-{number}-")) for number, chart in enumerate(gains)],
        about_table=about_table,
        table=_metrics_grid(table) if table else None,
        charts={
            heading: [_figure(chart, f"chart-{place}-{number}-") for number, chart in enumerate(some)]
            for place, (heading, some) in enumerate(charts.items())
        },
        marks={mark: symbol for mark, symbol in SYMBOLS.items() if mark != MISS},
        about_lists=about_lists,
        slices={name: _metrics_grid(parts, marks_best=False) for name, parts in slices.items() if parts},
        examples=examples,
        settings=_differing(settings),
    )
    out = Path(out_html)
    write_text(out, page)
    return out


# ---- what the template shows


@dataclass(frozen=True)
class Cell:
    text: str
    error: str = ""
    is_best: bool = False


@dataclass(frozen=True)
class Grid:
    """A table of cells under column names, each row with its name. is_wide: it was turned for its many columns."""

    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    is_wide: bool = False


def _grid(columns: Sequence[str], rows: Sequence[tuple[str, Sequence[Cell]]]) -> Grid:
    """Many columns become rows, because paper and telephones are narrow."""
    if len(columns) <= MANY:
        return Grid(columns, rows)
    turned = zip(columns, zip(*(cells for _, cells in rows), strict=True), strict=True)
    return Grid([name for name, _ in rows], list(turned), is_wide=True)


def _metrics_grid(table: Sequence[Mapping[str, Any]], marks_best: bool = True) -> Grid:
    """A row for each metric; the best model of Recall and of NDCG is marked."""
    rows = []
    for metric in dict.fromkeys(key for row in table for key in row if key != "model"):
        values = [row.get(metric) for row in table]
        means = [_mean_of(value) for value in values]
        known = [mean for mean in means if mean is not None]
        higher_is_better = marks_best and metric.lower().startswith(("recall", "ndcg"))
        best = max(known) if higher_is_better and len(known) > 1 else None
        cells = [_cell(value, best is not None and mean == best) for value, mean in zip(values, means, strict=True)]
        rows.append((metric, cells))
    return _grid([str(row["model"]) for row in table], rows)


def _cell(value: Any, is_best: bool) -> Cell:
    if isinstance(value, tuple | list):
        return Cell(number_text(value[0]), number_text(value[1]), is_best)
    return Cell("–" if value is None else number_text(value), "", is_best)


def _mean_of(value: Any) -> float | None:
    mean = value[0] if isinstance(value, tuple | list) else value
    return float(mean) if isinstance(mean, int | float) and not isinstance(mean, bool) and math.isfinite(mean) else None


def _differing(facts: Mapping[str, Mapping[str, Any]]) -> tuple[Grid | None, dict[str, str]]:
    """What differs between the runs as a grid, what they share as name -> value."""
    values = {
        key: [str(settings.get(key, "–")) for settings in facts.values()]
        for key in dict.fromkeys(key for settings in facts.values() for key in settings)
    }
    shared = {key: row[0] for key, row in values.items() if len(set(row)) == 1}
    rows = [(key, [Cell(value) for value in row]) for key, row in values.items() if key not in shared]
    return _grid(list(facts), rows) if rows else None, shared


def _figure(chart: Chart, prefix: str) -> dict[str, Any]:
    """title, svg, caption and keys: (how the line looks, name, first value, last value) of each line with points."""
    keys = [
        (line_key(index, chart.ordered), name, line[min(line)], line[max(line)])
        for index, (name, line) in enumerate(chart.lines.items())
        if line
    ]
    return {"title": chart.title, "svg": chart_svg(chart, prefix), "keys": keys, "caption": chart.caption}


def _breakable(name: str) -> Markup:
    """A name that may be broken after its underscores and slashes."""
    return Markup(re.sub(r"([_/])", r"\1<wbr>", str(escape(name))))
