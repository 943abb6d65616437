"""One self-contained HTML file about runs: the result, metrics, curves, lists side by side, settings.

It needs no script, no network and no other file, since its pictures are embedded: it can be mailed, printed, or opened
on a phone. Its template, page.html, escapes whatever a model or a user wrote.
"""

import base64
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from convrec.base.files import write_text
from convrec.report.charts import Chart
from convrec.report.drawing import make_line_key, render_svg
from convrec.report.page import MISS, SYMBOLS, format_cell, format_number

Table = Sequence[Mapping[str, Any]]
NO_EVALUATION: Mapping[str, Any] = {
    "headline": "",
    "tables": {},
    "gains": (),
    "table": (),
    "about_table": (),
    "examples": (),
}


def write_report(path: Path, parts: Mapping[str, Any]) -> Path:
    """Write the page and return its path; the file appears only when complete.

    Args:
        path: the HTML file.
        parts: what the page shows, by name; those with an entry in NO_EVALUATION can be left out.

            title: the heading of the page.
            notes: paragraphs below the title.
            headline: the result in a sentence.
            summary: run -> name -> value; for several runs, what differs comes first.
            settings: like summary, at the end of the page.
            tables: heading -> Grid.
            gains: page.GainTable objects.
            table: a mapping for each model: "model" is its name, every other key a metric with a number, a
                (mean, standard error) or a text. Metrics become the table's rows, in order of first appearance.
            about_table: paragraphs below the table.
            charts: heading -> the charts under it.
            examples: page.Example objects.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {
        "number": format_number,
        "breakable": lambda name: Markup(re.sub(r"([_/])", r"\1<wbr>", str(escape(name)))),
        "metrics_grid": _metrics_grid,
        "differing": _differing,
        "picture": lambda chart: f"data:image/svg+xml;base64,{base64.b64encode(render_svg(chart).encode()).decode()}",
        "keys": _keys,
    }
    marks = {mark: symbol for mark, symbol in SYMBOLS.items() if mark != MISS}
    write_text(path, environment.get_template("page.html").render({**NO_EVALUATION, **parts}, marks=marks))
    return path


# ---- data of the template


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, its standard error ("" for none), and whether it is marked as the best."""

    text: str
    error: str = ""
    is_best: bool = False


@dataclass(frozen=True)
class Grid:
    """A table: the names of its columns, and for each row a name and its cells."""

    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]


def _metrics_grid(table: Table) -> Grid:
    """Make a row for each metric; the best model by each Recall and NDCG is marked."""
    rows = []
    for metric in dict.fromkeys(key for row in table for key in row if key != "model"):
        values = [row.get(metric) for row in table]
        means = [value[0] if isinstance(value, tuple) else value for value in values]
        known = [mean for mean in means if isinstance(mean, int | float) and math.isfinite(mean)]
        higher_is_better = metric.lower().startswith(("recall", "ndcg"))
        best = max(known) if higher_is_better and len(known) > 1 else None
        cells = [
            Cell(*format_cell(value), is_best=best is not None and mean == best)
            for value, mean in zip(values, means, strict=True)
        ]
        rows.append((metric, cells))
    return Grid([str(row["model"]) for row in table], rows)


def _differing(facts: Mapping[str, Mapping[str, Any]]) -> tuple[Grid | None, dict[str, str]]:
    """Split facts into what differs between the runs, as a grid, and what they share, as name -> value."""
    values = {
        key: [str(settings.get(key, "–")) for settings in facts.values()]
        for key in dict.fromkeys(key for settings in facts.values() for key in settings)
    }
    shared = {key: row[0] for key, row in values.items() if len(set(row)) == 1}
    rows = [(key, [Cell(value) for value in row]) for key, row in values.items() if key not in shared]
    return Grid(list(facts), rows) if rows else None, shared


def _keys(chart: Chart) -> list[tuple[dict[str, str], str, float, float]]:
    """Return (what the line looks like, name, first value, last value) of each line with points."""
    return [
        (make_line_key(index, chart.ordered), name, line[min(line)], line[max(line)])
        for index, (name, line) in enumerate(chart.lines.items())
        if line
    ]
