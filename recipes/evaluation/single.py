"""One model evaluated on one split: answers, their scores, the baselines beside, and three files."""

import itertools
import time
from pathlib import Path
from typing import Any

from convrec.data.damage import REPORT
from convrec.files import write_json, write_jsonl
from convrec.generation.answers import Answer, GenerationRequest
from convrec.judges.verdict import outside_thinking
from convrec.lists.ranks import Item, split_lines
from recipes.evaluation.baselines import API, BASELINES, RETRIEVAL, answers_to
from recipes.evaluation.constrained import check_lists
from recipes.evaluation.dialogues import add_figures, dialogues
from recipes.evaluation.options import EvaluationOptions
from recipes.evaluation.retrieval import retrieve, weigh, written_rows
from recipes.evaluation.scoring import (
    FUSED,
    OF_MODEL,
    Row,
    Scored,
    paired_differences,
    score,
    summary,
    unlike_lengths,
    write_rows,
)
from recipes.evaluation.setup import Setup, set_up
from recipes.evaluation.slices import slice_results
from recipes.evaluation.split import as_items

Answers = dict[str, list[Row]]  # of each of OF_MODEL that there is, one for each row


def evaluate(options: EvaluationOptions) -> dict[str, Any]:
    """Evaluate and write OUT's three files; returns what metrics.json holds. Raises UserError for bad input, before
    vLLM starts."""
    return answer_and_score(set_up(options))


def answer_and_score(setup: Setup) -> dict[str, Any]:
    """{"settings", "results": {protocol: {"model": summary, "popularity": summary}}, "generation", "warnings",
    "paired", "minus", "slices", "constrained", "damaged"}.

    A summary is scoring.summary's, with the measures beyond accuracy in the first protocol, which "paired" (this model
    minus that of `against`), "minus" (this model minus each baseline) and "slices" (slice_results) are of.
    With `constrained` the model writes a second list for each prompt, held to the catalog: "results" has their summary
    as "constrained", "constrained" how many were checked and, "paired", how much they gain over the free ones, which
    everything else is of. "damaged" has how many rows of data and of train were left out; damaged.jsonl names them.
    Where a user answers, lists are those that conversations end with, and the baselines are dialogues.ASKING.
    """
    start, generated = time.monotonic(), 0
    given: list[dict[str, Answer]] = []

    def ask(request: GenerationRequest) -> dict[str, Answer]:
        nonlocal generated
        answers, new = _answers(request, setup)
        generated += new
        given.append(answers)
        return answers

    led = dialogues(setup, ask) if setup.options.user else {}
    asked = {} if led else {name: ask(request) for name, request in setup.asked().items()}
    seconds = time.monotonic() - start
    answers = {name: [of[prompt] for prompt in setup.split.prompt_ids] for name, of in asked.items()}
    answers |= {name: [one.answer for one in of] for name, of in led.items()}
    lists = _lists(setup, answers)
    scored = {
        protocol: {name: score(setup.split, matcher, items, protocol, setup.settings) for name, items in lists.items()}
        for protocol, matcher in setup.matchers.items()
    }
    for by_name, (name, of) in itertools.product(scored.values(), led.items()):
        add_figures(setup, of, by_name[name])
    metrics = _metrics(setup, scored)
    free = [answer for of in (given if led else given[:1]) for answer in of.values()]
    metrics["generation"] = {
        "prompts": sum(map(len, given)),
        "generated": generated,
        "seconds": round(seconds, 2),
        "truncated_prompts": sum(answer["prompt_truncated"] for answer in free),
        "unfinished_responses": sum(answer["finish_reason"] != "stop" for answer in free),
    }
    if "model" in lists:
        metrics["warnings"] += unlike_lengths(lists["model"], setup.lists.num_items)
    if setup.constraint:
        metrics["constrained"] |= check_lists(setup.split, asked["constrained"], setup.lists)
    _write(setup, answers, scored, metrics)
    return metrics


def _answers(request: GenerationRequest, setup: Setup) -> tuple[dict[str, Answer], int]:
    """prompt_id -> answer, and how many are new."""
    options = setup.options
    answers, new = answers_to(
        request,
        setup.placement,
        progress=options.progress,
        api_sampling=options.sampling,
        **setup.sampling,
    )
    if request.model_path.startswith(API):
        # a policy's thinking would be ranks of its list, as in training; another model's is not its list
        answers = {name: answer | {"text": outside_thinking(answer["text"])} for name, answer in answers.items()}
    return answers, new


def _lists(setup: Setup, answers: Answers) -> dict[str, list[list[Item | None]]]:
    split = setup.split
    lists: dict[str, list[list[Item | None]]] = {}
    for name, of_rows in answers.items():
        lines = (split_lines(answer["text"], setup.lists.delimiter) for answer in of_rows)
        lists[name] = [list(map(split.matcher.read_line, of_row)) for of_row in lines]
    for name in setup.options.baselines:
        if name != RETRIEVAL or not setup.retriever:
            lists[name] = BASELINES[name](split, setup.train, setup.lists.num_items)
    if retriever := setup.retriever:
        found, k = {RETRIEVAL: retrieve(split, retriever)}, setup.lists.num_items
        if of_model := lists.get("constrained", lists.get("model")):
            written, folder = written_rows(split, of_model), Path(setup.options.retrieval or "")
            if setup.options.weigh:
                retriever.fusion = weigh(split, folder, setup.options.model, k, written, found[RETRIEVAL])
            assert retriever.fusion
            setup.settings["fusion"] = retriever.fusion._asdict()
            found[FUSED] = [retriever.fusion.of(*pair) for pair in zip(written, found[RETRIEVAL], strict=True)]
        lists |= {name: [as_items(split.catalog, items[:k]) for items in of] for name, of in found.items()}
    return lists


def _metrics(setup: Setup, scored: dict[str, dict[str, Scored]]) -> dict[str, Any]:
    split, settings, train = setup.split, setup.settings, setup.train
    (protocol, first), *_ = scored.items()
    largest = [f"{metric}@{max(settings['ks'])}" for metric in ("ndcg", "recall")]
    shown = first.get("model") or next(iter(first.values()))
    labels = setup.labels | ({"questions": [str(row["questions"]) for row in shown]} if setup.options.user else {})
    metrics = {
        "settings": settings,
        "results": {
            of: {
                name: summary(rows, split, settings, setup.context if of == protocol else None)
                for name, rows in by_name.items()
            }
            for of, by_name in scored.items()
        },
        "slices": slice_results(labels, shown, split.prompt_ids, largest, setup.before),
        "warnings": [*setup.warnings, *([train.warnings[-1]] if train.damaged else [])],
        "damaged": {"data": len(split.damaged), "train": len(train.damaged)},
    }
    if "model" in first:
        metrics["minus"] = {
            name: paired_differences(first[name], first["model"], split, settings)
            for name in first
            if name not in OF_MODEL
        }
    if "constrained" in first:
        metrics["constrained"] = {"paired": paired_differences(first["model"], first["constrained"], split, settings)}
    if setup.before:
        differences = paired_differences(setup.before, first["model"], split, settings)
        metrics["paired"] = differences | {"against": setup.options.against}
    return metrics


def _write(setup: Setup, answers: Answers, scored: dict[str, dict[str, Scored]], metrics: dict[str, Any]) -> None:
    out, split = Path(setup.options.out), setup.split
    for name in OF_MODEL:
        file = out / ("rows.parquet" if name == "model" else f"rows_{name}.parquet")
        if name in answers:
            write_rows(file, split, answers[name], {protocol: by_name[name] for protocol, by_name in scored.items()})
        else:
            file.unlink(missing_ok=True)  # an earlier evaluation's, which metrics.json is no longer of
    damaged = [
        {"file": setup.settings[name], "row": row, "reason": reason}
        for name, rows in (("data", split.damaged), ("train", setup.train.damaged))
        for row, reason in rows.items()
    ]
    (out / REPORT).unlink(missing_ok=True)
    if damaged:
        write_jsonl(out / REPORT, damaged)
    write_json(out / "metrics.json", metrics)
