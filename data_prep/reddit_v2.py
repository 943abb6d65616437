"""The released Reddit-v2 download -> the parquet that the recipes read.

docs/how-to/reproduce-paper.md has a table of its files.

Rows stream through; memory holds one batch, one row group and 64 bits a row. OUT appears whole or not at all.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from convrec.base.errors import UserError
from convrec.base.files import folder_written_whole, write_json, write_table
from convrec.base.options import command
from convrec.data.schema import CATALOG_SCHEMA, TRUTH
from convrec.titles.catalog import Catalog, load_catalog
from convrec.titles.matching import Matcher
from data_prep.options.reddit_v2 import RedditOptions
from data_prep.released import AGAIN, ReleasedSplit, Target, clean_row, find_split, read_split
from data_prep.tables import SampleIds, TableNumbers, check_out, describe, table_writer

CATALOG = "gt_catalog.pkl"
GRPO_TRAIN = ("grpo/grpo_dataset/train", "grpo_dataset/train", "grpo/grpo_dataset", "grpo_dataset")


TARGETS = (
    Target("train", GRPO_TRAIN, truth=True),
    Target("sft_train", ("sft_dataset/train",), completion=True),
    Target("sft_validation", ("sft_dataset/validation",), completion=True),
    Target("validation", ("sft_dataset/validation",), truth=True),
    Target("test", ("sft_dataset/test",)),
)


def convert(source: str | Path, out: str | Path, *, overwrite: bool = False, progress: bool = False) -> dict[str, Any]:
    """Write what the source has parts for; returns what summary.json holds.

    {"source", "catalog": {...} | None, "files": {name: numbers}, "missing": [...]}. Raises UserError, and then OUT is
    as it was.
    """
    source = Path(source)
    out = Path(out)
    if not source.is_dir():
        raise UserError(f"--source {source}: no such folder; give the unpacked processed_datasets")
    names = [*(target.name for target in TARGETS), "catalog"]
    ours = {f"{name}{end}" for name in names for end in (".parquet", ".changes.jsonl")} | {"summary.json"}
    check_out(out, overwrite, ours)
    splits = {target.name: find_split(source, target.folders) for target in TARGETS}
    pickle = source / CATALOG
    catalog = load_catalog(pickle) if pickle.is_file() else None
    if catalog is None and not any(splits.values()):
        raise UserError(
            f"--source {source}: none of sft_dataset, grpo/grpo_dataset, grpo_dataset, {CATALOG} is in it; "
            "give the folder that holds them"
        )
    matcher = Matcher(catalog) if catalog else None
    missing = sorted({target.folders[0] for target in TARGETS if not splits[target.name]})
    summary: dict[str, Any] = {"source": str(source), "catalog": None, "files": {}, "missing": missing}
    with folder_written_whole(out) as folder:
        for target in TARGETS:
            split = splits[target.name]
            if split:
                summary["files"][target.name] = _convert_split(target, split, folder, matcher, progress)
        if catalog:
            _check_catalog(pickle, summary["files"])
            summary["catalog"] = _write_catalog(folder / "catalog.parquet", catalog)
        else:
            summary["missing"] = [*missing, CATALOG]
        write_json(folder / "summary.json", summary)
    return summary


def _convert_split(
    target: Target, split: ReleasedSplit, folder: Path, matcher: Matcher | None, progress: bool
) -> dict[str, Any]:
    columns = ("prompt", "seen_titles", TRUTH) + (("completion",) if target.completion else ())
    numbers = TableNumbers()
    ids = SampleIds()
    repaired = 0
    reasons: Counter[str] = Counter()  # of rows that are set aside
    with (
        table_writer(folder / f"{target.name}.parquet", target.schema) as add,
        (folder / f"{target.name}.changes.jsonl").open("w", encoding="utf-8") as changes,
    ):
        batches = read_split(split, columns, target.name if progress else None)
        for number, row in enumerate(row for rows in batches for row in rows):
            cleaned, notes = clean_row(row, target)
            if notes:
                note = {"source": split.name, "row": number, "action": "repaired" if cleaned else "set aside"}
                changes.write(json.dumps(note | {"why": notes}, ensure_ascii=False) + "\n")
            if cleaned is None:
                reasons[notes[0]] += 1
                continue
            prompt = cleaned["prompt"][0]["content"]
            truth = cleaned[TRUTH]
            cleaned["sample_id"] = ids(prompt, truth, cleaned["seen_titles"])
            numbers.add(prompt, truth)
            add(cleaned)
            repaired += bool(notes)
    rows_read = numbers.rows + reasons.total()
    if not rows_read:
        raise UserError(f"{split.name}: its shards have no rows; {AGAIN}")
    if not numbers.rows:
        why = "; ".join(f"{count:,}: {reason}" for reason, count in reasons.items())
        raise UserError(f"{split.name}: every row was set aside ({why}); is this the Reddit-v2 release, and whole?")
    return {
        "source": split.name,
        "rows_read": rows_read,
        "repaired": repaired,
        "set_aside": reasons.total(),
        "set_aside_why": dict(reasons),
    } | numbers.summary(matcher)


def _check_catalog(path: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises UserError where the catalog has nothing that a row wants: no list could ever earn anything."""
    numbers = [file for file in files.values() if file["ground_truths"]["titles"]]
    if numbers and all(file["outside_catalog"]["titles"] == file["ground_truths"]["titles"] for file in numbers):
        first = numbers[0]["outside_catalog"]["most_frequent"][0]
        raise UserError(
            f"{path}: it has none of the titles that rows want (the most frequent: {first}), so nothing could ever be "
            "a hit; give the catalog of these data"
        )


def _write_catalog(path: Path, catalog: Catalog) -> dict[str, Any]:
    """The entries with a title; a year that cannot be one is null, and loading says so again."""
    items = [(title, year or None) for title, year in zip(catalog.titles, catalog.years, strict=True) if title]
    titles, years = zip(*items, strict=True)
    write_table(path, pa.table([titles, years], schema=CATALOG_SCHEMA))
    return {"items": len(items), "problems": list(catalog.problems), "spellings": catalog.spellings()}


def format_summary(summary: Mapping[str, Any]) -> str:
    lines = []
    for name, numbers in summary["files"].items():
        lines.append(describe(name, numbers))
        if numbers["repaired"] or numbers["set_aside"]:
            why = "; ".join(f"{count:,}: {reason}" for reason, count in numbers["set_aside_why"].items())
            lines.append(
                f"{'':<15}of {numbers['rows_read']:,} rows read {numbers['repaired']:,} repaired, "
                f"{numbers['set_aside']:,} set aside" + (f" ({why})" if why else "") + f": {name}.changes.jsonl"
            )
    if summary["catalog"]:
        lines.append(f"{'catalog':<15}{summary['catalog']['items']:>8,} items")
        lines += [f"{'':<15}{problem}" for problem in summary["catalog"]["problems"]]
    if summary["missing"]:
        lines.append(f"not in the source, not written: {', '.join(summary['missing'])}")
    return "\n".join(lines)


@command(RedditOptions)
def main(options: RedditOptions) -> int:
    summary = convert(options.source, options.out, overwrite=options.overwrite, progress=True)
    print(format_summary(summary))
    print(f"wrote {options.out}")
    return 0
