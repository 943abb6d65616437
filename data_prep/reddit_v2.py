"""Convert the released Reddit-v2 download to the parquet that the recipes read.

docs/how-to/reproduce-paper.md has a table of its files.

Rows are streamed: memory holds one batch, one row group and 64 bits per row. OUT appears as a whole or not at all.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from convrec.base.errors import UserError
from convrec.base.files import atomic_write_folder, write_json, write_table
from convrec.base.options import command
from convrec.data.schema import CATALOG_SCHEMA, TRUTH
from convrec.titles.catalog import Catalog, load_catalog
from convrec.titles.matching import Matcher
from data_prep.options.reddit_v2 import RedditOptions
from data_prep.released import INCOMPLETE, ReleasedSplit, Target, clean_row, find_split, read_split
from data_prep.tables import SampleIds, TableNumbers, check_out, describe_table, open_table_writer

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
    """Convert the parts of the release that are present.

    Args:
        source: the unpacked download.
        out: folder to write.
        overwrite: whether an existing `out` is replaced.
        progress: whether to show progress bars.

    Returns:
        The content of summary.json: {"source", "catalog": {...} | None, "files": {name: numbers}, "missing": [...]}.

    Raises:
        UserError: The source cannot be used; `out` is unchanged.
    """
    source = Path(source)
    out = Path(out)
    if not source.is_dir():
        raise UserError(
            "reddit.missing-source", f"--source {source}: no such folder; give the unpacked processed_datasets"
        )
    names = [*(target.name for target in TARGETS), "catalog"]
    ours = {f"{name}{end}" for name in names for end in (".parquet", ".changes.jsonl")} | {"summary.json"}
    check_out(out, overwrite, ours)
    splits = {target.name: find_split(source, target.folders) for target in TARGETS}
    pickle = source / CATALOG
    catalog = load_catalog(pickle) if pickle.is_file() else None
    if catalog is None and not any(splits.values()):
        raise UserError(
            "reddit.empty-source",
            f"--source {source}: contains none of sft_dataset, grpo/grpo_dataset, grpo_dataset and {CATALOG}; give the "
            "folder that contains them",
        )
    matcher = Matcher(catalog) if catalog else None
    missing = sorted({target.folders[0] for target in TARGETS if not splits[target.name]})
    summary: dict[str, Any] = {"source": str(source), "catalog": None, "files": {}, "missing": missing}
    with atomic_write_folder(out) as folder:
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
    reasons: Counter[str] = Counter()  # reason -> rows set aside
    with (
        open_table_writer(folder / f"{target.name}.parquet", target.schema) as add,
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
        raise UserError("reddit.no-rows", f"{split.name}: its shards have no rows; {INCOMPLETE}")
    if not numbers.rows:
        why = "; ".join(f"{count:,}: {reason}" for reason, count in reasons.items())
        raise UserError(
            "reddit.no-usable-rows",
            f"{split.name}: every row was set aside ({why}); is this the complete Reddit-v2 release?",
        )
    return {
        "source": split.name,
        "rows_read": rows_read,
        "repaired": repaired,
        "set_aside": reasons.total(),
        "set_aside_why": dict(reasons),
    } | numbers.summary(matcher)


def _check_catalog(path: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise UserError if no ground truth is in the catalog: no list could ever earn a reward."""
    numbers = [file for file in files.values() if file["ground_truths"]["titles"]]
    if numbers and all(file["outside_catalog"]["titles"] == file["ground_truths"]["titles"] for file in numbers):
        first = numbers[0]["outside_catalog"]["most_frequent"][0]
        raise UserError(
            "reddit.catalog-mismatch",
            f"{path}: contains none of the ground truths (the most frequent: {first}), so no list could ever have a "
            "hit; give the catalog that belongs to this data",
        )


def _write_catalog(path: Path, catalog: Catalog) -> dict[str, Any]:
    """Write the entries with a title; an impossible year becomes null, which loading reports again."""
    items = [(title, year or None) for title, year in zip(catalog.titles, catalog.years, strict=True) if title]
    titles, years = zip(*items, strict=True)
    write_table(path, pa.table([titles, years], schema=CATALOG_SCHEMA))
    return {"items": len(items), "problems": list(catalog.problems), "spellings": catalog.spellings()}


def format_summary(summary: Mapping[str, Any]) -> str:
    """Format the summary of `convert` for the terminal."""
    lines = []
    for name, numbers in summary["files"].items():
        lines.append(describe_table(name, numbers))
        if numbers["repaired"] or numbers["set_aside"]:
            why = "; ".join(f"{count:,}: {reason}" for reason, count in numbers["set_aside_why"].items())
            lines.append(
                f"{'':<15}{numbers['rows_read']:,} rows read, {numbers['repaired']:,} repaired, "
                f"{numbers['set_aside']:,} set aside" + (f" ({why})" if why else "") + f": {name}.changes.jsonl"
            )
    if summary["catalog"]:
        lines.append(f"{'catalog':<15}{summary['catalog']['items']:>8,} items")
        lines += [f"{'':<15}{problem}" for problem in summary["catalog"]["problems"]]
    if summary["missing"]:
        lines.append(f"not in the source, so not written: {', '.join(summary['missing'])}")
    return "\n".join(lines)


@command(RedditOptions)
def main(options: RedditOptions) -> int:
    """Convert the released Reddit-v2; return the exit status."""
    summary = convert(options.source, options.out, overwrite=options.overwrite, progress=True)
    print(format_summary(summary))
    print(f"wrote {options.out}")
    return 0
