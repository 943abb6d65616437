"""One model evaluated on one split: answers, their scores, the baselines beside, and three files."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from convrec import kinds
from convrec.checkpoints import hub
from convrec.checkpoints.models import resolve_model, run_folder
from convrec.data.damage import REPORT, write_report
from convrec.errors import UserError
from convrec.files import file_hash, write_json
from convrec.generation.answers import Answer, model_answers
from convrec.generation.generate import Messages
from convrec.judges.verdict import outside_thinking
from convrec.lists.matching import make_matcher
from convrec.lists.metrics import KS
from convrec.lists.ranks import Item, parse_items
from convrec.lists.settings import ListSettings
from convrec.runs.folder import read_config, setting
from recipes.evaluation.baselines import (
    API,
    BASELINES,
    OF_TRAINING,
    api_answers,
    baseline_lists,
    empty_prompt,
    others_prompts,
)
from recipes.evaluation.beyond_accuracy import context_of
from recipes.evaluation.constrained import check_lists, make_constraint
from recipes.evaluation.scoring import (
    OF_MODEL,
    compare,
    differences_of,
    minus,
    read_other,
    score,
    summary,
    unlike_lengths,
    write_rows,
)
from recipes.evaluation.slices import SLICES, slice_labels, slice_results
from recipes.evaluation.split import Rows, read_rows, read_split

EMPTY, OTHER = "empty conversation", "another's conversation"  # the probes; the first is also its prompt's id


def evaluate(
    *,
    data: str | Path,
    catalog: str | Path,
    out: str | Path,
    model: str | Path | None = None,
    train: str | Path | None = None,
    baselines: Sequence[str] = ("popularity",),
    probe: bool = False,
    slices: Sequence[str] = SLICES,
    num_items: int | None = None,
    ks: Sequence[int] | None = None,
    protocols: Sequence[str] = ("paper",),
    matching: str | None = None,
    delimiter: str | None = None,
    year_tolerance: int | None = None,
    fuzzy_cutoff: float | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    limit: int | None = None,
    seed: int = 3407,
    max_prompt_length: int = 2048,
    max_response_length: int = 1024,
    against: str | Path | None = None,
    tensor_parallel: int = 1,
    run: str | Path | None = None,
    skip_damaged: float | None = None,
    constrained: bool = False,
    allow: str | Path | None = None,
    progress: bool = True,
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
    Raises UserError for bad input, before vLLM starts.
    """
    out = Path(out)
    if any(part.exists() and not part.is_dir() for part in (out, *out.parents)):
        raise UserError(f"--out {out}: a file is in its place; name a folder")
    if against and Path(against).resolve() == out.resolve():
        raise UserError(f"--against {against}: also --out, which would be overwritten; name another --out")
    asked = [name for name in baselines if train or name not in OF_TRAINING]
    if model is None:
        needs_model = {"--against": against, "--probe": probe, "--constrained": constrained, "--allow": allow}
        _check_without_model(asked, baselines, [name for name, value in needs_model.items() if value])
    if allow and not constrained:
        raise UserError(f"--allow {allow}: it says what constrained lists may hold; add --constrained")
    of_api = str(model).startswith(API)
    model_path = str(model) if of_api or model is None else resolve_model(model, "--model ")
    if model is not None and not of_api:
        hub.require(model_path, "--model ")
    of_run = Path(run) if run else None if of_api or model is None else run_folder(model)
    trained_with = read_config(of_run) if of_run else {}
    given = {
        "num_items": num_items,
        "delimiter": delimiter,
        "matching": matching,
        "year_tolerance": year_tolerance,
        "fuzzy_cutoff": fuzzy_cutoff,
    }
    lists = _list_settings(trained_with, given)
    num_items = lists.num_items
    if chat_template_kwargs is None:
        # {}, verl's default: nothing is passed to the template, as in training. None: generation.generate's own
        chat_template_kwargs = setting(trained_with, "data.apply_chat_template_kwargs")
    ks = ks or [k for k in KS if k <= num_items] or [num_items]
    for k in ks:
        if not 1 <= k <= num_items:
            raise UserError(f"--ks {k}: must be from 1 to the {num_items} items of a list (--num-items)")
    matching_of = {
        protocol: matching or ("reference" if protocol == "reference" else lists.matching) for protocol in protocols
    }
    scored_with = replace(lists, matching=matching_of[protocols[0]])
    split = read_split(data, catalog, scored_with, limit, skip_damaged)
    split_of = {
        mode: split
        if mode == split.matcher.mode
        else replace(split, matcher=make_matcher(split.catalog, replace(lists, matching=mode)))
        for mode in matching_of.values()
    }
    of_train = read_rows(train, split.catalog, skip_damaged, scored=False) if train else Rows([], {}, [])
    context = context_of(split, of_train.rows)
    labels = {name: slice_labels(name, split, context) for name in slices}
    prompts = split.prompts | ({EMPTY: empty_prompt(split)} if probe else {})
    settings: dict[str, Any] = {
        "max_tokens": max_response_length,
        "max_prompt_tokens": max_prompt_length,
        "temperature": 0.0,
        "seed": seed,
    } | ({} if chat_template_kwargs is None else {"chat_template_kwargs": dict(chat_template_kwargs)})
    scored_by = {
        "data": str(data),
        "catalog": str(catalog),
        "sha256": {
            name: file_hash(path) for name, path in (("data", data), ("catalog", catalog), ("train", train)) if path
        },
        "num_items": num_items,
        "ks": list(ks),
        "protocols": list(protocols),
        "matching": matching_of[protocols[0]],
        "matching_of": matching_of,
        "delimiter": lists.delimiter,
        "year_tolerance": lists.year_tolerance,
        "fuzzy_cutoff": lists.fuzzy_cutoff,
        "catalog_items": context.facts.num_items,
    }
    other = read_other(Path(against), scored_by) if against else None
    constraint = None
    if constrained:
        part = Path(allow) if allow else None
        constraint, told = make_constraint(split, Path(catalog), model_path, lists, max_response_length, part, out)
        split.warnings.extend(told)

    start = time.monotonic()
    answers: dict[str, dict[str, Answer]] = {}  # of each of OF_MODEL that there is, by prompt_id
    generated = 0
    how = settings | {"tensor_parallel": tensor_parallel, "progress": progress}
    if model is not None:
        answers["model"], generated = _answers(model_path, prompts, out / "generations.parquet", **how)
    if constraint:
        path = out / "generations_constrained.parquet"
        answers["constrained"], new = _answers(model_path, split.prompts, path, constraint=constraint, **how)
        generated += new
    seconds = time.monotonic() - start

    def lists_for(name: str, prompt_ids: Sequence[str]) -> list[list[Item | None]]:
        texts = [answers[name][prompt]["text"] for prompt in prompt_ids]
        return [parse_items(text, lists.delimiter, split.catalog.dated) for text in texts]

    items_of = {name: lists_for(name, split.prompt_ids) for name in answers}
    items_of |= {name: baseline_lists(name, split, of_train.rows, num_items) for name in asked}
    if probe:
        items_of |= {EMPTY: lists_for("model", [EMPTY] * len(split.rows))}
        items_of |= {OTHER: lists_for("model", others_prompts(split.prompt_ids, seed))}
    scored = {
        protocol: {name: score(split_of[mode], items, protocol, ks, num_items) for name, items in items_of.items()}
        for protocol, mode in matching_of.items()
    }
    free = answers.get("model", {}).values()
    metrics: dict[str, Any] = {
        "settings": {
            "model": None if model is None else str(model),
            "model_path": model_path,
            "train": str(train) if train else None,
            "limit": limit,
            "constrained": constrained,
            "allow": str(allow) if allow else None,
            **scored_by,
            **settings,
        },
        "results": {
            protocol: {
                name: summary(rows, split, ks, seed, num_items, context if protocol == protocols[0] else None)
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
    before = [other.get(row["sample_id"]) for row in split.rows] if other is not None else None
    largest = [f"{metric}@{max(ks)}" for metric in ("ndcg", "recall")]
    metrics["slices"] = slice_results(labels, shown, split.prompt_ids, largest, before)
    if model is not None:
        metrics["warnings"] += unlike_lengths(items_of["model"], num_items)
        metrics["minus"] = {
            name: minus(rows, first["model"], split, largest, metrics["settings"])
            for name, rows in first.items()
            if name not in OF_MODEL
        }
    if constraint:
        gain = differences_of(first["model"], first["constrained"], split, metrics["settings"])
        metrics["constrained"] = check_lists(split, answers["constrained"], lists) | {"paired": gain}
    if other is not None:
        differences = compare(other, split, first["model"], metrics["settings"])
        metrics["paired"] = differences | {"against": str(against)}
    for name in OF_MODEL:
        file = out / ("rows.parquet" if name == "model" else f"rows_{name}.parquet")
        if name in answers:
            scored_lists = {protocol: by_name[name] for protocol, by_name in scored.items()}
            write_rows(file, split, answers[name], scored_lists)
        else:
            file.unlink(missing_ok=True)  # an earlier evaluation's, which metrics.json is no longer of
    (out / REPORT).unlink(missing_ok=True)
    if damaged := [(data, split.damaged), (train, of_train.damaged)] if split.damaged or of_train.damaged else []:
        write_report(
            out / REPORT,
            ({"file": str(path), "row": row, "reason": why} for path, rows in damaged for row, why in rows.items()),
        )
    write_json(out / "metrics.json", metrics)
    return metrics


def _check_without_model(asked: Sequence[str], baselines: Sequence[str], of_model: Sequence[str]) -> None:
    """of_model: the options given that ask something of a model."""
    if of_model:
        raise UserError(f"{of_model[0]}: it is about a model's lists; give --model")
    if not asked:
        raise UserError(
            f"no --model, and no --train for the baseline {' and '.join(baselines)}: give one of them"
            if baselines
            else f"no --model and no --baselines: give one of them ({', '.join(BASELINES)})"
        )


def _list_settings(trained_with: dict[str, Any], given: Mapping[str, Any]) -> ListSettings:
    """What was given (not None), else the run's, else the default.

    A list separated by `|` is one item to a reader of lines, and only the matcher that made `val/ndcg` finds it again.
    """
    of_run = setting(trained_with, "convrec") or {}
    lists = ListSettings.of(of_run | {name: value for name, value in given.items() if value is not None})
    kinds.check(asdict(lists), ListSettings)
    return lists


def _answers(model: str, prompts: Mapping[str, Messages], path: Path, **settings: Any) -> tuple[dict[str, Answer], int]:
    """prompt_id -> answer, and how many are new. settings: model_answers'; an endpoint takes what it knows of them."""
    if model.startswith(API):
        answers, new = api_answers(model.removeprefix(API), prompts, path, **settings)
        # a policy's thinking would be ranks of its list, as in training; another model's is not its list
        return {name: answer | {"text": outside_thinking(answer["text"])} for name, answer in answers.items()}, new
    return model_answers(model, prompts, path, **settings)
