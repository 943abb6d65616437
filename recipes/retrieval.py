"""Retrieval: lists without a model, fitted on training conversations, and their weight beside a model's lists.

    convrec retrieval fit --train data/books/train.parquet --validation data/books/validation.parquet \\
        --catalog data/books/catalog.parquet
    convrec retrieval weigh --retrieval data/books/catalog.retrieval --evaluation outputs/validation

`fit` writes the folder `catalog.retrieval` beside the catalog (--out names another). What counts how much is chosen on
the validation rows. `weigh` takes what `convrec evaluate` wrote of a model on validation rows, chooses how its lists
and the retrieval's are fused, and writes that down in the folder.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from convrec.data.schema import RL_SCHEMA
from convrec.data.validation import validate_rl_table
from convrec.errors import UserError, says_user_errors
from convrec.files import file_hash, folder_written_whole, write_json
from convrec.lists.catalog import tell_problems
from convrec.lists.matching import Matcher
from convrec.lists.settings import ListSettings
from convrec.report.page import text_table
from convrec.retrieval.conversations import Conversation, item_texts, read_row
from convrec.retrieval.folder import NOTES, load_notes, save
from convrec.retrieval.fusion import Fusion
from convrec.retrieval.retriever import PARTS, POPULARITY, Choice, Retriever, fit
from data_prep.tables import check_out
from recipes.evaluation.results import metrics_of, rows_of
from recipes.evaluation.retrieval import answers_of, asked_of, fuse_rows, loaded, mean_ndcg, retrieve
from recipes.evaluation.split import Split, read_split

K = 20  # of the NDCG that chooses
MOST_ROWS = 2000  # of validation, evenly spaced
CONSTANTS = (10.0, 60.0)
NEIGHBOURS = (50, 200, 800)
RIDGE, TEXT = (0.0, 0.25, 0.5, 1.0), (0.0, 0.1, 0.25)  # weights beside 1 for the neighbours
WEIGHTS = tuple(tenth / 10 for tenth in range(11))  # of a model


def fit_retrieval(
    train: Sequence[Path], validation: Path, catalog: Path, out: Path | None = None, overwrite: bool = False
) -> dict[str, Any]:
    """Write OUT, and return its retrieval.json. Raises UserError for files that cannot be read, and where OUT is
    there."""
    out = out or catalog.with_suffix(".retrieval")
    check_out(out, overwrite, {path.name for path in out.iterdir()} if (out / NOTES).is_file() else set())
    split = read_split(validation, catalog)
    tell_problems(catalog, split.catalog.problems)
    count = sum(
        validate_rl_table(file, allow_empty_ground_truth=True, dated=split.catalog.dated).rows for file in train
    )
    fitted = fit(_conversations(train, split.matcher), count, len(split.catalog))
    texts_M = item_texts(catalog, split.catalog)
    choice, ndcg = choose(split, Retriever(fitted, texts_M, Choice()))
    files = {"catalog": catalog, "validation": validation, **{f"train {n}": file for n, file in enumerate(train)}}
    notes = {"choice": asdict(choice), f"ndcg@{K}": ndcg, "files": {name: str(file) for name, file in files.items()}}
    notes["sha256"] = {name: file_hash(file) for name, file in files.items()}
    with folder_written_whole(out) as partial:
        save(partial, fitted, split.catalog, notes)
    return notes | {"out": out}


def _conversations(files: Sequence[Path], matcher: Matcher) -> Iterator[Conversation]:
    for file in files:
        for batch in pq.ParquetFile(file).iter_batches(columns=RL_SCHEMA.names):
            yield from (read_row(row, matcher, matcher) for row in batch.to_pylist())


def choose(split: Split, retriever: Retriever) -> tuple[Choice, dict[str, float]]:
    """The best choice on these rows by NDCG@K, and that of popularity, each part alone, neighbours and ridge together
    (`both`), and of the choice (`fused`)."""
    step = -(-len(split.rows) // MOST_ROWS)
    split = replace(split, rows=split.rows[::step], prompt_ids=split.prompt_ids[::step])
    answers, asked = answers_of(split), [*asked_of(split)]
    lists: dict[int, list[dict[str, list[int]]]] = {}
    for retriever.neighbours.count in NEIGHBOURS:
        names = PARTS if not lists else ("neighbours",)
        before: list[dict[str, list[int]]] = next(iter(lists.values()), [{}] * len(asked))  # other parts have the same
        of = [known | retriever.lists(*row, names) for known, row in zip(before, asked, strict=True)]
        lists[retriever.neighbours.count] = [one | {POPULARITY: one[POPULARITY][: 2 * K]} for one in of]

    def score(choice: Choice) -> float:
        return mean_ndcg([choice.fused(of) for of in lists[choice.neighbours]], answers, K)

    weights = [(1.0, *others) for others in product(RIDGE, TEXT)] + [(0.0, 1.0, weight) for weight in TEXT]
    choices = [
        Choice(count, constant, dict(zip(PARTS, of, strict=True)))
        for count, constant, of in product(NEIGHBOURS, CONSTANTS, weights)
    ]
    scores = dict(zip(map(str, choices), map(score, choices), strict=True))

    def best(fitting: Iterable[Choice]) -> Choice:
        return max(fitting, key=lambda one: scores[str(one)])

    chosen = best(choices)
    both = best(one for one in choices if [one.weights[name] > 0 for name in PARTS] == [True, True, False])
    alone = {name: replace(chosen, weights={name: 1.0}) for name in PARTS}
    found = {POPULARITY: replace(chosen, weights={})} | alone | {"both": both, "fused": chosen}
    return chosen, {name: score(choice) for name, choice in found.items()}


def weigh(folder: Path, evaluation: Path) -> dict[str, Any]:
    """Choose how a model's lists, those that `convrec evaluate` has of validation rows, are fused with the retrieval's;
    returns what is written down. Raises UserError for an evaluation that has no such lists, or whose files have
    changed."""
    notes, metrics = load_notes(folder), metrics_of(evaluation, "--evaluation ")
    settings = metrics["settings"]
    if "protocols" not in settings or settings["model"] is None:
        raise UserError(f"--evaluation {evaluation}: of no model that writes lists; evaluate one on validation rows")
    for name in ("data", "catalog"):
        if not Path(settings[name]).is_file() or file_hash(settings[name]) != settings["sha256"][name]:
            raise UserError(f"--evaluation {evaluation}: {settings[name]} is gone or has changed; evaluate again")
    skip = 1.0 if metrics["damaged"]["data"] else None  # as it was evaluated
    split = read_split(settings["data"], settings["catalog"], ListSettings.of(settings), settings["limit"], skip)
    file = "rows_constrained.parquet" if settings["constrained"] else "rows.parquet"
    rows, k = rows_of(evaluation, "--evaluation ", name=file), settings["num_items"]
    retriever = loaded(split, str(folder), fuses=False)
    tell_problems(folder, split.warnings)
    written = [rows[row["sample_id"]]["recommended"] for row in split.rows]
    answers, retrieved = answers_of(split), retrieve(split, retriever)
    table = []
    for fusion in (Fusion(*pair) for pair in product(WEIGHTS, CONSTANTS)):
        lists = fuse_rows(split, fusion, written, retrieved)
        table.append({"weight": fusion.weight, "constant": fusion.constant, "ndcg": mean_ndcg(lists, answers, k)})
    best = max(table, key=lambda row: row["ndcg"])
    chosen = {name: best[name] for name in ("weight", "constant")}
    of = {"model": settings["model"], "lists": file, "k": k, "data": settings["data"], "table": table}
    write_json(folder / NOTES, notes | {"fusion": chosen, "fusion_of": of})
    return {**best, **of}


@says_user_errors
def main(arguments: list[str]) -> int:
    summary, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(prog="convrec retrieval fit", description=summary)
    add = parser.add_argument
    add("--train", type=Path, nargs="+", required=True, metavar="FILE", help="training tables of RL")
    add("--validation", type=Path, required=True, metavar="FILE", help="rows on which weights are chosen")
    add("--catalog", type=Path, required=True, help=".parquet or .pkl")
    add("--out", type=Path, help="folder to write (beside the catalog, CATALOG.retrieval)")
    add("--overwrite", action="store_true", help="replace a folder that is there")
    notes = fit_retrieval(**vars(parser.parse_args(arguments)))
    figures = [{"model": name, f"ndcg@{K}": value} for name, value in notes[f"ndcg@{K}"].items()]
    print(text_table(figures, line_a_model=True))
    print(f"chosen on {notes['files']['validation']}: {json.dumps(notes['choice'])}\nwritten to {notes['out']}")
    return 0


@says_user_errors
def weigh_main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="convrec retrieval weigh", description="The weight beside a model's lists.")
    add = parser.add_argument
    add("--retrieval", type=Path, required=True, metavar="FOLDER", help="what `convrec retrieval fit` wrote")
    add("--evaluation", type=Path, required=True, metavar="OUT", help="of `convrec evaluate`, on validation rows")
    given = parser.parse_args(arguments)
    found = weigh(given.retrieval, given.evaluation)
    lines = {row["weight"]: {"model": f"weight {row['weight']:g}"} for row in found["table"]}
    for row in found["table"]:
        lines[row["weight"]][f"constant {row['constant']:g}"] = row["ndcg"]
    print(text_table([*lines.values()], line_a_model=True))
    print(
        f"chosen: weight {found['weight']:g} for the model, constant {found['constant']:g}; noted in {given.retrieval}"
    )
    return 0
