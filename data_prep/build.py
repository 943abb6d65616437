"""Remap-Reflect-Adjust: SFT demonstrations for a catalog, stage by stage.

    convrec demonstrations all --train data/reddit_v2/train.parquet --validation data/reddit_v2/validation.parquet \\
        --catalog data/reddit_v2/catalog.parquet --out data/demonstrations

Stages, each with its parquet in --out and a record STAGE.json of settings and summary:

    rows            rows.parquet, catalog.parquet           the conversations: a share of train, all of validation
    teacher         teacher.parquet, items.parquet          a list for each, and every item that is met
    metadata        metadata.parquet                        words for each item
    remap           remap.parquet, item_vectors.npy         the best candidates with s, and what s is made of
    reflect         reflect.parquet                         their ratings, and s + gamma * rating
    adjust          adjusted.parquet, adjust_weights.parquet  w s + b, and w, b and what they moved
    demonstrations  sft_train.parquet, sft_validation.parquet  what run_sft.sh reads

A stage whose settings and inputs are those of its record is left alone. Changed ones, and files that no stage wrote,
are refused, or made anew with --redo, which also asks questions again that got no answer (failed.jsonl).
Models are asked at OpenAI-compatible addresses: TEACHER_BASE_URL, TEACHER_MODEL, TEACHER_API_KEY and JUDGE_... or, for
both, LLM_... (convrec/llm); answers are kept in --cache, so that nothing is paid for twice.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from convrec import options
from convrec.errors import UserError, says_user_errors
from convrec.files import file_hash
from convrec.judges.criteria import criteria_text, read_criteria
from convrec.lists.settings import ListSettings
from convrec.llm.client import MAX_RETRIES
from data_prep.stages import adjust, demonstrations, metadata, reflect, remap, rows, teacher
from data_prep.stages.asking import MODEL_JUDGES, asker_of, failed_again, model_of, sampling, write_failed
from data_prep.stages.embeddings import TFIDF_SVD, check_embedding
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


def plan(name: str, given: argparse.Namespace) -> tuple[Callable[..., Summary], dict[str, Any]]:
    """A stage as the command line wants it: (what runs it, the settings that its result depends on).

    Raises UserError for what can be seen to be wrong before anything is computed.
    """
    if name == "rows":
        sources = _sources(given)
        settings = {"share": given.share, "seed": given.seed, "num_items": given.num_items}
        settings |= {name: file_hash(path) for name, path in sources.items()}
        return partial(rows.run, sources=sources), settings
    num_items, workers = _num_items(Path(given.out), name), given.workers or len(os.sched_getaffinity(0))
    if name == "teacher":
        asker, asked = asker_of(given, "teacher", "teacher") if given.teacher == "llm" else (None, {})
        settings = {"teacher": given.teacher, "num_items": num_items} | asked
        return partial(teacher.run, asker=asker), settings
    if name == "metadata":
        asker, asked = asker_of(given, "teacher", "metadata") if given.metadata == "llm" else (None, {})
        return partial(metadata.run, asker=asker), {"metadata": given.metadata} | asked
    if name == "demonstrations":
        return demonstrations.run, {"num_items": num_items}
    as_before = (read_record(Path(given.out), "remap") or {}).get("settings", {})  # of remap
    if name == "remap":
        chosen = given.remap or ("" if given.redo else as_before.get("remap"))
        chosen = chosen or ("none" if remap.compares_titles(Path(given.out), given.embedding) else "full")
        if chosen == "full":
            check_embedding(given.embedding)
        _check_candidates(given, num_items)
        settings = {key: getattr(given, key) for key in REMAP_SETTINGS} | {"remap": chosen}
        run = partial(remap.run, num_items=num_items, is_chosen=given.remap is not None, workers=workers)
        return run, settings
    if name == "reflect":
        asker, asked = asker_of(given, "judge", given.judge) if given.judge in MODEL_JUDGES else (None, {})
        candidates = as_before.get("candidates", given.candidates)
        judged = min(given.judged or candidates, candidates)
        settings = {"judge": given.judge, "gamma": given.gamma, "judged": judged} | asked
        if given.criteria and given.judge == "pointwise":
            settings["criteria"] = criteria_text(read_criteria(given.criteria, given.judge), given.judge)
        return partial(reflect.run, asker=asker), settings
    assert name == "adjust"
    softmax = "catalog" if as_before.get("remap") == "full" else "candidates"  # what has scores
    penalty = adjust.PENALTY[softmax] if given.penalty is None else given.penalty
    settings = {"softmax": softmax, "penalty": penalty, "max_epochs": given.max_epochs}
    return partial(adjust.run, workers=workers), settings


def _sources(given: argparse.Namespace) -> dict[str, str]:
    """The files to read; what is not given is the file of the first time."""
    sources = {name: getattr(given, name) for name in ("train", "validation", "catalog")}
    record = read_record(Path(given.out), "rows")
    for name, path in sources.items():
        if path is None and record is not None:
            path = sources[name] = record["summary"]["sources"][name]
        if path is None:
            raise UserError(f"--{name} is not given: the file to read")
        if not Path(path).is_file():
            raise UserError(f"--{name} {path}: no such file")
        if Path(path).resolve().parent == Path(given.out).resolve():
            raise UserError(f"--{name} {path}: in the folder of the stages, which would replace it; give another --out")
    return sources


def _num_items(folder: Path, name: str) -> int:
    record = read_record(folder, "rows")
    if record is None:
        raise UserError(f"{folder}: the stage `rows` is not there yet; `{name}` reads it: run it first, or `all`")
    return record["settings"]["num_items"]


def build(given: argparse.Namespace) -> None:
    folder = Path(given.out)
    if given.stage == "all":
        _check_ahead(given)
    try:
        for name in STAGES if given.stage == "all" else [given.stage]:
            _run(name, given)
    finally:
        if text := failed_again(folder):
            print(text, file=sys.stderr)


def _run(name: str, given: argparse.Namespace) -> None:
    folder = Path(given.out)
    run, settings = plan(name, given)
    summary, is_new = run_stage(Stage(name, *STAGES[name], run), folder, settings, given.redo)
    shown = {key: value for key, value in summary.items() if key not in ("sources", "warnings")}
    print(f"[{name}] {'' if is_new else '(as it was) '}{json.dumps(shown, ensure_ascii=False)}")
    if is_new and "failed" not in summary:  # no model was asked: what failed in an earlier run is no news
        write_failed(folder, name, [])
    for warning in summary.get("warnings", ()):
        print(f"    warning: {warning}", file=sys.stderr)


def _check_ahead(given: argparse.Namespace) -> None:
    """What a later stage would refuse, before the first one runs."""
    _sources(given)
    for name, (_, files) in STAGES.items() if not given.redo else ():
        refuse_foreign(Path(given.out), name, files)
    if "llm" in (given.teacher, given.metadata):
        model_of(given, "teacher")
    if given.judge in MODEL_JUDGES:
        model_of(given, "judge")
    if given.remap != "none":
        check_embedding(given.embedding)
    _check_candidates(given, given.num_items)


def _check_candidates(given: argparse.Namespace, num_items: int) -> None:
    if given.candidates < num_items:
        raise UserError(f"--candidates {given.candidates}: give at least --num-items ({num_items})")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = options.parser_of(
        "demonstrations", __doc__, stage={"choices": (*STAGES, "all")}, sampling={"type": sampling}
    )
    parser.description, parser.formatter_class = __doc__, argparse.RawDescriptionHelpFormatter
    parser.set_defaults(num_items=ListSettings.num_items, embedding=TFIDF_SVD, retries=MAX_RETRIES)
    return options.parse(parser, argv, "demonstrations")


@says_user_errors
def main(arguments: list[str]) -> int:
    build(parse(arguments))
    return 0
