"""One model evaluated on one split: answers, their scores, the baselines beside, and three files."""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from convrec.checkpoints import resolve_model
from convrec.errors import UserError
from convrec.generations import Answer, model_answers
from convrec.judge_verdict import outside_thinking
from convrec.metrics import KS
from convrec.ranks import parse_items
from recipes.evaluation.baselines import API, api_answers, baseline_lists
from recipes.evaluation.scoring import compare, read_other, score, summary, write_json, write_rows
from recipes.evaluation.split import Split, read_split, read_training_rows

USUAL = 0.9  # share of lists of one length from which on it is what the model was trained for


def evaluate(
    *,
    model: str | Path,
    data: str | Path,
    catalog: str | Path,
    out: str | Path,
    train: str | Path | None = None,
    baselines: Sequence[str] = ("popularity",),
    num_items: int = 20,
    ks: Sequence[int] = KS,
    protocols: Sequence[str] = ("paper",),
    matching: str = "fuzzy",
    limit: int | None = None,
    seed: int = 3407,
    max_prompt_length: int = 2048,
    max_response_length: int = 1024,
    against: str | Path | None = None,
    tensor_parallel: int = 1,
    progress: bool = True,
) -> dict[str, Any]:
    """Evaluate and write OUT's three files; returns what metrics.json holds.

    {"settings", "results": {protocol: {"model": summary, "popularity": summary}}, "generation", "warnings", "paired"}.
    A summary is scoring.summary's. The `baselines` need `train` and are left out without it, "paired" (this model minus
    the other) needs `against`. Row metrics in rows.parquet are of the first protocol; further ones are prefixed with
    theirs. Raises UserError for bad input, before vLLM starts.
    """
    out = Path(out)
    for k in ks:
        if not 1 <= k <= num_items:
            raise UserError(f"--ks {k}: must be from 1 to the {num_items} items of a list (--num-items)")
    model_path = str(model) if str(model).startswith(API) else resolve_model(model, "--model ")
    split = read_split(data, catalog, matching, limit)
    train_rows = read_training_rows(train, split.catalog) if train else []
    lists = {name: baseline_lists(name, split, train_rows, num_items) for name in baselines if train}
    other = read_other(Path(against), protocols[0], ks) if against else None

    settings = {
        "max_tokens": max_response_length,
        "max_prompt_tokens": max_prompt_length,
        "temperature": 0.0,
        "seed": seed,
    }
    start = time.monotonic()
    answers, generated = _answers(model_path, split, out, settings, tensor_parallel, progress)
    seconds = time.monotonic() - start

    dated = split.catalog.dated
    lists = {"model": [parse_items(answers[prompt]["text"], dated=dated) for prompt in split.prompt_ids]} | lists
    scored = {
        protocol: {name: score(split, some, protocol, ks) for name, some in lists.items()} for protocol in protocols
    }
    metrics: dict[str, Any] = {
        "settings": {
            "model": str(model),
            "model_path": model_path,
            "data": str(data),
            "catalog": str(catalog),
            "train": str(train) if train else None,
            "num_items": num_items,
            "ks": list(ks),
            "protocols": list(protocols),
            "matching": matching,
            "limit": limit,
            **settings,
        },
        "results": {
            protocol: {name: summary(some, split, ks, seed, num_items) for name, some in by_name.items()}
            for protocol, by_name in scored.items()
        },
        "generation": {
            "prompts": len(answers),
            "generated": generated,
            "seconds": round(seconds, 2),
            "truncated_prompts": sum(answer["prompt_truncated"] for answer in answers.values()),
            "unfinished_responses": sum(answer["finish_reason"] != "stop" for answer in answers.values()),
        },
        "warnings": split.warnings,
    }
    lengths = Counter(len(items) for items in lists["model"])
    length, times = lengths.most_common(1)[0]
    if length != num_items and times > USUAL * len(split.rows):
        metrics["warnings"] += [
            f"{times} of {len(split.rows)} lists have {length} items, not {num_items}: "
            "if the model was trained for that, say so with --num-items and --ks"
        ]
    by_model = {protocol: by_name["model"] for protocol, by_name in scored.items()}
    if other is not None:
        found = compare(other, split, by_model[protocols[0]], ks, seed)
        metrics["paired"] = found | {"against": str(against)}
    write_rows(out / "rows.parquet", split, answers, by_model)
    write_json(out / "metrics.json", metrics)
    return metrics


def _answers(
    model: str, split: Split, out: Path, settings: dict[str, Any], tensor_parallel: int, progress: bool
) -> tuple[dict[str, Answer], int]:
    path = out / "generations.parquet"
    if model.startswith(API):
        answers, new = api_answers(model.removeprefix(API), split.prompts, path, **settings)
        # a policy's thinking would be ranks of its list, as in training; another model's is not its list
        return {name: answer | {"text": outside_thinking(answer["text"])} for name, answer in answers.items()}, new
    return model_answers(model, split.prompts, path, tensor_parallel=tensor_parallel, progress=progress, **settings)
