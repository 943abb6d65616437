"""Build SFT demonstrations for a catalog with Remap-Reflect-Adjust, stage by stage.

Stages, each with its parquet in --out and a record STAGE.json of settings and summary:

    rows            rows.parquet, catalog.parquet           the conversations: a share of train, all of validation
    teacher         teacher.parquet, items.parquet          a list for each, and every item that occurs
    metadata        metadata.parquet                        text for each item
    remap           remap.parquet, item_vectors.npy         the best candidates with their scores s, and the vectors
    reflect         reflect.parquet                         their ratings, and s + gamma * rating
    adjust          adjusted.parquet, adjust_weights.parquet  w s + b; w, b and their effect
    demonstrations  sft_train.parquet, sft_validation.parquet  the input of run_sft.sh
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic

from convrec.base.errors import UserError
from convrec.base.files import file_hash
from convrec.base.options import command
from convrec.judges.criteria import format_criteria, read_criteria
from data_prep.options.demonstrations import DemonstrationsOptions
from data_prep.stages import adjust, demonstrations, metadata, reflect, remap, rows, teacher
from data_prep.stages.asking import MODEL_JUDGES, describe_failed, make_asker, make_llm, write_failed
from data_prep.stages.embeddings import check_embedding
from data_prep.stages.record import SettingsT, Stage, Summary, read_record, refuse_foreign, run_stage

# Stage -> the stages that it reads, and the files that it writes.
STAGES: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "rows": ([], [rows.ROWS, rows.CATALOG]),
    "teacher": (["rows"], [teacher.FILE, teacher.ITEMS]),
    "metadata": (["rows", "teacher"], [metadata.FILE]),
    "remap": (["rows", "teacher", "metadata"], [remap.FILE, remap.VECTORS]),
    "reflect": (["rows", "remap"], [reflect.FILE]),
    "adjust": (["rows", "teacher", "remap", "reflect"], [rows.ADJUSTED, rows.ADJUST_WEIGHTS]),
    "demonstrations": (["rows", "adjust"], list(demonstrations.FILES.values())),
}


@dataclass(frozen=True)
class Plan(Generic[SettingsT]):
    """A stage as the command line configures it: the function that runs it, and the settings its result depends on."""

    run: Callable[[Path, SettingsT], Summary]
    settings: SettingsT


def plan(name: str, options: DemonstrationsOptions) -> Plan[Any]:
    """Plan a stage of STAGES.

    Raises:
        UserError: An option or a file is wrong in a way that shows before anything is computed.
    """
    if name == "rows":
        return plan_rows(options)
    num_items = _read_num_items(Path(options.out), name)
    workers = options.workers or len(os.sched_getaffinity(0))
    if name == "teacher":
        asker = make_asker(options, "teacher", "teacher") if options.teacher == "llm" else None
        teacher_settings = teacher.TeacherSettings(
            teacher=options.teacher,
            num_items=num_items,
            model=asker.model if asker else None,
            sampling=asker.sampling if asker else None,
        )
        return Plan(partial(teacher.run, asker=asker), teacher_settings)
    if name == "metadata":
        asker = make_asker(options, "teacher", "metadata") if options.metadata == "llm" else None
        metadata_settings = metadata.MetadataSettings(
            metadata=options.metadata,
            model=asker.model if asker else None,
            sampling=asker.sampling if asker else None,
        )
        return Plan(partial(metadata.run, asker=asker), metadata_settings)
    if name == "remap":
        return plan_remap(options, num_items, workers)
    if name == "reflect":
        return plan_reflect(options)
    if name == "adjust":
        return plan_adjust(options, workers)
    assert name == "demonstrations"
    return Plan(demonstrations.run, demonstrations.ListLength(num_items))


def _read_remap_settings(options: DemonstrationsOptions) -> dict[str, Any]:
    """Return the settings that remap was run with; {} if it was not run."""
    record = read_record(Path(options.out), "remap") or {}
    return record.get("settings", {})


def plan_rows(options: DemonstrationsOptions) -> Plan[rows.RowsSettings]:
    sources = _find_sources(options)
    settings = rows.RowsSettings(
        share=options.share,
        seed=options.seed,
        num_items=options.num_items,
        train=file_hash(sources["train"]),
        validation=file_hash(sources["validation"]),
        catalog=file_hash(sources["catalog"]),
    )
    return Plan(partial(rows.run, sources=sources), settings)


def plan_remap(options: DemonstrationsOptions, num_items: int, workers: int) -> Plan[remap.RemapSettings]:
    """Plan the stage `remap`.

    Without --remap, its kind is that of the last run, or `none` if the embedding only knows the words of titles.

    Args:
        options: of the command.
        num_items: items of a list, the least number of candidates.
        workers: number of processes.

    Raises:
        UserError: the embedding is unknown or not installed, or --candidates is too low.
    """
    kind = options.remap or ("" if options.redo else _read_remap_settings(options).get("remap"))
    if not kind:
        kind = "none" if remap.compares_only_titles(Path(options.out), options.embedding) else "full"
    if kind == "full":
        check_embedding(options.embedding)
    _check_candidates(options, num_items)
    settings = remap.RemapSettings(
        embedding=options.embedding,
        dimensions=options.dimensions,
        seed=options.seed,
        trust_remote_code=options.trust_remote_code,
        candidates=options.candidates,
        conversation_weight=options.conversation_weight,
        remap=kind,
    )
    run = partial(remap.run, num_items=num_items, is_chosen=options.remap is not None, workers=workers)
    return Plan(run, settings)


def plan_reflect(options: DemonstrationsOptions) -> Plan[reflect.ReflectSettings]:
    asker = make_asker(options, "judge", options.judge) if options.judge in MODEL_JUDGES else None
    candidates = _read_remap_settings(options).get("candidates", options.candidates)
    criteria = None
    if options.criteria and options.judge == "pointwise":
        criteria = format_criteria(read_criteria(options.criteria, options.judge), options.judge)
    settings = reflect.ReflectSettings(
        judge=options.judge,
        gamma=options.gamma,
        judged=min(options.judged or candidates, candidates),
        criteria=criteria,
        model=asker.model if asker else None,
        sampling=asker.sampling if asker else None,
    )
    return Plan(partial(reflect.run, asker=asker), settings)


def plan_adjust(options: DemonstrationsOptions, workers: int) -> Plan[adjust.AdjustSettings]:
    """Plan the stage `adjust`, whose softmax is over the items to which `remap` gave scores.

    Args:
        options: of the command.
        workers: number of processes.
    """
    # the softmax is over the items that have scores
    softmax = "catalog" if _read_remap_settings(options).get("remap") == "full" else "candidates"
    penalty = adjust.PENALTY[softmax] if options.penalty is None else options.penalty
    return Plan(partial(adjust.run, workers=workers), adjust.AdjustSettings(softmax, penalty, options.max_epochs))


def _find_sources(options: DemonstrationsOptions) -> dict[str, str]:
    """Return the files to read; for options that are not given, those of the first run."""
    sources = {name: getattr(options, name) for name in ("train", "validation", "catalog")}
    record = read_record(Path(options.out), "rows")
    for name, path in sources.items():
        if path is None and record is not None:
            path = sources[name] = record["summary"]["sources"][name]
        if path is None:
            raise UserError("demonstrations.missing-option", f"--{name}: missing; give the file to read")
        if not Path(path).is_file():
            raise UserError("demonstrations.missing-file", f"--{name} {path}: no such file")
        if Path(path).resolve().parent == Path(options.out).resolve():
            raise UserError(
                "demonstrations.input-in-output-folder",
                f"--{name} {path}: is in --out, where the stages would replace it; give another --out",
            )
    return sources


def _read_num_items(folder: Path, name: str) -> int:
    record = read_record(folder, "rows")
    if record is None:
        raise UserError(
            "demonstrations.rows-not-run",
            f"{folder}: the stage `rows` has not been run, but `{name}` needs it; run it first, or run `all`",
        )
    return record["settings"]["num_items"]


def build(options: DemonstrationsOptions) -> None:
    """Run a stage, or all stages in order, and print their summaries.

    Raises:
        UserError: A stage cannot be run.
    """
    folder = Path(options.out)
    if options.stage == "all":
        _check_ahead(options)
    try:
        for name in STAGES if options.stage == "all" else [options.stage]:
            _run(name, options)
    finally:
        if text := describe_failed(folder):
            print(text, file=sys.stderr)


def _run(name: str, options: DemonstrationsOptions) -> None:
    folder = Path(options.out)
    planned = plan(name, options)
    reads, files = STAGES[name]
    summary, is_new = run_stage(Stage(name, reads, files, planned.run), folder, planned.settings, options.redo)
    figures = {key: value for key, value in summary.items() if key not in ("sources", "warnings")}
    print(f"[{name}] {'' if is_new else '(unchanged) '}{json.dumps(figures, ensure_ascii=False)}")
    if is_new and "failed" not in summary:  # no model was asked: failures of an earlier run are obsolete
        write_failed(folder, name, [])
    for warning in summary.get("warnings", ()):
        print(f"    warning: {warning}", file=sys.stderr)


def _check_ahead(options: DemonstrationsOptions) -> None:
    """Check what later stages would refuse before the first one runs."""
    _find_sources(options)
    for name, (_, files) in STAGES.items() if not options.redo else ():
        refuse_foreign(Path(options.out), name, files)
    if "llm" in (options.teacher, options.metadata):
        make_llm(options, "teacher")
    if options.judge in MODEL_JUDGES:
        make_llm(options, "judge")
    if options.remap != "none":
        check_embedding(options.embedding)
    _check_candidates(options, options.num_items)


def _check_candidates(options: DemonstrationsOptions, num_items: int) -> None:
    if options.candidates < num_items:
        raise UserError(
            "demonstrations.candidates-too-low",
            f"--candidates {options.candidates}: fewer than a list has; give at least --num-items ({num_items})",
        )


@command(DemonstrationsOptions)
def main(options: DemonstrationsOptions) -> int:
    """Build demonstrations; return the exit status."""
    build(options)
    return 0
