"""One model evaluated on one split: answers, their scores, the baselines beside, and three files."""

import time
from collections import Counter
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
from convrec.judges.verdict import outside_thinking
from convrec.lists.matching import make_matcher
from convrec.lists.metrics import KS
from convrec.lists.ranks import parse_items
from convrec.lists.settings import ListSettings
from convrec.runs.folder import read_config, setting
from recipes.evaluation.baselines import API, api_answers, baseline_lists
from recipes.evaluation.constrained import check_lists, make_constraint
from recipes.evaluation.scoring import compare, differences_of, read_other, score, summary, write_rows
from recipes.evaluation.split import Rows, Split, read_rows, read_split

USUAL = 0.9  # share of lists of one length from which on it is what the model was trained for


def evaluate(
    *,
    model: str | Path,
    data: str | Path,
    catalog: str | Path,
    out: str | Path,
    train: str | Path | None = None,
    baselines: Sequence[str] = ("popularity",),
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
    "damaged"}.
    `constrained` has the model write a second list for each prompt, held to the catalog (to the part of it that the
    file `allow` names): "results" has their summary as "constrained", "constrained" how many were checked and,
    "paired", how much they gain. A summary is scoring.summary's. The `baselines` need `train` and are left out without
    it, "paired" (this model minus the other) needs `against`. Row metrics in rows.parquet are of the first protocol;
    further ones are prefixed with theirs. What is None of num_items, matching, delimiter, year_tolerance, fuzzy_cutoff
    and chat_template_kwargs is what the `run` was trained with, None: the one the model is of (other models have the
    defaults of ListSettings); only protocol `reference` has its own matching. ks None: metrics.KS up to num_items.
    "damaged" has how many rows of data and of train were left out (skip_damaged: the share that may be; None: an
    error); damaged.jsonl names them.
    Raises UserError for bad input, before vLLM starts.
    """
    out = Path(out)
    if any(part.exists() and not part.is_dir() for part in (out, *out.parents)):
        raise UserError(f"--out {out}: a file is in its place; name a folder")
    if against and Path(against).resolve() == out.resolve():
        raise UserError(f"--against {against}: also --out, which would be overwritten; name another --out")
    of_api = str(model).startswith(API)
    model_path = str(model) if of_api else resolve_model(model, "--model ")
    if not of_api:
        hub.require(model_path, "--model ")
    of_run = Path(run) if run else None if of_api else run_folder(model)
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
    items_of = {name: baseline_lists(name, split, of_train.rows, num_items) for name in baselines if train}
    settings = {
        "max_tokens": max_response_length,
        "max_prompt_tokens": max_prompt_length,
        "temperature": 0.0,
        "seed": seed,
    } | ({} if chat_template_kwargs is None else {"chat_template_kwargs": dict(chat_template_kwargs)})
    scored_by = {
        "data": str(data),
        "catalog": str(catalog),
        "sha256": {"data": file_hash(data), "catalog": file_hash(catalog)},
        "num_items": num_items,
        "ks": list(ks),
        "protocols": list(protocols),
        "matching": matching_of[protocols[0]],
        "matching_of": matching_of,
        "delimiter": lists.delimiter,
        "year_tolerance": lists.year_tolerance,
        "fuzzy_cutoff": lists.fuzzy_cutoff,
    }
    other = read_other(Path(against), scored_by) if against else None
    constraint = None
    if constrained:
        part = Path(allow) if allow else None
        constraint, told = make_constraint(split, Path(catalog), model_path, lists, max_response_length, part, out)
        split.warnings.extend(told)
    elif allow:
        raise UserError(f"--allow {allow}: it says what constrained lists may hold; add --constrained")

    start = time.monotonic()
    answers, generated = _answers(model_path, split, out, settings, tensor_parallel, progress)
    constrained_answers: dict[str, Answer] = {}
    if constraint:
        constrained_answers, more = model_answers(
            model_path,
            split.prompts,
            out / "generations_constrained.parquet",
            tensor_parallel=tensor_parallel,
            progress=progress,
            constraint=constraint,
            **settings,
        )
        generated += more
    seconds = time.monotonic() - start

    dated = split.catalog.dated
    for name, by_prompt in (("constrained", constrained_answers), ("model", answers)):
        if by_prompt:
            texts = [by_prompt[prompt]["text"] for prompt in split.prompt_ids]
            items_of = {name: [parse_items(text, lists.delimiter, dated) for text in texts]} | items_of
    scored = {
        protocol: {name: score(split_of[mode], items, protocol, ks) for name, items in items_of.items()}
        for protocol, mode in matching_of.items()
    }
    metrics: dict[str, Any] = {
        "settings": {
            "model": str(model),
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
                name: summary(scored_lists, split, ks, seed, num_items) for name, scored_lists in by_name.items()
            }
            for protocol, by_name in scored.items()
        },
        "generation": {
            "prompts": len(answers) + len(constrained_answers),
            "generated": generated,
            "seconds": round(seconds, 2),
            "truncated_prompts": sum(answer["prompt_truncated"] for answer in answers.values()),
            "unfinished_responses": sum(answer["finish_reason"] != "stop" for answer in answers.values()),
        },
        "warnings": split.warnings + ([of_train.warnings[-1]] if of_train.damaged else []),
        "damaged": {"data": len(split.damaged), "train": len(of_train.damaged)},
    }
    lengths = Counter(len(items) for items in items_of["model"])
    length, times = lengths.most_common(1)[0]
    if length != num_items and times > USUAL * len(split.rows):
        metrics["warnings"] += [
            f"{times} of {len(split.rows)} lists have {length} items, not {num_items}: "
            "if the model was trained for that, say so with --num-items and --ks"
        ]
    by_model = {protocol: by_name["model"] for protocol, by_name in scored.items()}
    if constraint:
        free, held = (scored[protocols[0]][name] for name in ("model", "constrained"))
        gain = differences_of(free, held, split, ks, seed)
        metrics["constrained"] = check_lists(split, constrained_answers, lists) | {"paired": gain}
    if other is not None:
        differences = compare(other, split, by_model[protocols[0]], ks, seed)
        metrics["paired"] = differences | {"against": str(against)}
    write_rows(out / "rows.parquet", split, answers, by_model)
    if constraint:
        by_protocol = {protocol: by_name["constrained"] for protocol, by_name in scored.items()}
        write_rows(out / "rows_constrained.parquet", split, constrained_answers, by_protocol)
    (out / REPORT).unlink(missing_ok=True)
    if damaged := [(data, split.damaged), (train, of_train.damaged)] if split.damaged or of_train.damaged else []:
        write_report(
            out / REPORT,
            ({"file": str(path), "row": row, "reason": why} for path, rows in damaged for row, why in rows.items()),
        )
    write_json(out / "metrics.json", metrics)
    return metrics


def _list_settings(trained_with: dict[str, Any], given: Mapping[str, Any]) -> ListSettings:
    """What was given (not None), else the run's, else the default.

    A list separated by `|` is one item to a reader of lines, and only the matcher that made `val/ndcg` finds it again.
    """
    of_run = setting(trained_with, "convrec") or {}
    lists = ListSettings.of(of_run | {name: value for name, value in given.items() if value is not None})
    kinds.check(asdict(lists), ListSettings)
    return lists


def _answers(
    model: str, split: Split, out: Path, settings: dict[str, Any], tensor_parallel: int, progress: bool
) -> tuple[dict[str, Answer], int]:
    path = out / "generations.parquet"
    if model.startswith(API):
        answers, new = api_answers(model.removeprefix(API), split.prompts, path, **settings)
        # a policy's thinking would be ranks of its list, as in training; another model's is not its list
        return {name: answer | {"text": outside_thinking(answer["text"])} for name, answer in answers.items()}, new
    return model_answers(model, split.prompts, path, tensor_parallel=tensor_parallel, progress=progress, **settings)
