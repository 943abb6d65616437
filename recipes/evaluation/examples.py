"""Example conversations for a report: best and worst of one evaluation, or largest gains and losses between two."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from convrec.base.errors import UserError
from convrec.data.schema import RL_SCHEMA, TRUTH, conversation_text, get_truth
from convrec.lists.settings import ListSettings, make_matcher
from convrec.report.page import Example, mark_list
from convrec.titles.catalog import load_catalog
from convrec.titles.matching import Matcher
from recipes.evaluation.scoring import load_metrics, load_rows

Row = dict[str, Any]
Rows = Mapping[str, Row]  # sample_id -> row


@dataclass(frozen=True)
class _ScoredLists:
    """An evaluation: the settings in its metrics.json, and its rows."""

    settings: Mapping[str, Any]
    rows: Rows


def choose_examples(
    evaluations: Mapping[str, str | Path], references: Mapping[str, str], count: int = 3
) -> list[Example]:
    """Choose conversations to show with the lists of each evaluation.

    Without references: by NDCG at its largest k, from best to worst in even steps. With them: by the gain of the last
    model over its reference, from the largest gain to the largest loss, so that losses are shown too; then the best
    and the worst of that model, unless they are already among them.

    Args:
        evaluations: name -> OUT folder of `convrec evaluate`, all of one split.
        references: from `choose_references`; {} for one evaluation.
        count: number of conversations; with references, up to two more.

    Raises:
        UserError: An evaluation or its rows are gone, or the split has changed.
    """
    scored = {
        name: _ScoredLists(load_metrics(Path(folder))["settings"], load_rows(Path(folder)))
        for name, folder in evaluations.items()
    }
    last = list(scored.values())[-1]
    split = _read_split(last)
    matcher = make_matcher(load_catalog(last.settings["catalog"]), ListSettings.of(last.settings))
    labels = _label_samples(scored, references, split, count)
    return [_make_example(split[sample], label, scored, matcher) for sample, label in labels.items()]


def _read_split(evaluation: _ScoredLists) -> Rows:
    """Read the rows that were evaluated. Raises UserError if they are gone or have changed."""
    data = Path(evaluation.settings["data"])
    if not data.exists():
        raise UserError(
            "evaluation.missing-data",
            f"{data}: gone since the evaluation, or a path relative to another folder. Evaluate again.",
        )
    split = {row["sample_id"]: row for row in pq.read_table(data, columns=RL_SCHEMA.names).to_pylist()}
    for sample in evaluation.rows:
        if sample not in split:
            raise UserError(
                "evaluation.changed-data", f"{data}: has changed since the evaluation: no row {sample}. Evaluate again."
            )
    return split


def _label_samples(
    scored: Mapping[str, _ScoredLists], references: Mapping[str, str], split: Rows, count: int
) -> dict[str, str]:
    """Choose sample ids in display order, each with the reason why it is an example."""
    name = [*(references or scored)][-1]
    model = scored[name]
    metric = f"ndcg@{max(model.settings['ks'])}"
    title = metric.replace("ndcg", "NDCG")
    everywhere = [
        sample
        for sample in model.rows
        if split[sample][TRUTH] and all(sample in evaluation.rows for evaluation in scored.values())
    ]
    values = {sample: model.rows[sample][metric] for sample in everywhere}
    if not references:
        return _choose(values, split, count, ("the best", "the worst"), f"{title} {{:.2f}}")
    before = {sample: scored[references[name]].rows[sample][metric] for sample in everywhere}
    gains = {sample: value - before[sample] for sample, value in values.items() if max(value, before[sample]) > 0}
    pair = f"of {name} over {references[name]}"
    labels = _choose(
        gains, split, count, (f"the largest gain {pair}", f"the largest loss {pair}"), f"{title} {{:+.2f}}"
    )
    ends = (f"the best of {name}", f"the worst of {name}")
    for sample, label in _choose(values, split, 2, ends, f"{title} {{:.2f}}").items():
        labels[sample] = f"{labels[sample]}; {label}" if sample in labels else label
    return labels


def _make_example(row: Row, label: str, scored: Mapping[str, _ScoredLists], matcher: Matcher) -> Example:
    """Combine a conversation with each evaluation's list; questions and answers are those of the last evaluation."""
    sample = row["sample_id"]
    truth = get_truth(row)
    lists = {}
    for name, evaluation in scored.items():
        own = ListSettings.of(evaluation.settings)
        text = evaluation.rows[sample]["text"]
        lists[name] = mark_list(text, matcher, truth, row["seen_titles"] or [], own.num_items, own.delimiter)
    last = list(scored.values())[-1]
    dialogue = last.rows[sample].get("dialogue") or ""
    return Example(conversation_text(row) + dialogue, truth, lists, label)


def _choose(
    values: Mapping[str, float], split: Rows, count: int, ends: tuple[str, str], value_text: str
) -> dict[str, str]:
    """Choose `count` samples from the highest value to the lowest in even steps, each with its label."""
    # At equal value, rows with more relevant items come later, so that the worst one misses five and not one.
    ordered = sorted(values, key=lambda sample: (-values[sample], len(split[sample][TRUTH]), sample))
    steps = [round(step * (len(ordered) - 1) / max(1, count - 1)) for step in range(count)] if ordered else []
    names = {0: ends[0], len(ordered) - 1: ends[1]}
    return {
        (sample := ordered[index]): f"{names.get(index, 'in between')} ({value_text.format(values[sample])})"
        for index in dict.fromkeys(steps)
    }
