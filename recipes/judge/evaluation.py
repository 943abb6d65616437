"""How good a judge is on labelled rows: greedy verdicts of vLLM or of an API, pairwise ones in both orders.

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
from convrec.judges.metrics import comparison_metrics, pairwise_summary, pointwise_summary, score_metrics
from convrec.judges.prompt import TEMPLATE_SETTINGS, query_text
from convrec.judges.schema import build_prompt, get_label, get_score_range, read_judge_table
from convrec.judges.verdict import TIE, comparison_verdict, opens_thinking, outside_thinking, score_verdict
from convrec.lists.metrics import paired
from convrec.report.page import gain_text, number_text
from recipes.evaluation.baselines import API, answers_to
from recipes.evaluation.checks import refuse_to_replace
from recipes.evaluation.scoring import load_metrics, load_rows
from recipes.options.judge import JudgeEvaluationOptions

Rows = list[tuple[int, dict[str, Any]]]  # (number in the data, row)
COMPARED = {
    "pairwise": ("accuracy", "accuracy_swapped", "right_both_ways", "agreement"),
    "pointwise": ("exact_match", "reward"),
}


def rows_table(kept: Rows, mode: str, texts: Mapping[bool, Sequence[str]]) -> list[dict[str, Any]]:
    """A line a row; verdicts None where there are none. texts: by whether A and B were swapped."""
    table: list[dict[str, Any]] = []
    for index, (number, row) in enumerate(kept):
        record = {
            "row": number,
            "query": query_text(row["input"]),
            "source": row["source"] or "",
            "label": get_label(row, mode),
        }
        for is_swapped, texts_of_order in texts.items():
            text = texts_of_order[index]
            end = "_swapped" if is_swapped else ""
            verdict = score_verdict(text, get_score_range(row)) if mode == "pointwise" else comparison_verdict(text)
            record |= {f"text{end}": text, f"verdict{end}": verdict}
        table.append(record)
    return table


def read_other(folder: Path, mode: str, contents: Mapping[str, str]) -> dict[int, dict[str, Any]]:
    """Row number -> line of an earlier evaluation. Raises UserError where there is none of that mode and of data with
    these contents (its `sha256`)."""
    settings = load_metrics(folder, "--against ")["settings"]
    if settings.get("judge") != mode:
        raise UserError(f"--against {folder}: not the evaluation of a {mode} judge; evaluate both alike")
    if settings["sha256"] != contents:
        raise UserError(f"--against {folder}: its data had other contents ({settings['data']}); evaluate both alike")
    return load_rows(folder, "--against ", key="row")


def compare(
    other: Mapping[int, dict[str, Any]], table: Sequence[dict[str, Any]], mode: str, scores: Scores, seed: int
) -> dict[str, Any]:
    """This evaluation minus the other on the rows both have, ties aside: {metric: {"mean", "se", "p"}, "n"}."""
    both = [
        (row, other[row["row"]])
        for row in table
        if other.get(row["row"], {}).get("query") == row["query"] and row["label"] != TIE
    ]
    if not both:
        raise UserError("--against: no row of that evaluation is in this data; compare evaluations of the same data")
    queries = [row["query"] for row, _ in both]
    new = [_row_metrics(row, mode, scores) for row, _ in both]
    old = [_row_metrics(row, mode, scores) for _, row in both]
    return {"n": len(both)} | paired(old, new, COMPARED[mode], queries, seed)


def _row_metrics(row: dict[str, Any], mode: str, scores: Scores) -> dict[str, Any]:
    return comparison_metrics(row) if mode == "pairwise" else score_metrics(row, scores)


def evaluate_judge(options: JudgeEvaluationOptions) -> dict[str, Any]:
    """Evaluate, write OUT's three files and return what metrics.json holds.

    {"settings", "results": judge_metrics' summary, "generation", "paired" (this minus `against`), "warnings"}. Rows
    whose prompt has more than max_prompt_length tokens are left out and counted. Raises UserError for bad input, before
    vLLM starts.
    """
    mode = options.mode
    out = Path(options.out)
    is_api = options.model.startswith(API)
    model_path = options.model if is_api else _find_model(options.model)
    if options.sampling and not is_api:
        raise UserError("--sampling: it is for a model behind an API; give --model api:NAME")
    rows: Rows = list(enumerate(read_judge_table(options.data, mode, ties=True)))[: options.limit]
    scores = get_score_range(rows[0][1])
    contents = {"data": file_hash(options.data)}
    other = read_other(Path(options.against), mode, contents) if options.against else None
    warnings = _warnings(Path(model_path), rows[0][1], mode)
    kept, in_thinking = (rows, False) if is_api else _short_enough(model_path, rows, options)
    if not kept:
        raise UserError(
            f"{options.data}: no prompt fits --max-prompt-length {options.max_prompt_length} and the model beside "
            f"--max-response-length {options.max_response_length}"
        )

    prompts, ids = _make_prompts(kept, mode)
    settings: dict[str, Any] = {
        "max_tokens": options.max_response_length,
        "temperature": 0.0,
        "seed": options.seed,
        "max_prompt_tokens": options.max_prompt_length,
        "chat_template_kwargs": dict(TEMPLATE_SETTINGS),
    }
    request = GenerationRequest(model_path, prompts, out / "generations.parquet")
    placement = Placement(options.placement.replicas, options.placement.tensor_parallel)
    start = time.monotonic()
    answers, generated = answers_to(request, placement, role="judge", api_sampling=options.sampling, **settings)
    seconds = time.monotonic() - start
    texts = {order: [_whole_text(answers[key], in_thinking) for key in keys] for order, keys in ids.items()}

    table = rows_table(kept, mode, texts)
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
            "too_long_left_out": len(rows) - len(kept),
            "unfinished_responses": sum(answer["finish_reason"] != "stop" for answer in answers.values()),
        },
        "warnings": warnings,
    }
    if other is not None:
        metrics["paired"] = compare(other, table, mode, scores, options.seed) | {"against": options.against}
    write_table(out / "rows.parquet", pa.Table.from_pylist(table))
    write_json(out / "metrics.json", metrics)
    return metrics


def _make_prompts(kept: Rows, mode: str) -> tuple[dict[str, list[Message]], dict[bool, list[str]]]:
    """(id -> prompt, the ids for the rows by whether A and B are swapped)."""
    prompts: dict[str, list[Message]] = {}
    ids: dict[bool, list[str]] = {}
    for is_swapped in (False, True) if mode == "pairwise" else (False,):
        prompts_of_order = [build_prompt(row, mode, swapped=is_swapped) for _, row in kept]
        ids[is_swapped] = [prompt_id(prompt) for prompt in prompts_of_order]
        prompts |= dict(zip(ids[is_swapped], prompts_of_order, strict=True))
    return prompts, ids


def _find_model(name: str) -> str:
    """The folder or the id of a judge that vLLM loads. Raises UserError where there is none."""
    path = resolve_model(name, "--model ")
    hub.require(path, "--model ")
    return path


def _summarise(table: Sequence[dict[str, Any]], mode: str, scores: Scores, seed: int) -> dict[str, Any]:
    return pairwise_summary(table, seed) if mode == "pairwise" else pointwise_summary(table, scores, seed)


def _short_enough(model_path: str, rows: Rows, options: JudgeEvaluationOptions) -> tuple[Rows, bool]:
    """(the rows that fit, whether the chat template opens the thinking)"""
    tokenizer, positions = load_tokenizer(model_path, "--model ")
    limit = min(options.max_prompt_length, positions - options.max_response_length)
    if options.mode == "pairwise":
        limit -= 2  # the other order of two responses may be a token or two longer
    rendered = [render_prompt(tokenizer, build_prompt(row, options.mode), **TEMPLATE_SETTINGS) for _, row in rows]
    kept = [row for row, text in zip(rows, rendered, strict=True) if fits(tokenizer, text, limit)]
    return kept, opens_thinking(rendered[0])


def _whole_text(answer: Answer, in_thinking: bool) -> str:
    """An answer with the `<think>` that its prompt ended in. A server's template may have opened it too: an answer that
    is cut off and has no think tag at all is taken for unfinished thinking."""
    text = answer["text"]
    cut_off = answer["finish_reason"] == "length" and outside_thinking("<think>" + text) == ""
    return f"<think>\n{text}" if in_thinking or cut_off else text


def _warnings(model: Path, row: Mapping[str, Any], mode: str) -> list[str]:
    if not (model / FILE).is_file():
        return []
    try:
        if read_criteria(model / FILE, mode) == row["criteria"]:
            return []
    except UserError as error:
        return [f"the judge was not trained as a {mode} one ({error})"]
    return [f"{model / FILE}: the judge was trained by other criteria than those of the data, which it is asked by"]


# ---- command


def format_metrics(metrics: Mapping[str, Any]) -> str:
    settings = metrics["settings"]
    results = metrics["results"]
    generation = metrics["generation"]
    lines = [f"{settings['data']}: {results['n']} rows, {results['num_contexts']} queries, {settings['judge']} judge"]
    for name, value in results.items():
        if isinstance(value, Mapping) and "mean" in value:
            base = results["baseline"].get(name)
            beside = f"   {base:.4f} by always saying the same" if base is not None else ""
            lines.append(f"  {name:<17} {_with_error(value)}{beside}")
    if (ties := results.get("ties", {})).get("n"):
        lines.append(f"  of {ties['n']} ties: " + _line(ties))
    for kind in ("by_source", "by_label"):
        if len(parts := results.get(kind, {})) > 1:
            lines.append(f"{kind.replace('_', ' ')}:")
            lines += [f"  {name:<17} n {part['n']:<6} {_line(part)}" for name, part in parts.items()]
    if pair := metrics.get("paired"):
        lines.append(f"minus {pair['against']}, {pair['n']} rows paired:")
        lines += [f"  {n:<17} {gain_text(pair[n])}" for n in COMPARED[settings["judge"]]]
    lines.append(
        f"{generation['generated']} of {generation['prompts']} prompts generated in {generation['seconds']:.0f} s, the "
        f"rest reused; {generation['too_long_left_out']} rows too long, {generation['unfinished_responses']} responses "
        "cut off"
    )
    return "\n".join(lines)


def _line(part: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_with_error(value)}" for name, value in part.items() if isinstance(value, Mapping))


def _with_error(value: Mapping[str, float]) -> str:
    return f"{number_text(value['mean'])} ±{number_text(value['se'])}"


@command(JudgeEvaluationOptions)
def main(options: JudgeEvaluationOptions) -> int:
    if not options.overwrite:
        refuse_to_replace(Path(options.out), options.model, options.data)
    metrics = evaluate_judge(options)
    print(format_metrics(metrics))
    for warning in metrics["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"written to {options.out}")
    return 0
