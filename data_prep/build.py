"""Remap-Reflect-Adjust: SFT demonstrations for a catalog, stage by stage.

Stages, each with its parquet in --out and a record STAGE.json of settings and summary:

    rows            rows.parquet, catalog.parquet           the conversations: a share of train, all of validation
    teacher         teacher.parquet, items.parquet          a list for each, and every item that is met
    metadata        metadata.parquet                        words for each item
    remap           remap.parquet, item_vectors.npy         the best candidates with s, and what s is made of
    reflect         reflect.parquet                         their ratings, and s + gamma * rating
    adjust          adjusted.parquet, adjust_weights.parquet  w s + b, and w, b and what they moved
    demonstrations  sft_train.parquet, sft_validation.parquet  what run_sft.sh reads
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from convrec.errors import UserError
from convrec.files import file_hash
from convrec.judges.criteria import criteria_text, read_criteria
from convrec.options import command
from data_prep.options.demonstrations import DemonstrationsOptions
from data_prep.stages import adjust, demonstrations, metadata, reflect, remap, rows, teacher
from data_prep.stages.asking import MODEL_JUDGES, asker_of, failed_again, model_of, write_failed
from data_prep.stages.embeddings import check_embedding
from data_prep.stages.record import Stage, Summary, read_record, refuse_foreign, run_stage

STAGES: dict[str, tuple[Sequence[str], Sequence[str]]] = {  # the stages that each reads, the files that it writes
    "rows": ([], [rows.ROWS, rows.CATALOG]),
    "teacher": (["rows"], [teacher.FILE, teacher.ITEMS]),
    "metadata": (["rows", "teacher"], [metadata.FILE]),
    "remap": (["rows", "teacher", "metadata"], [remap.FILE, remap.VECTORS]),
    "reflect": (["rows", "remap"], [reflect.FILE]),
    "adjust": (["rows", "teacher", "remap", "reflect"], [rows.ADJUSTED, rows.ADJUST_WEIGHTS]),
    "demonstrations": (["rows", "adjust"], list(demonstrations.FILES.values())),
}
REMAP_SETTINGS = ("embedding", "dimensions", "candidates", "conversation_weight", "seed", "trust_remote_code")


def plan(name: str, options: DemonstrationsOptions) -> tuple[Callable[..., Summary], dict[str, Any]]:
    """A stage as the command line wants it: (what runs it, the settings that its result depends on).

    Raises UserError for what can be seen to be wrong before anything is computed.
    """
    if name == "rows":
        sources = _sources(options)
        settings: dict[str, Any] = {"share": options.share, "seed": options.seed, "num_items": options.num_items}
        settings |= {name: file_hash(path) for name, path in sources.items()}
        return partial(rows.run, sources=sources), settings
    num_items, workers = _num_items(Path(options.out), name), options.workers or len(os.sched_getaffinity(0))
    if name == "teacher":
        asker, asked = asker_of(options, "teacher", "teacher") if options.teacher == "llm" else (None, {})
        settings = {"teacher": options.teacher, "num_items": num_items} | asked
        return partial(teacher.run, asker=asker), settings
    if name == "metadata":
        asker, asked = asker_of(options, "teacher", "metadata") if options.metadata == "llm" else (None, {})
        return partial(metadata.run, asker=asker), {"metadata": options.metadata} | asked
    if name == "demonstrations":
        return demonstrations.run, {"num_items": num_items}
    as_before = (read_record(Path(options.out), "remap") or {}).get("settings", {})  # of remap
    if name == "remap":
        chosen = options.remap or ("" if options.redo else as_before.get("remap"))
        chosen = chosen or ("none" if remap.compares_titles(Path(options.out), options.embedding) else "full")
        if chosen == "full":
            check_embedding(options.embedding)
        _check_candidates(options, num_items)
        settings = {key: getattr(options, key) for key in REMAP_SETTINGS} | {"remap": chosen}
        run = partial(remap.run, num_items=num_items, is_chosen=options.remap is not None, workers=workers)
        return run, settings
    if name == "reflect":
        asker, asked = asker_of(options, "judge", options.judge) if options.judge in MODEL_JUDGES else (None, {})
        candidates = as_before.get("candidates", options.candidates)
        judged = min(options.judged or candidates, candidates)
        settings = {"judge": options.judge, "gamma": options.gamma, "judged": judged} | asked
        if options.criteria and options.judge == "pointwise":
            settings["criteria"] = criteria_text(read_criteria(options.criteria, options.judge), options.judge)
        return partial(reflect.run, asker=asker), settings
    assert name == "adjust"
    softmax = "catalog" if as_before.get("remap") == "full" else "candidates"  # what has scores
    penalty = adjust.PENALTY[softmax] if options.penalty is None else options.penalty
    settings = {"softmax": softmax, "penalty": penalty, "max_epochs": options.max_epochs}
    return partial(adjust.run, workers=workers), settings


def _sources(options: DemonstrationsOptions) -> dict[str, str]:
    """The files to read; what is not given is the file of the first time."""
    sources = {name: getattr(options, name) for name in ("train", "validation", "catalog")}
    record = read_record(Path(options.out), "rows")
    for name, path in sources.items():
        if path is None and record is not None:
            path = sources[name] = record["summary"]["sources"][name]
        if path is None:
            raise UserError(f"--{name} is not given: the file to read")
        if not Path(path).is_file():
            raise UserError(f"--{name} {path}: no such file")
        if Path(path).resolve().parent == Path(options.out).resolve():
            raise UserError(f"--{name} {path}: in the folder of the stages, which would replace it; give another --out")
    return sources


def _num_items(folder: Path, name: str) -> int:
    record = read_record(folder, "rows")
    if record is None:
        raise UserError(f"{folder}: the stage `rows` is not there yet; `{name}` reads it: run it first, or `all`")
    return record["settings"]["num_items"]


def build(options: DemonstrationsOptions) -> None:
    folder = Path(options.out)
    if options.stage == "all":
        _check_ahead(options)
    try:
        for name in STAGES if options.stage == "all" else [options.stage]:
            _run(name, options)
    finally:
        if text := failed_again(folder):
            print(text, file=sys.stderr)


def _run(name: str, options: DemonstrationsOptions) -> None:
    folder = Path(options.out)
    run, settings = plan(name, options)
    summary, is_new = run_stage(Stage(name, *STAGES[name], run), folder, settings, options.redo)
    shown = {key: value for key, value in summary.items() if key not in ("sources", "warnings")}
    print(f"[{name}] {'' if is_new else '(as it was) '}{json.dumps(shown, ensure_ascii=False)}")
    if is_new and "failed" not in summary:  # no model was asked: what failed in an earlier run is no news
        write_failed(folder, name, [])
    for warning in summary.get("warnings", ()):
        print(f"    warning: {warning}", file=sys.stderr)


def _check_ahead(options: DemonstrationsOptions) -> None:
    """What a later stage would refuse, before the first one runs."""
    _sources(options)
    for name, (_, files) in STAGES.items() if not options.redo else ():
        refuse_foreign(Path(options.out), name, files)
    if "llm" in (options.teacher, options.metadata):
        model_of(options, "teacher")
    if options.judge in MODEL_JUDGES:
        model_of(options, "judge")
    if options.remap != "none":
        check_embedding(options.embedding)
    _check_candidates(options, options.num_items)


def _check_candidates(options: DemonstrationsOptions, num_items: int) -> None:
    if options.candidates < num_items:
        raise UserError(f"--candidates {options.candidates}: give at least --num-items ({num_items})")


@command(DemonstrationsOptions)
def main(options: DemonstrationsOptions) -> int:
    build(options)
    return 0
