"""How good a judge is on labelled rows: greedy verdicts of vLLM or of an API, pairwise ones in both orders.

    python -m recipes.evaluate --judge pairwise --model MODEL --data data/judge/test.parquet --out outputs/judge

MODEL is what `python -m recipes.evaluate` takes otherwise, `api:NAME` included. OUT gets metrics.json, rows.parquet (a
line a row: its number in the data, the text, the verdict, for pairwise also those with A and B swapped) and
generations.parquet, which is used again while checkpoint and settings are the same. `--against OTHER_OUT` compares with
an earlier evaluation of the same rows.
"""

import argparse
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from convrec.checkpoints.models import resolve_model
from convrec.data.chat import Message, fits, render_prompt
from convrec.errors import UserError
from convrec.files import read_json, write_json, write_table
from convrec.generation.answers import Answer, model_answers, prompt_id
from convrec.judges.metrics import Summary, pairwise_summary, pointwise_summary
from convrec.judges.prompt import MODES, TEMPLATE_SETTINGS, query_text
from convrec.judges.schema import label_of, prompt_of, read_judge_table
from convrec.judges.verdict import preference_verdict, score_verdict
from convrec.statistics import bootstrap
from recipes.evaluation.baselines import API, api_answers
from reward.judge_pointwise import pointwise_reward

Rows = list[tuple[int, dict[str, Any]]]  # (number in the data, row)
COMPARED = {"pairwise": ("accuracy", "accuracy_swapped", "agreement"), "pointwise": ("exact_match", "reward")}


def evaluate_judge(
    *,
    mode: str,
    model: str | Path,
    data: str | Path,
    out: str | Path,
    limit: int | None = None,
    seed: int = 3407,
    max_prompt_length: int = 4096,
    max_response_length: int = 2048,
    against: str | Path | None = None,
    tensor_parallel: int = 1,
    progress: bool = True,
) -> dict[str, Any]:
    """Evaluate, write OUT's three files and return what metrics.json holds.

    {"settings", "results": judge_metrics' summary, "generation", "paired" (this minus `against`)}. Rows whose prompt
    has more than max_prompt_length tokens are left out and counted. Raises UserError for bad input, before vLLM starts.
    """
    out = Path(out)
    model_path = str(model) if str(model).startswith(API) else resolve_model(model, "--model ")
    rows: Rows = list(enumerate(read_judge_table(data, mode)))[:limit]
    other = _read_other(Path(against), mode) if against else None
    kept = rows
    if not model_path.startswith(API):
        kept = _short_enough(model_path, rows, mode, max_prompt_length, max_response_length)
    if not kept:
        raise UserError(
            f"{data}: no prompt fits --max-prompt-length {max_prompt_length} and the model beside "
            f"--max-response-length {max_response_length}"
        )

    orders = (False, True) if mode == "pairwise" else (False,)
    asked = {order: [prompt_of(row, mode, swapped=order) for _, row in kept] for order in orders}
    settings: dict[str, Any] = {"max_tokens": max_response_length, "temperature": 0.0, "seed": seed}
    settings |= {"max_prompt_tokens": max_prompt_length, "chat_template_kwargs": dict(TEMPLATE_SETTINGS)}
    start = time.monotonic()
    prompts = {prompt_id(prompt): prompt for prompts_of_order in asked.values() for prompt in prompts_of_order}
    answers, generated = _answers(model_path, prompts, out, settings, tensor_parallel, progress)
    seconds = time.monotonic() - start
    texts = {
        order: [answers[prompt_id(prompt)]["text"] for prompt in prompts_of_order]
        for order, prompts_of_order in asked.items()
    }

    table = _rows_table(kept, mode, texts)
    metrics: dict[str, Any] = {
        "settings": {"judge": mode, "model": str(model), "model_path": model_path, "data": str(data), "limit": limit}
        | settings,
        "results": _summary(table, mode, seed),
        "generation": {
            "prompts": len(prompts),
            "generated": generated,
            "seconds": round(seconds, 2),
            "too_long_left_out": len(rows) - len(kept),
            "unfinished_responses": sum(answer["finish_reason"] != "stop" for answer in answers.values()),
        },
    }
    if other is not None:
        metrics["paired"] = _compare(other, table, mode, seed) | {"against": str(against)}
    write_table(out / "rows.parquet", pa.Table.from_pylist(table))
    write_json(out / "metrics.json", metrics)
    return metrics


def _short_enough(model_path: str, rows: Rows, mode: str, max_prompt_length: int, max_response_length: int) -> Rows:
    from transformers import AutoConfig, AutoTokenizer

    tokenizer, config = AutoTokenizer.from_pretrained(model_path), AutoConfig.from_pretrained(model_path)
    limit = min(max_prompt_length, getattr(config, "max_position_embeddings", 2**20) - max_response_length)

    def keep(row: dict[str, Any]) -> bool:
        rendered = render_prompt(tokenizer, prompt_of(row, mode), **TEMPLATE_SETTINGS)
        # the other order of two responses may be a token or two longer
        return fits(tokenizer, rendered, limit - 2 * (mode == "pairwise"))

    return [(number, row) for number, row in rows if keep(row)]


def _answers(
    model: str,
    prompts: Mapping[str, list[Message]],
    out: Path,
    settings: dict[str, Any],
    tensor_parallel: int,
    progress: bool,
) -> tuple[dict[str, Answer], int]:
    path = out / "generations.parquet"
    if model.startswith(API):
        return api_answers(model.removeprefix(API), prompts, path, **settings)
    return model_answers(model, prompts, path, tensor_parallel=tensor_parallel, progress=progress, **settings)


def _rows_table(kept: Rows, mode: str, texts: Mapping[bool, Sequence[str]]) -> list[dict[str, Any]]:
    """A line a row with the metrics that comparisons need; verdicts None where there are none."""
    table: list[dict[str, Any]] = []
    for place, (number, row) in enumerate(kept):
        label, text = label_of(row, mode), texts[False][place]
        record: dict[str, Any] = {"row": number, "query": query_text(row["input"]), "label": label, "text": text}
        if mode == "pointwise":
            verdict = score_verdict(text)
            record |= {
                "verdict": verdict,
                "exact_match": float(verdict == label),
                "reward": pointwise_reward(verdict, label),
            }
        else:
            first, second = preference_verdict(text), preference_verdict(texts[True][place])
            back = {"A": "B", "B": "A"}.get(second or "")
            record |= {
                "verdict": first,
                "text_swapped": texts[True][place],
                "verdict_swapped": second,
                "accuracy": float(first == label),
                "accuracy_swapped": float(back == label),
                "agreement": float(first is not None and first == back),
            }
        table.append(record)
    return table


def _summary(table: Sequence[Mapping[str, Any]], mode: str, seed: int) -> Summary:
    columns = {name: [row[name] for row in table] for name in table[0]}
    if mode == "pointwise":
        return pointwise_summary(columns["label"], columns["verdict"], columns["reward"], columns["query"], seed)
    return pairwise_summary(columns["label"], columns["verdict"], columns["verdict_swapped"], columns["query"], seed)


def _read_other(folder: Path, mode: str) -> dict[int, dict[str, Any]]:
    for name in ("metrics.json", "rows.parquet"):
        if not (folder / name).exists():
            raise UserError(f"--against {folder}: no {name}; give the --out folder of an earlier evaluation")
    if read_json(folder / "metrics.json")["settings"].get("judge") != mode:
        raise UserError(f"--against {folder}: not the evaluation of a {mode} judge; evaluate both alike")
    return {row["row"]: row for row in pq.read_table(folder / "rows.parquet").to_pylist()}


def _compare(
    other: Mapping[int, Mapping[str, Any]], table: Sequence[Mapping[str, Any]], mode: str, seed: int
) -> dict[str, Any]:
    """This evaluation minus the other on the rows both have: {metric: {"mean", "se"}, "n"}."""
    both = [(row, other[row["row"]]) for row in table if other.get(row["row"], {}).get("query") == row["query"]]
    if not both:
        raise UserError("--against: no row of that evaluation is in this data; compare evaluations of the same data")
    names = COMPARED[mode]
    difference = np.array([[new[name] - old[name] for name in names] for new, old in both])
    means, errors = bootstrap(difference, [row["query"] for row, _ in both], seed)
    differences = {name: {"mean": float(m), "se": float(e)} for name, m, e in zip(names, means, errors, strict=True)}
    return {"n": len(both)} | differences


# ---- command


def format_metrics(metrics: Mapping[str, Any]) -> str:
    settings, results, generation = metrics["settings"], metrics["results"], metrics["generation"]
    lines = [f"{settings['data']}: {results['n']} rows, {results['num_contexts']} queries, {settings['judge']} judge"]
    for name, value in results.items():
        if isinstance(value, Mapping) and "mean" in value:
            base = results["baseline"].get(name)
            beside = f"   {base:.4f} by always saying the same" if base is not None else ""
            lines.append(f"  {name:<17} {_number(value['mean'])} ±{_number(value['se'])}{beside}")
    if pair := metrics.get("paired"):
        lines.append(f"minus {pair['against']}, {pair['n']} rows paired:")
        lines += [f"  {n:<17} {pair[n]['mean']:+.4f} ±{_number(pair[n]['se'])}" for n in COMPARED[settings["judge"]]]
    lines.append(
        f"{generation['generated']} of {generation['prompts']} prompts generated in {generation['seconds']:.0f} s, the "
        f"rest reused; {generation['too_long_left_out']} rows too long, {generation['unfinished_responses']} responses "
        "cut off"
    )
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else "-"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m recipes.evaluate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--judge", dest="mode", required=True, choices=MODES)
    parser.add_argument("--model", required=True, help="Hugging Face folder or id, run folder, LoRA adapter, api:NAME")
    parser.add_argument("--data", required=True, help="labelled rows (parquet)")
    parser.add_argument("--out", required=True, help="folder for metrics.json, rows.parquet, generations.parquet")
    parser.add_argument("--limit", type=int, help="only the first rows")
    parser.add_argument("--seed", type=int, default=3407)
    parser.add_argument("--max-prompt-length", type=int, default=4096)
    parser.add_argument("--max-response-length", type=int, default=2048)
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--against", help="--out folder of an earlier evaluation to compare with, row by row")
    options = vars(parser.parse_args(arguments))
    try:
        metrics = evaluate_judge(**options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(format_metrics(metrics))
    print(f"written to {options['out']}")
    return 0
