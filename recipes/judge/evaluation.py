"""Evaluate a judge on labelled rows: greedy verdicts from vLLM or an API, pairwise ones in both orders.

Models, options and files: docs/how-to/judges.md.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from convrec.base.errors import UserError
from convrec.base.files import file_hash, write_json, write_table
from convrec.base.options import command
from convrec.checkpoints import hub
from convrec.checkpoints.models import resolve_model
from convrec.data.chat import Message, fits, render_prompt
from convrec.data.tokenizer import load_tokenizer
from convrec.inference.answers import Answer, GenerationRequest
from convrec.inference.engines.placement import Placement
from convrec.inference.prompts import prompt_id
from convrec.judges.criteria import FILE, Scores, read_criteria
from convrec.judges.metrics import (
    compute_comparison_metrics,
    compute_score_metrics,
    summarise_pairwise,
    summarise_pointwise,
)
from convrec.judges.prompt import TEMPLATE_SETTINGS, format_query
from convrec.judges.schema import build_prompt, get_label, get_score_range, read_judge_table
from convrec.judges.verdict import TIE, opens_thinking, parse_comparison_verdict, parse_score_verdict, strip_thinking
from convrec.lists.metrics import paired
from convrec.report.page import format_gain, format_number
from recipes.evaluation.baselines import API, generate_answers
from recipes.evaluation.checks import refuse_to_replace
from recipes.evaluation.scoring import load_metrics, load_rows
from recipes.options.judge import JudgeEvaluationOptions

Rows = list[tuple[int, dict[str, Any]]]  # (row number in the data, row)
COMPARED = {
    "pairwise": ("accuracy", "accuracy_swapped", "right_both_ways", "agreement"),
    "pointwise": ("exact_match", "reward"),
}


def make_rows(fitting_rows: Rows, mode: str, texts: Mapping[bool, Sequence[str]]) -> list[dict[str, Any]]:
    """Make the rows of rows.parquet.

    Args:
        fitting_rows: the rows whose prompts fit, with their numbers.
        mode: "pairwise" or "pointwise".
        texts: whether A and B were swapped -> the judge's answers, one per row.

    Returns:
        One record per row; a verdict is None if the answer has none.
    """
    table: list[dict[str, Any]] = []
    for index, (number, row) in enumerate(fitting_rows):
        record = {
            "row": number,
            "query": format_query(row["input"]),
            "source": row["source"] or "",
            "label": get_label(row, mode),
        }
        for is_swapped, texts_of_order in texts.items():
            text = texts_of_order[index]
            end = "_swapped" if is_swapped else ""
            verdict = (
                parse_score_verdict(text, get_score_range(row))
                if mode == "pointwise"
                else parse_comparison_verdict(text)
            )
            record |= {f"text{end}": text, f"verdict{end}": verdict}
        table.append(record)
    return table


def read_earlier_verdicts(folder: Path, mode: str, contents: Mapping[str, str]) -> dict[int, dict[str, Any]]:
    """Read an earlier evaluation's rows by row number.

    Args:
        folder: --out of the earlier evaluation.
        mode: of the judge.
        contents: `sha256` of the data.

    Raises:
        UserError: The folder has no evaluation with this mode and this data.
    """
    settings = load_metrics(folder, "--against ")["settings"]
    if settings.get("judge") != mode:
        raise UserError(
            "judge.other-mode", f"--against {folder}: does not evaluate a {mode} judge. Evaluate both in the same mode."
        )
    if settings["sha256"] != contents:
        raise UserError(
            "judge.other-data",
            f"--against {folder}: its data had other contents ({settings['data']}). Evaluate both on the same data.",
        )
    return load_rows(folder, "--against ", key="row")


def compare(
    other: Mapping[int, dict[str, Any]], table: Sequence[dict[str, Any]], mode: str, scores: Scores, seed: int
) -> dict[str, Any]:
    """Subtract an earlier evaluation on common rows without ties.

    Args:
        other: the earlier evaluation's rows, by number (`read_earlier_verdicts`).
        table: the rows of this one (`make_rows`).
        mode: "pairwise" or "pointwise".
        scores: the lowest and the highest score of a pointwise judge.
        seed: of the test.

    Returns:
        Metric -> {"mean", "se", "p"} of this evaluation minus the other one, and "n", the number of rows.

    Raises:
        UserError: no row is common.
    """
    both = [
        (row, other[row["row"]])
        for row in table
        if other.get(row["row"], {}).get("query") == row["query"] and row["label"] != TIE
    ]
    if not both:
        raise UserError(
            "judge.no-common-rows",
            "--against: that evaluation shares no row with this data. Compare evaluations of the same data.",
        )
    queries = [row["query"] for row, _ in both]
    new = [_compute_row_metrics(row, mode, scores) for row, _ in both]
    old = [_compute_row_metrics(row, mode, scores) for _, row in both]
    return {"n": len(both)} | paired(old, new, COMPARED[mode], queries, seed)


def _compute_row_metrics(row: dict[str, Any], mode: str, scores: Scores) -> dict[str, Any]:
    return compute_comparison_metrics(row) if mode == "pairwise" else compute_score_metrics(row, scores)


def evaluate_judge(options: JudgeEvaluationOptions) -> dict[str, Any]:
    """Evaluate a judge and write OUT's three files.

    Rows whose prompt has more than max_prompt_length tokens are left out and counted.

    Returns:
        The content of metrics.json: {"settings", "results": the summary of convrec.judges.metrics, "generation",
        "paired": this minus `against`, "warnings"}.

    Raises:
        UserError: An option, a file or the model cannot be used; before vLLM starts.
    """
    mode = options.mode
    out = Path(options.out)
    is_api = options.model.startswith(API)
    model_path = options.model if is_api else _resolve_judge(options.model)
    if options.sampling and not is_api:
        raise UserError(
            "judge.sampling-without-api", "--sampling: applies to models behind an API only. Name --model api:NAME."
        )
    rows: Rows = list(enumerate(read_judge_table(options.data, mode, ties=True)))[: options.limit]
    scores = get_score_range(rows[0][1])
    contents = {"data": file_hash(options.data)}
    other = read_earlier_verdicts(Path(options.against), mode, contents) if options.against else None
    warnings = _check_criteria(Path(model_path), rows[0][1], mode)
    fitting_rows, in_thinking = (rows, False) if is_api else _select_fitting_rows(model_path, rows, options)
    if not fitting_rows:
        raise UserError(
            "judge.no-fitting-prompt",
            f"{options.data}: no prompt fits --max-prompt-length {options.max_prompt_length} and the model's context "
            f"with --max-response-length {options.max_response_length}. Change one of them.",
        )

    prompts, ids = _make_prompts(fitting_rows, mode)
    settings = _choose_sampling(options)
    request = GenerationRequest(model_path, prompts, out / "generations.parquet")
    placement = Placement(options.placement.replicas, options.placement.tensor_parallel)
    start = time.monotonic()
    answers, generated = generate_answers(request, placement, role="judge", api_sampling=options.sampling, **settings)
    seconds = time.monotonic() - start
    texts = {order: [_complete_thinking(answers[key], in_thinking) for key in keys] for order, keys in ids.items()}

    table = make_rows(fitting_rows, mode, texts)
    metrics: dict[str, Any] = {
        "settings": {
            "judge": mode,
            "model": options.model,
            "model_path": model_path,
            "data": options.data,
            "limit": options.limit,
            "sha256": contents,
            **({"sampling": options.sampling} if options.sampling else {}),
            **settings,
        },
        "results": _summarise(table, mode, scores, options.seed),
        "generation": {
            "prompts": len(prompts),
            "generated": generated,
            "seconds": round(seconds, 2),
            "too_long_left_out": len(rows) - len(fitting_rows),
            "unfinished_responses": sum(answer["finish_reason"] != "stop" for answer in answers.values()),
        },
        "warnings": warnings,
    }
    if other is not None:
        metrics["paired"] = compare(other, table, mode, scores, options.seed) | {"against": options.against}
    write_table(out / "rows.parquet", pa.Table.from_pylist(table))
    write_json(out / "metrics.json", metrics)
    return metrics


def _choose_sampling(options: JudgeEvaluationOptions) -> dict[str, Any]:
    """Return the arguments of the generation: greedy, with the chat template's settings of training."""
    return {
        "max_tokens": options.max_response_length,
        "temperature": 0.0,
        "seed": options.seed,
        "max_prompt_tokens": options.max_prompt_length,
        "chat_template_kwargs": dict(TEMPLATE_SETTINGS),
    }


def _make_prompts(fitting_rows: Rows, mode: str) -> tuple[dict[str, list[Message]], dict[bool, list[str]]]:
    """Return the prompts by id, and the rows' ids by whether A and B are swapped."""
    prompts: dict[str, list[Message]] = {}
    ids: dict[bool, list[str]] = {}
    for is_swapped in (False, True) if mode == "pairwise" else (False,):
        prompts_of_order = [build_prompt(row, mode, swapped=is_swapped) for _, row in fitting_rows]
        ids[is_swapped] = [prompt_id(prompt) for prompt in prompts_of_order]
        prompts |= dict(zip(ids[is_swapped], prompts_of_order, strict=True))
    return prompts, ids


def _resolve_judge(name: str) -> str:
    """Return the folder or id that vLLM loads. Raises UserError if there is no such judge."""
    path = resolve_model(name, "--model ")
    hub.require(path, "--model ")
    return path


def _summarise(table: Sequence[dict[str, Any]], mode: str, scores: Scores, seed: int) -> dict[str, Any]:
    return summarise_pairwise(table, seed) if mode == "pairwise" else summarise_pointwise(table, scores, seed)


def _select_fitting_rows(model_path: str, rows: Rows, options: JudgeEvaluationOptions) -> tuple[Rows, bool]:
    """Return the rows whose prompts fit, and whether the chat template opens the thinking."""
    tokenizer, positions = load_tokenizer(model_path, "--model ")
    limit = min(options.max_prompt_length, positions - options.max_response_length)
    if options.mode == "pairwise":
        limit -= 2  # swapped responses may take a token or two more
    rendered = [render_prompt(tokenizer, build_prompt(row, options.mode), **TEMPLATE_SETTINGS) for _, row in rows]
    fitting_rows = [row for row, text in zip(rows, rendered, strict=True) if fits(tokenizer, text, limit)]
    return fitting_rows, opens_thinking(rendered[0])


def _complete_thinking(answer: Answer, in_thinking: bool) -> str:
    """Return an answer with the `<think>` that its prompt has opened.

    A server's template may have opened it, too: an unfinished answer without any think tag counts as thinking.
    """
    text = answer["text"]
    cut_off = answer["finish_reason"] == "length" and strip_thinking("<think>" + text) == ""
    return f"<think>\n{text}" if in_thinking or cut_off else text


def _check_criteria(model: Path, row: Mapping[str, Any], mode: str) -> list[str]:
    """Return a warning if the judge was trained in another mode or with other criteria than those of the data."""
    if not (model / FILE).is_file():
        return []
    try:
        if read_criteria(model / FILE, mode) == row["criteria"]:
            return []
    except UserError as error:
        return [f"the judge was not trained as a {mode} judge ({error})"]
    return [
        f"{model / FILE}: the judge was trained with other criteria than those of the data, which its prompts state"
    ]


# ---- command


def format_metrics(metrics: Mapping[str, Any]) -> str:
    """Format an evaluation for the terminal."""
    settings = metrics["settings"]
    results = metrics["results"]
    generation = metrics["generation"]
    lines = [f"{settings['data']}: {results['n']} rows, {results['num_contexts']} queries, {settings['judge']} judge"]
    for name, value in results.items():
        if isinstance(value, Mapping) and "mean" in value:
            base = results["baseline"].get(name)
            baseline = f"   {base:.4f} for a constant verdict" if base is not None else ""
            lines.append(f"  {name:<17} {_format_value(value)}{baseline}")
    if (ties := results.get("ties", {})).get("n"):
        lines.append(f"  of {ties['n']} ties: " + _format_values(ties))
    for kind in ("by_source", "by_label"):
        if len(parts := results.get(kind, {})) > 1:
            lines.append(f"{kind.replace('_', ' ')}:")
            lines += [f"  {name:<17} n {part['n']:<6} {_format_values(part)}" for name, part in parts.items()]
    if pair := metrics.get("paired"):
        lines.append(f"minus {pair['against']}, {pair['n']} rows paired:")
        lines += [f"  {name:<17} {format_gain(pair[name])}" for name in COMPARED[settings["judge"]]]
    lines.append(
        f"{generation['generated']} of {generation['prompts']} prompts generated in {generation['seconds']:.0f} s, the "
        f"rest reused; {generation['too_long_left_out']} rows too long, {generation['unfinished_responses']} responses "
        "cut off"
    )
    return "\n".join(lines)


def _format_values(part: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_format_value(value)}" for name, value in part.items() if isinstance(value, Mapping))


def _format_value(value: Mapping[str, float]) -> str:
    return f"{format_number(value['mean'])} ±{format_number(value['se'])}"


@command(JudgeEvaluationOptions)
def main(options: JudgeEvaluationOptions) -> int:
    """Evaluate a judge; return the exit status."""
    if not options.overwrite:
        refuse_to_replace(Path(options.out), options.model, options.data)
    metrics = evaluate_judge(options)
    print(format_metrics(metrics))
    for warning in metrics["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"written to {options.out}")
    return 0
