"""One model evaluated on one split: answers, their scores, the baselines beside, and three files."""

import time
from collections.abc import Sequence
from typing import Any

from convrec.data.damage import REPORT, write_report
from convrec.files import write_json
from convrec.generation.answers import Answer, GenerationRequest, model_answers
from convrec.generation.placement import Placement
from convrec.judges.verdict import outside_thinking
from convrec.lists.ranks import Item, parse_items
from recipes.evaluation.baselines import API, api_answers, baseline_lists, others_prompts
from recipes.evaluation.constrained import check_lists
from recipes.evaluation.scoring import (
    OF_MODEL,
    compare,
    differences_of,
    minus,
    score,
    summary,
    unlike_lengths,
    write_rows,
)
from recipes.evaluation.setup import EMPTY, OTHER, set_up
from recipes.evaluation.slices import slice_results


def evaluate(
    *,
    tensor_parallel: int = 1,
    replicas: int | str = 1,
    address: str | None = None,
    progress: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """Evaluate and write OUT's three files; returns what metrics.json holds.

    {"settings", "results": {protocol: {"model": summary, "popularity": summary}}, "generation", "warnings", "paired",
    "minus", "slices", "constrained", "damaged"}.
    A summary is scoring.summary's, with the measures beyond accuracy in the first protocol. The `baselines` but for
    `copy` need `train` and are left out without it, "paired" (this model minus the other) needs `against`; "minus" is
    this model minus each baseline and probe, "slices" is slices.slice_results, both of the first protocol.
    model None: the baselines alone, and no rows.parquet. probe: EMPTY and OTHER are scored beside the model.
    `constrained` has the model write a second list for each prompt, held to the catalog (to the part of it that the
    file `allow` names): "results" has their summary as "constrained", "constrained" how many were checked and,
    "paired", how much they gain over the free ones, which everything else is of.
    Row metrics in rows.parquet are of the first protocol; further ones are prefixed with theirs. What is None of
    num_items, matching, delimiter, year_tolerance, fuzzy_cutoff and chat_template_kwargs is what the `run` was trained
    with, None: the one the model is of (other models have the defaults of ListSettings); only protocol `reference` has
    its own matching. ks None: metrics.KS up to num_items. "damaged" has how many rows of data and of train were left
    out (skip_damaged: the share that may be; None: an error); damaged.jsonl names them.
    replicas, tensor_parallel, address: of convrec.generation.placement.Placement. options: those of `set_up`.
    Raises UserError for bad input, before vLLM starts.
    """
    placement = Placement(replicas, tensor_parallel, address)
    setup = set_up(**options)
    out, split, of_train, lists = setup.out, setup.split, setup.of_train, setup.lists
    ks, protocols, num_items, seed = setup.scored_by["ks"], [*setup.split_of], lists.num_items, setup.settings["seed"]

    start = time.monotonic()
    answers: dict[str, dict[str, Answer]] = {}  # of each of OF_MODEL that there is, by prompt_id
    generated = 0
    for name, request in setup.asked().items():
        answers[name], new = _answers(request, placement=placement, progress=progress, **setup.settings)
        generated += new
    seconds = time.monotonic() - start

    def lists_for(name: str, prompt_ids: Sequence[str]) -> list[list[Item | None]]:
        texts = [answers[name][prompt]["text"] for prompt in prompt_ids]
        return [parse_items(text, lists.delimiter, split.catalog.dated) for text in texts]

    items_of = {name: lists_for(name, split.prompt_ids) for name in answers}
    items_of |= {name: baseline_lists(name, split, of_train.rows, num_items) for name in setup.baselines}
    if setup.probe:
        items_of |= {EMPTY: lists_for("model", [EMPTY] * len(split.rows))}
        items_of |= {OTHER: lists_for("model", others_prompts(split.prompt_ids, seed))}
    scored = {
        protocol: {name: score(of_protocol, items, protocol, ks, num_items) for name, items in items_of.items()}
        for protocol, of_protocol in setup.split_of.items()
    }
    free = answers.get("model", {}).values()
    metrics: dict[str, Any] = {
        "settings": {
            "model": setup.model,
            "model_path": setup.model_path,
            **setup.given,
            **setup.scored_by,
            **setup.settings,
        },
        "results": {
            protocol: {
                name: summary(rows, split, ks, seed, num_items, setup.context if protocol == protocols[0] else None)
                for name, rows in by_name.items()
            }
            for protocol, by_name in scored.items()
        },
        "generation": {
            "prompts": sum(map(len, answers.values())),
            "generated": generated,
            "seconds": round(seconds, 2),
            "truncated_prompts": sum(answer["prompt_truncated"] for answer in free),
            "unfinished_responses": sum(answer["finish_reason"] != "stop" for answer in free),
        },
        "warnings": split.warnings + ([of_train.warnings[-1]] if of_train.damaged else []),
        "damaged": {"data": len(split.damaged), "train": len(of_train.damaged)},
    }
    first = scored[protocols[0]]
    shown = first.get("model") or next(iter(first.values()))
    before = [setup.other.get(row["sample_id"]) for row in split.rows] if setup.other is not None else None
    largest = [f"{metric}@{max(ks)}" for metric in ("ndcg", "recall")]
    metrics["slices"] = slice_results(setup.labels, shown, split.prompt_ids, largest, before)
    if setup.model is not None:
        metrics["warnings"] += unlike_lengths(items_of["model"], num_items)
        metrics["minus"] = {
            name: minus(rows, first["model"], split, largest, metrics["settings"])
            for name, rows in first.items()
            if name not in OF_MODEL
        }
    if setup.constraint:
        gain = differences_of(first["model"], first["constrained"], split, metrics["settings"])
        metrics["constrained"] = check_lists(split, answers["constrained"], lists) | {"paired": gain}
    if setup.other is not None:
        differences = compare(setup.other, split, first["model"], metrics["settings"])
        metrics["paired"] = differences | {"against": setup.against}
    for name in OF_MODEL:
        file = out / ("rows.parquet" if name == "model" else f"rows_{name}.parquet")
        if name in answers:
            scored_lists = {protocol: by_name[name] for protocol, by_name in scored.items()}
            write_rows(file, split, answers[name], scored_lists)
        else:
            file.unlink(missing_ok=True)  # an earlier evaluation's, which metrics.json is no longer of
    (out / REPORT).unlink(missing_ok=True)
    files = (setup.scored_by["data"], split.damaged), (setup.given["train"], of_train.damaged)
    if any(rows for _, rows in files):
        write_report(
            out / REPORT,
            ({"file": path, "row": row, "reason": why} for path, rows in files for row, why in rows.items()),
        )
    write_json(out / "metrics.json", metrics)
    return metrics


def _answers(
    request: GenerationRequest, *, placement: Placement, progress: bool, **settings: Any
) -> tuple[dict[str, Answer], int]:
    """prompt_id -> answer, and how many are new. An endpoint takes what it knows of the settings."""
    if request.model_path.startswith(API):
        answers, new = api_answers(request.model_path.removeprefix(API), request.prompts, request.path, **settings)
        # a policy's thinking would be ranks of its list, as in training; another model's is not its list
        return {name: answer | {"text": outside_thinking(answer["text"])} for name, answer in answers.items()}, new
    return model_answers(request, placement=placement, progress=progress, **settings)
