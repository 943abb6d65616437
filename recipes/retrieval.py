"""Fit a retrieval to training conversations, and add its candidates to prompts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from convrec.base.errors import UserError
from convrec.base.files import atomic_write_folder, file_hash
from convrec.base.options import command
from convrec.data.schema import RL_SCHEMA, TRUTH
from convrec.data.validation import validate_rl_table
from convrec.features.candidates.prompts import with_candidates
from convrec.report.page import format_table
from convrec.retrieval.conversations import build_item_texts, read_row
from convrec.retrieval.folder import NOTES, load, save
from convrec.retrieval.retriever import PARTS, POPULARITY, Choice, Retriever, fit
from convrec.titles.catalog import load_catalog, print_problems, reject_changes
from convrec.titles.matching import Matcher
from data_prep.stages.record import read_rows
from data_prep.tables import check_out, open_table_writer
from recipes.evaluation.retrieval import CONSTANTS, compute_mean_ndcg, find_relevant_items
from recipes.evaluation.split import Split, read_split
from recipes.options.retrieval import CandidatesOptions, FitOptions

K = 20  # cut-off of the NDCG that decides between choices
MAX_ROWS = 2000  # of validation, evenly spaced
NEIGHBOURS = (50, 200, 800)
# Weights of the other parts; that of the neighbours is 1.
RIDGE = (0.0, 0.25, 0.5, 1.0)
TEXT = (0.0, 0.1, 0.25)


def fit_retrieval(
    train: Sequence[Path], validation: Path, catalog: Path, out: Path | None = None, overwrite: bool = False
) -> dict[str, Any]:
    """Fit a retrieval, tune its weights, and write its folder.

    Args:
        train: training tables of RL.
        validation: rows that weights are tuned on.
        catalog: of both.
        out: folder to write; None: CATALOG.retrieval next to the catalog.
        overwrite: replace an existing folder.

    Returns:
        The content of retrieval.json, and "out".

    Raises:
        UserError: A file cannot be read, the catalog's file is replaced while it is read, or OUT exists.
    """
    out = out or catalog.with_suffix(".retrieval")
    check_out(out, overwrite, {path.name for path in out.iterdir()} if (out / NOTES).is_file() else set())
    with reject_changes(catalog) as catalog_sha256:
        split = read_split(validation, catalog)
        item_texts = build_item_texts(catalog, split.matcher)
    print_problems(catalog, split.catalog.problems)
    count = sum(
        validate_rl_table(file, allow_empty_ground_truth=True, dated=split.catalog.dated).rows for file in train
    )
    conversations = (read_row(row, split.matcher) for file in train for row in read_rows(file, RL_SCHEMA.names))
    parts = fit(conversations, count, len(split.catalog))
    choice, ndcg = choose(split, Retriever(parts, item_texts, Choice()))
    files = {"catalog": catalog, "validation": validation, **{f"train {n}": file for n, file in enumerate(train)}}
    notes = {"choice": asdict(choice), f"ndcg@{K}": ndcg, "files": {name: str(file) for name, file in files.items()}}
    notes["sha256"] = {name: file_hash(file) for name, file in files.items()} | {"catalog": catalog_sha256}
    with atomic_write_folder(out) as partial:
        save(partial, parts, split.catalog, notes)
    return notes | {"out": out}


def choose(split: Split, retriever: Retriever) -> tuple[Choice, dict[str, float]]:
    """Choose the weights with the best NDCG@K on a split.

    Returns:
        The choice, and NDCG@K of popularity, of each part alone, and of the choice (`fused`).
    """
    rows = [row for row in split.rows if row[TRUTH]]
    rows = rows[:: -(-len(rows) // MAX_ROWS)]
    answers = find_relevant_items(replace(split, rows=rows))
    conversations = [read_row(row, split.matcher) for row in rows]
    other_lists = [retriever.lists(conversation, names=PARTS[1:]) for conversation in conversations]
    lists: dict[int, list[dict[str, list[int]]]] = {}
    for retriever.neighbours.count in NEIGHBOURS:
        all_lists = [
            others | retriever.lists(conversation, names=PARTS[:1])
            for others, conversation in zip(other_lists, conversations, strict=True)
        ]
        lists[retriever.neighbours.count] = [
            by_part | {POPULARITY: by_part[POPULARITY][: 2 * K]} for by_part in all_lists
        ]

    def score(choice: Choice) -> float:
        return compute_mean_ndcg([choice.fused(by_part) for by_part in lists[choice.neighbours]], answers, K)

    weights = [(1.0, *others) for others in product(RIDGE, TEXT)] + [(0.0, 1.0, weight) for weight in TEXT]
    choices = [
        Choice(count, constant, dict(zip(PARTS, part_weights, strict=True)))
        for count, constant, part_weights in product(NEIGHBOURS, CONSTANTS, weights)
    ]
    chosen = max(choices, key=score)
    compared = {POPULARITY: replace(chosen, weights={})}
    compared |= {name: replace(chosen, weights={name: 1.0}) for name in PARTS} | {"fused": chosen}
    return chosen, {name: score(choice) for name, choice in compared.items()}


def write_candidates(
    retrieval: Path, catalog: Path, tables: Sequence[Path], out: Path, count: int = 50, overwrite: bool = False
) -> list[str]:
    """Write tables whose prompts name retrieved candidates.

    Args:
        retrieval: folder of `convrec retrieval fit`.
        catalog: of the retrieval.
        tables: of RL and SFT; their names must be unique.
        out: folder to write.
        count: candidates per prompt.
        overwrite: replace an existing folder.

    Returns:
        Warnings about changes since the fit.

    Raises:
        UserError: A file cannot be read, the catalog's file is replaced while it is read, or OUT exists.
    """
    check_out(out, overwrite, {file.name for file in tables})
    if len({file.name for file in tables}) < len(tables):
        raise UserError(
            "retrieval.duplicate-table",
            "--tables: two files have the same name. Convert them into separate --out folders.",
        )
    with reject_changes(catalog):
        matcher = Matcher(load_catalog(catalog))
        (retriever, warnings) = load(retrieval, catalog, matcher)
    lines = matcher.catalog.lines
    for file in tables:
        validate_rl_table(file, allow_empty_ground_truth=True, dated=matcher.catalog.dated)

    def add_candidates(row: Mapping[str, Any]) -> dict[str, Any]:
        items = retriever.rank(read_row(row, matcher), count=count)
        (prompt, *_) = row["prompt"]
        content = with_candidates(prompt["content"], [lines[item] for item in items])
        return {**row, "prompt": [prompt | {"content": content}]}

    with atomic_write_folder(out) as partial:
        for file in tables:
            schema = pq.read_schema(file)
            with open_table_writer(partial / file.name, schema) as add:
                for row in read_rows(file):
                    add(add_candidates(row))
    return warnings


@command(FitOptions)
def main(options: FitOptions) -> int:
    """Fit a retrieval; return the exit status."""
    notes = fit_retrieval(options.train, options.validation, options.catalog, options.out, options.overwrite)
    figures = [{"model": name, f"ndcg@{K}": value} for name, value in notes[f"ndcg@{K}"].items()]
    print(format_table(figures, line_a_model=True))
    print(f"chosen on {notes['files']['validation']}: {json.dumps(notes['choice'])}\nwritten to {notes['out']}")
    return 0


@command(CandidatesOptions)
def candidates_main(options: CandidatesOptions) -> int:
    """Add candidates to tables; return the exit status."""
    warnings = write_candidates(
        options.retrieval, options.catalog, options.tables, options.out, options.count, options.overwrite
    )
    print_problems(options.catalog, warnings)
    print(f"written to {options.out}: train with CANDIDATES={options.count}")
    return 0
