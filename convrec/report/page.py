"""One self-contained HTML file about runs: metrics table, curves as inline SVG, lists side by side, settings.

No script, no network, no image file: it can be mailed, printed, or opened on a phone. Whatever a model or a user wrote
is escaped.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from convrec.lists import ranks
from convrec.lists.matching import Matcher
from convrec.report.charts import Chart, draw

HIT, MISS, REPEATED, SEEN, OUT_OF_CATALOG, NOT_AN_ITEM = "hit", "miss", "repeated", "seen", "not in catalog", "no item"
SYMBOLS = {HIT: "✓", MISS: "", REPEATED: "↻", SEEN: "◉", OUT_OF_CATALOG: "∅", NOT_AN_ITEM: "?"}
MANY = 5  # models or runs that fit beside each other


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
    text: str,
    matcher: Matcher,
    ground_truth: Sequence[tuple[str, Any]],
    seen: Sequence[str],
    num_items: int = 20,
    delimiter: str = ranks.DEFAULT_DELIMITER,
) -> list[ListLine]:
    """The first `num_items` lines of a response, each with what became of it."""
    lines = ranks.split_lines(text, delimiter)[:num_items]
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


def text_table(table: Sequence[Mapping[str, Any]], line_a_model: bool = False) -> str:
    """The report's table for a terminal: a line for each metric, a column for each model; or the other way round."""
    metrics = list(dict.fromkeys(key for row in table for key in row if key != "model"))
    lines = [["", *(str(row["model"]) for row in table)]]
    for metric in metrics:
        lines.append([metric, *(_text_cell(row.get(metric)) for row in table)])
    if line_a_model:
        lines = [list(column) for column in zip(*lines, strict=True)]
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
    settings: Mapping[str, Mapping[str, Any]],
    table: Sequence[Mapping[str, Any]],
    charts: Sequence[Chart],
    examples: Sequence[Example],
    notes: Sequence[str] = (),
    table_title: str = "Test split",
) -> Path:
    """Write the report, whole or not at all, and return its path.

    settings: run -> setting -> value; of several runs, what differs comes first. table: a mapping for each model:
    "model" (its name) and metric -> number, (mean, standard error) or text; metrics become the table's rows, in order
    of first appearance.
    """
    parts = [
        f"<h1>{escape(title)}</h1>",
        *(f"<p>{escape(note)}</p>" for note in notes),
        *([f"<h2>{escape(table_title)}</h2>", _table(table)] if table else []),
        "<h2>Training</h2>",
        '<div class="charts">',
        *map(draw, charts),
        "</div>",
    ]
    if examples:
        parts += ["<h2>Lists side by side</h2>", _legend_of_marks()]
        parts += [_example(number, example) for number, example in enumerate(examples, start=1)]
    parts += ["<h2>Settings</h2>", _settings(settings)]
    body = "\n".join(parts)
    css = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{css}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )
    out = Path(out_html)
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(out.name + ".partial")
    partial.write_text(page, encoding="utf-8")
    partial.replace(out)
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
    rows = []
    for metric in dict.fromkeys(key for row in table for key in row if key != "model"):
        values = [row.get(metric) for row in table]
        means = [_mean_of(value) for value in values]
        known = [mean for mean in means if mean is not None]
        higher_is_better = metric.lower().startswith(("recall", "ndcg"))
        best = max(known) if higher_is_better and len(known) > 1 else None
        cells = [_cell(value, best is not None and mean == best) for value, mean in zip(values, means, strict=True)]
        rows.append((metric, cells))
    caption = "Mean ± standard error (bootstrap over conversations); bold is the best of a metric."
    return _grid([str(row["model"]) for row in table], rows) + f'<p class="caption">{caption}</p>'


def _settings(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """What differs between the runs as a table, what they share as a list."""
    values = {
        key: [str(some.get(key, "–")) for some in settings.values()]
        for key in dict.fromkeys(key for some in settings.values() for key in some)
    }
    shared = {key: row[0] for key, row in values.items() if len(set(row)) == 1}
    rows = [
        (str(key), [f"<td>{escape(value)}</td>" for value in row]) for key, row in values.items() if key not in shared
    ]
    parts = [_grid(list(settings), rows, "settings")] if rows else []
    if len(settings) > 1 and shared:
        parts.append("<h3>The same in all runs</h3>")
    items = "".join(f"<dt>{escape(str(key))}</dt><dd>{escape(value)}</dd>" for key, value in shared.items())
    return "\n".join([*parts, f"<dl>{items}</dl>" if items else ""])


def _grid(columns: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], kind: str = "metrics") -> str:
    """A table of cells; many columns become its rows, because paper and telephones are narrow."""
    if len(columns) > MANY:
        names = [name for name, _ in rows]
        rows = list(zip(columns, zip(*(cells for _, cells in rows), strict=True), strict=True))
        columns, kind = names, f"{kind} wide"
    head = "".join(f'<th scope="col">{_name(name)}</th>' for name in columns)
    body = "".join(f'<tr><th scope="row">{_name(name)}</th>{"".join(cells)}</tr>' for name, cells in rows)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _name(name: str) -> str:
    """A run's name may be broken after its underscores."""
    return escape(name).replace("_", "_<wbr>")


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
