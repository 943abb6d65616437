"""What a page and a terminal show of evaluations: tables of metrics, and lists whose lines are marked as hit or not."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convrec.lists import ranks
from convrec.lists.settings import ListSettings
from convrec.titles.matching import Matcher

HIT = "hit"
MISS = "miss"
REPEATED = "repeated"
SEEN = "seen"
OUT_OF_CATALOG = "not in catalog"
NOT_AN_ITEM = "no item"
SYMBOLS = {HIT: "✓", MISS: "", REPEATED: "↻", SEEN: "◉", OUT_OF_CATALOG: "∅", NOT_AN_ITEM: "?"}
COUNTS = {  # a key in the summary of recipes.evaluate -> a row of the table
    "catalog_hit_ratio": "in catalog",
    "distinct_items": "distinct items",
    "list_length_errors": "wrong list length",
    "repeats_per_list": "repeats in a list",
}
BEYOND_ACCURACY = {  # a key in the summary of results -> a table's row; docs/how-to/beyond-accuracy.md defines them
    "coverage": "catalog coverage",
    "gini": "Gini",
    "popularity_lift": "popularity lift",
    "novelty": "novelty (bits)",
    "cold_share": "cold items",
    "diversity": "diversity in a list",
    "calibration": "calibration (KL)",
    "questions": "questions",
    "useful": "useful questions",
    "malformed": "malformed turns",
    **{f"success_by_{turn}": f"success by turn {turn}" for turn in (1, 2, 3)},
    **{f"ndcg_after_{count}": f"NDCG after {count} questions" for count in (0, 1, 2)},
}


@dataclass(frozen=True)
class ListLine:
    """A line of a list with its marks: keys of SYMBOLS, at least one."""

    text: str
    marks: tuple[str, ...]


@dataclass(frozen=True)
class Example:
    """A conversation with the lists of several models.

    Attributes:
        conversation: its text.
        ground_truth: (title, year) of each relevant item.
        lists: "before" and "after", or the names of models -> list.
        label: why this conversation is shown.
    """

    conversation: str
    ground_truth: Sequence[tuple[str, Any]]
    lists: Mapping[str, Sequence[ListLine]]
    label: str = ""

    def hits(self, name: str) -> int:
        """Return the number of hits in the list `name`."""
        return sum(HIT in line.marks for line in self.lists[name])


@dataclass(frozen=True)
class GainTable:
    """The gains of a model over its reference.

    Attributes:
        title: the names of both, as in `Rank-GRPO minus SFT`.
        gains: metric -> "mean" of the differences per row, "se" its standard error, and "p", the two-sided p-value of
            a mean of 0.
        caption: the sentence below the table.
    """

    title: str
    gains: Mapping[str, Mapping[str, float]]
    caption: str = ""


def mark_list(
    text: str,
    matcher: Matcher,
    ground_truth: Sequence[tuple[str, Any]],
    seen: Sequence[str],
    num_items: int = ListSettings.num_items,
    delimiter: str = ListSettings.delimiter,
) -> list[ListLine]:
    """Mark what the lines of a response are.

    Args:
        text: the response.
        matcher: matches titles with the catalog.
        ground_truth: (title, year) pairs.
        seen: titles that the conversation names.
        num_items: the most lines to return.
        delimiter: the character that ends a line.

    Returns:
        The first lines, in order of rank, each with its marks.
    """
    lines = ranks.split_lines(text, delimiter)[:num_items]
    items = [matcher.read_line(line) for line in lines]
    match = matcher.match(items, list(ground_truth), list(seen))
    marks_of: dict[str, Sequence[Any]] = {
        HIT: match.relevance,
        REPEATED: match.duplicate,
        SEEN: match.seen,
        OUT_OF_CATALOG: [not known for known in match.in_catalog],
    }
    marked = []
    for rank, (line, item) in enumerate(zip(lines, items, strict=True)):
        marks = tuple(mark for mark, is_marked in marks_of.items() if is_marked[rank])
        marked.append(ListLine(line, (NOT_AN_ITEM,) if item is None else marks or (MISS,)))
    return marked


def make_table_row(model: str, summary: Mapping[str, Any], ks: Sequence[int]) -> dict[str, Any]:
    """Make a model's column of the table.

    Args:
        model: its name.
        summary: from convrec.lists.metrics.summarise, with `repeats_per_list`.
        ks: the cutoffs of the metrics to show, which the summary must have.
    """
    row: dict[str, Any] = {"model": model}
    for metric, name in (("recall", "Recall"), ("ndcg", "NDCG")):
        for k in ks:
            value = summary[f"{metric}@{k}"]
            row[f"{name}@{k}"] = (value["mean"], value["se"])
    counts = {name: summary[key] for key, name in COUNTS.items()}
    return row | counts | {COUNTS["list_length_errors"]: f"{summary['list_length_errors']} of {summary['n']}"}


def make_beyond_accuracy_row(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Select the measures beyond accuracy in `figures`, under the names that tables give them."""
    measured = {name: figures[key] for key, name in BEYOND_ACCURACY.items() if key in figures}
    return {name: (value["mean"], value["se"]) for name, value in measured.items()}


def explain_missing_measures(figures: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each kind of measures beyond accuracy that is missing, unless all of them are."""
    if "coverage" not in figures:
        return []
    reasons = {
        "novelty": "No popularity lift, novelty or cold items: no --train, and the catalog has no column mentions.",
        "diversity": "No diversity or calibration: the catalog has no column genres.",
    }
    return [reason for name, reason in reasons.items() if name not in figures]


def format_table(table: Sequence[Mapping[str, Any]], line_a_model: bool = False) -> str:
    """Format the report's table for a terminal: a line per metric and a column per model.

    Args:
        table: as in write_report.
        line_a_model: a line per model and a column per metric instead.
    """
    metrics = list(dict.fromkeys(key for row in table for key in row if key != "model"))
    lines = [["", *(str(row["model"]) for row in table)]]
    for metric in metrics:
        lines.append([metric, *(" ±".join(filter(None, format_cell(row.get(metric)))) for row in table)])
    if line_a_model:
        lines = [list(column) for column in zip(*lines, strict=True)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    text_lines = []
    for line in lines:
        numbers = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        text_lines.append("  ".join([line[0].ljust(widths[0]), *numbers]).rstrip())
    return "\n".join(text_lines)


def format_cell(value: Any) -> tuple[str, str]:
    """Format a value of a table.

    Args:
        value: a number, (mean, standard error), a text, or None for unknown.

    Returns:
        The text, and the standard error; "" where there is none.
    """
    if isinstance(value, tuple):
        return format_number(value[0]), format_number(value[1])
    return "–" if value is None else format_number(value), ""


def format_number(value: Any) -> str:
    """Format a number with four decimals, one from 10 on and none from 1000 on; a dash for one that is not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if not math.isfinite(value):
        return "–"
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.1f}"


def format_gain(gain: Mapping[str, Any]) -> str:
    """Format a gain, as in `+0.0275 ±0.0069`; a dash when no row has it."""
    return f"{gain['mean']:+.4f} ±{format_number(gain['se'])}" if math.isfinite(gain["mean"]) else "–"
