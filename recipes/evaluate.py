"""Compute a model's metrics on a split: one greedy list from vLLM per distinct prompt, one score per row.

Models, options and files: docs/how-to/evaluate.md. With `--sweep`, MODEL is a run folder, and all its checkpoints are
evaluated (recipes.evaluation.sweep). With `--judge`, MODEL is a judge (recipes.judge.evaluation).
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from convrec.base.errors import UserError
from convrec.base.options import command
from convrec.report.page import (
    explain_missing_measures,
    format_gain,
    format_number,
    format_table,
    make_beyond_accuracy_row,
    make_table_row,
)
from recipes.evaluation.baselines import API, RETRIEVAL
from recipes.evaluation.checks import refuse_to_replace
from recipes.evaluation.constrained import VIOLATIONS
from recipes.evaluation.options import EvaluateOptions, is_for_judges
from recipes.evaluation.scoring import FUSED, OF_MODEL
from recipes.evaluation.single import evaluate
from recipes.evaluation.slices import SLICES, make_slices_table
from recipes.evaluation.sweep import sweep_run


def format_metrics(metrics: Mapping[str, Any], slices: Sequence[str] = ()) -> str:
    """Format an evaluation for the terminal.

    Args:
        metrics: content of metrics.json.
        slices: names of the slices to show.
    """
    ks = metrics["settings"]["ks"]
    lines: list[str] = []
    for protocol, results in metrics["results"].items():
        lines += _format_protocol(metrics, protocol, results)
    if fusion := metrics["settings"].get("fusion"):
        lines.append(f"fused: weight {fusion['weight']:g} for the model, constant {fusion['constant']:g}")
    if constrained := metrics.get("constrained"):
        counts = ", ".join(f"{constrained[name]} {name.replace('_', ' ')}" for name in VIOLATIONS)
        lines.append(f"{constrained['lists']} constrained lists of {constrained['lines']} lines: {counts}")
        pair = constrained["paired"]
        lines += _format_gains(f"constrained minus free lists, {pair['n']} rows paired:", pair, ks)
    if pair := metrics.get("paired"):
        lines += _format_gains(f"the model minus {pair['against']}, {pair['n']} rows paired:", pair, ks)
    pairs = {f"the model minus {name}": pair for name, pair in metrics.get("minus", {}).items()}
    if fused := metrics.get(FUSED):
        pairs[f"{FUSED} minus {RETRIEVAL}"] = fused["paired"]
    metric = f"ndcg@{max(ks)}"
    for title, pair in pairs.items():
        lines.append(f"{title}, {metric}: {format_gain(pair[metric])}  p {format_number(pair[metric]['p'])}")
    lines += _format_slices(metrics, slices)
    if metrics["settings"]["model"] is not None:
        lines.append(_format_generation(metrics["generation"]))
    return "\n".join(lines).rstrip()


def _format_protocol(metrics: Mapping[str, Any], protocol: str, results: Mapping[str, Any]) -> list[str]:
    """Format the results of a protocol: a heading, and the tables of accuracy and of other measures."""
    settings = metrics["settings"]
    counts = next(iter(results.values()))
    damaged = metrics["damaged"]["data"]
    heading = (
        f"{settings['data']}: {counts['n']} rows, {counts['num_contexts']} conversations, protocol {protocol}, "
        f"matching {settings['matching_of'][protocol]}"
    )
    if counts["without_ground_truth"]:
        heading += f"; {counts['without_ground_truth']} rows without ground truth left out"
    if damaged:
        heading += f"; {damaged} damaged rows left out"
    order = sorted(results, key=lambda name: (name in OF_MODEL, name == "constrained"))
    lines = [heading, format_table([make_table_row(name, results[name], settings["ks"]) for name in order]), ""]
    beyond = [{"model": name, **make_beyond_accuracy_row(results[name])} for name in order]
    if len(beyond[0]) > 1:
        lines += [format_table(beyond), *explain_missing_measures(results[order[0]]), ""]
    return lines


def _format_slices(metrics: Mapping[str, Any], slices: Sequence[str]) -> list[str]:
    """Format the table of these slices, and of the number of questions if a model asked any."""
    names = [*slices, *({"questions"} & metrics["slices"].keys())]
    table = make_slices_table({name: metrics["slices"][name] for name in names})
    if not table:
        return []
    *_, results = metrics["results"].values()
    model = "model" if metrics["settings"]["model"] else next(iter(results))
    return [f"parts of the split, {model}:", format_table(table, line_a_model=True), ""]


def _format_generation(generation: Mapping[str, Any]) -> str:
    return (
        f"{generation['generated']} of {generation['prompts']} prompts generated in {generation['seconds']:.0f} s, "
        f"the rest reused; {generation['truncated_prompts']} prompts shortened, "
        f"{generation['unfinished_responses']} responses cut off"
    )


def _format_gains(title: str, pair: Mapping[str, Any], ks: Sequence[int]) -> list[str]:
    lines = [title]
    for name in (f"{metric}@{k}" for metric in ("recall", "ndcg") for k in ks):
        lines.append(f"  {name:<10} {format_gain(pair[name])}  p {format_number(pair[name]['p'])}")
    for name, (mean, error) in make_beyond_accuracy_row(pair).items():
        lines.append(f"  {name:<19} {format_gain({'mean': mean, 'se': error})}")
    return [*lines, ""]


@command(EvaluateOptions)
def evaluate_lists(options: EvaluateOptions) -> int:
    """Evaluate a model, all checkpoints of a run, or baselines only; return the exit status."""
    _check_options(options)
    if options.sweep:
        sweep = replace(options, out=options.out or _get_sweep_folder(options))
        print(sweep_run(sweep, options.start))
    else:
        _evaluate_model(options)
    if options.baselines and not options.train:
        print(f"no --train, so not evaluated: {' and '.join(options.baselines)}", file=sys.stderr)
    return 0


def _check_options(options: EvaluateOptions) -> None:
    is_api = (options.model or "").startswith(API)
    if options.sampling and not is_api and options.user != "llm":
        raise UserError(
            "evaluation.sampling-without-api",
            "--sampling: applies to models behind an API only. Name --model api:NAME, or --user llm.",
        )
    if options.sweep and not options.model:
        raise UserError("evaluation.sweep-without-run", "--sweep: no run folder. Name it with --model.")
    if not options.out and not options.sweep:
        raise UserError("evaluation.missing-out", "--out: missing; only --sweep has a default. Name a folder.")


def _get_sweep_folder(options: EvaluateOptions) -> str:
    """Return the default folder of a sweep: in the run's folder, with the name of the data."""
    return str(Path(options.model or "").expanduser() / "evaluation" / Path(options.data).stem)


def _evaluate_model(options: EvaluateOptions) -> None:
    out = Path(options.out or "")
    if not options.overwrite:
        refuse_to_replace(out, options.model, options.data)
    metrics = evaluate(options)
    for warning in metrics["warnings"]:
        tqdm.write(f"warning: {warning}", file=sys.stderr)
    slices = SLICES if options.slices == [] else options.slices or ()  # the option without a value: all
    print(format_metrics(metrics, slices))
    print(f"written to {options.out}")


def main(arguments: Sequence[str]) -> int:
    """Evaluate lists or a judge; return the exit status."""
    if is_for_judges(arguments):
        from recipes.judge.evaluation import main as evaluate_a_judge

        return evaluate_a_judge(arguments)
    return evaluate_lists(arguments)
