"""The first stage: choose the conversations to build demonstrations for, and copy the catalog."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from convrec.base.errors import UserError
from convrec.base.files import file_hash, write_table
from convrec.data.schema import CATALOG_SCHEMA, RL_SCHEMA, TRUTH, get_group_id
from convrec.data.validation import validate_rl_table
from convrec.titles.catalog import Catalog, load_catalog
from convrec.titles.matching import Matcher
from data_prep.stages.record import Summary, read_record, read_rows
from data_prep.tables import open_table_writer

ROWS = "rows.parquet"
CATALOG = "catalog.parquet"
ADJUSTED = "adjusted.parquet"  # defined here, so that readers need no torch
ADJUST_WEIGHTS = "adjust_weights.parquet"
SCHEMA = RL_SCHEMA.append(pa.field("split", pa.string())).append(pa.field("group", pa.string()))
_REQUESTED_LENGTH = re.compile(r"reply with (\d+) recommendations")


@dataclass(frozen=True)
class RowsSettings:
    """Settings that the rows depend on.

    Attributes:
        share: share of the training rows to build demonstrations for, above 0, at most 1.
        seed: random seed of their choice.
        num_items: items of a list.
        train, validation, catalog: SHA-256 of these files.
    """

    share: float
    seed: int
    num_items: int
    train: str
    validation: str
    catalog: str


def run(folder: Path, settings: RowsSettings, sources: Mapping[str, str]) -> Summary:
    """Choose the conversations, and copy them and the catalog into the folder.

    Ground truths whose year is not a number are left out with a warning: training ignores them, and scoring the lists
    would refuse them after all models have been paid for.

    Args:
        folder: of the stages.
        settings: what the result depends on.
        sources: the paths of train, validation and catalog.
    """
    catalog = load_catalog(sources["catalog"])
    counts = {}
    warnings = []
    with open_table_writer(folder / ROWS, SCHEMA) as add:
        for split in ("train", "validation"):
            path = sources[split]
            report = validate_rl_table(path, allow_empty_ground_truth=True, dated=catalog.dated)
            warnings += [f"{text}; write four digits; other years are left out" for text in report.warnings]
            total = report.rows
            chosen = np.zeros(total, bool)
            share = settings.share if split == "train" else 1.0
            rng = np.random.default_rng(settings.seed)
            chosen[rng.permutation(total)[: max(1, round(share * total))]] = True
            counts[split] = int(chosen.sum())
            for row in compress(read_rows(Path(path), RL_SCHEMA.names), chosen):
                _check_list_length(path, row, settings.num_items)
                row[TRUTH] = [pair for pair in row[TRUTH] or () if catalog.normalise_year(pair[1]) is not None]
                add(row | {"split": split, "group": get_group_id(row)})
    if sources["catalog"].endswith(".parquet"):
        table = pq.read_table(sources["catalog"])
    else:
        table = pa.table({"title": catalog.titles, "year": make_year_column(catalog)}, CATALOG_SCHEMA)
    write_table(folder / CATALOG, table)
    summary: Summary = counts | {"catalog": len(catalog), "unusable_catalog_entries": len(catalog.problems)}
    summary["warnings"] = warnings
    return summary | {"sources": {name: str(Path(path).resolve()) for name, path in sources.items()}}


def _check_list_length(path: str, row: dict, num_items: int) -> None:
    requested = _REQUESTED_LENGTH.search(row["prompt"][0]["content"])
    if requested and int(requested[1]) != num_items:
        raise UserError(
            "demonstrations.list-length-mismatch",
            f"--num-items {num_items}: the prompt of {row['sample_id']} in {path} asks for {requested[1]} "
            "recommendations; give the same number",
        )


def load_matcher(folder: Path) -> Matcher:
    """Return the matcher of the folder's catalog."""
    return Matcher(load_catalog(folder / CATALOG))


def make_year_column(catalog: Catalog) -> pa.Array:
    """Return the years of the catalog's items; null if an item, or the whole catalog, has none."""
    return pa.array(catalog.years if catalog.dated else [None] * len(catalog), pa.int32())


def find_train_file(folder: Path) -> Path:
    """Return the path of the training split that `rows` read.

    Args:
        folder: of the stages, where `rows` has been run.

    Raises:
        UserError: the file is missing or has changed.
    """
    record = read_record(folder, "rows")
    assert record is not None  # every stage reads `rows`
    path = Path(record["summary"]["sources"]["train"])
    if not path.exists() or file_hash(path) != record["settings"]["train"]:
        raise UserError(
            "demonstrations.changed-train-file",
            f"{path}: not the file that the stage `rows` read; restore it, or run `rows` with --redo and the new file",
        )
    return path
