"""What reading candidates, Rank-GRPO and fusion add: results of retrieval_study.py, paired by conversation and seed.

    python -m benchmarks.studies.retrieval_pairs outputs/retrieval_study/sample

Evaluations keep each conversation's figures of a model's own lists. Those of the retrieval and of fused lists are
computed here again, must have the mean that the evaluation wrote, and lie in OUT/conversations. OUT/pairs.md has the
differences, with errors over conversations, and of the hard requests also by kind.
"""

import argparse
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.studies.ranks.comparisons import NDCG, RECALL, K, difference
from benchmarks.studies.retrieval_study import CONSTRAINED, ITEMS, PROMPT, SEEDS, SIZES, VARIANTS, evaluations, runs
from convrec.base.files import read_json, write_table, write_text
from convrec.lists.settings import ListSettings
from convrec.retrieval.folder import load, load_notes
from convrec.retrieval.retriever import DEPTH, Fusion
from recipes.evaluation.retrieval import retrieve
from recipes.evaluation.scoring import Scored, score_responses
from recipes.evaluation.split import Split, read_split, to_items
from recipes.experiments.matrix_runs import MatrixRun

OF_MODEL = {"free": "rows.parquet", "constrained": "rows_constrained.parquet"}
LISTS = ("free", "constrained", "fused")


def write_conversations(out: Path, run: MatrixRun) -> None:
    """Write each conversation's figures of a run's lists: free, constrained, retrieval, fused.

    Args:
        out: folder of the study; conversations/VARIANT/LISTS-sSEED in it gets rows.parquet.
        run: an evaluated run.

    Raises:
        ValueError: a mean is not that of the evaluation.
    """
    split, found = retrieved(out, Path(evaluations(run, out)[-1]["data"]).parent.name)
    fusion = Fusion(**load_notes(out / "weighed" / run.name, fuses=True)["fusion"])
    for name, rows in score_lists(out / "evaluation" / run.name, split, found, fusion).items():
        write_figures(_place(out, run.variant, name, run.name.rpartition("-s")[2]), split, rows)


def score_lists(folder: Path, split: Split, found: list[list[int]], fusion: Fusion) -> dict[str, list[dict[str, Any]]]:
    """Score an evaluation's free and constrained lists, the retrieval's, and the constrained ones fused with it.

    Args:
        folder: of the evaluation.
        split: the rows that it scored.
        found: the retrieval's list for each row.
        fusion: how the evaluation fused.

    Returns:
        Name of the lists -> figures of each row.

    Raises:
        ValueError: the mean of some lists is not the evaluation's.
    """
    written = {name: _rows(folder / file) for name, file in OF_MODEL.items()}
    named = [row["recommended"] for row in written["constrained"]]
    seen = (set(split.reader.seen_rows(row["seen_titles"])) for row in split.rows)
    allowed = [[item for item in items if item not in gone] for items, gone in zip(named, seen, strict=True)]
    fused = [fusion.of(*pair) for pair in zip(allowed, found, strict=True)]
    scored = written | {"retrieval": _score(split, found), "fused": _score(split, fused)}
    results = read_json(folder / "metrics.json")["results"]["paper"]
    for name, rows in scored.items():
        values = [row[NDCG] for row in rows if row["num_truth"]]
        mean, wanted = sum(values) / len(values), results["model" if name == "free" else name][NDCG]["mean"]
        if abs(mean - wanted) > 1e-6:
            raise ValueError(f"{folder}: {name} has {NDCG} {mean}, and {wanted} in its metrics.json")
    return scored


def write_figures(folder: Path, split: Split, rows: list[dict[str, Any]]) -> None:
    """Write FOLDER/rows.parquet: NDCG and Recall of each row, and the kind of its request."""
    keys = {"sample_id": [row["sample_id"] for row in split.rows], "prompt_id": split.prompt_ids}
    kinds = {"request": requests_of(Path(split.data)) or [""] * len(rows)}
    figures = {metric: [row[metric] for row in rows] for metric in (NDCG, RECALL, "num_truth")}
    write_table(folder / "rows.parquet", pa.table(keys | kinds | figures))


@cache
def retrieved(out: Path, data: str) -> tuple[Split, list[list[int]]]:
    """Return the test rows of a folder of tables, and the retrieval's list for each.

    Args:
        out: folder of the study.
        data: name of the folder in it. All runs that read it share the cached result.
    """
    catalog = out / "data" / "catalog.parquet"
    split = read_split(out / data / "test.parquet", catalog, ListSettings(num_items=ITEMS))
    retriever, _ = load(out / "retrieval", catalog, split.matcher)
    return split, retrieve(split, retriever, max(DEPTH, ITEMS))


def requests_of(data: Path) -> list[str]:
    """The kind of each request; [] where the table has none."""
    return pq.read_table(data)["request"].to_pylist() if "request" in pq.read_schema(data).names else []


def _place(out: Path, variant: str, lists: str, seed: str) -> Path:
    return out / "conversations" / variant / f"{lists}-s{seed}"


def _rows(file: Path) -> list[dict[str, Any]]:
    return pq.read_table(file, columns=["recommended", NDCG, RECALL, "num_truth"]).to_pylist()


def _score(split: Split, lists: list[list[int]]) -> Scored:
    items = [to_items(split.catalog, one[:ITEMS]) for one in lists]
    return score_responses(split, split.matcher, items, "paper", {"ks": (K,), "num_items": ITEMS})


def comparisons() -> list[tuple[str, tuple[str, str], tuple[str, str]]]:
    """(what, minuend, subtrahend), each a (variant, lists)."""
    found = []
    for variant in VARIANTS:
        found += [(f"{variant}, {of}, minus the retrieval", (variant, of), (variant, "retrieval")) for of in LISTS]
        found.append((f"{variant}, fused, minus its constrained lists", (variant, "fused"), (variant, "constrained")))
    for of in LISTS:
        for end in PROMPT:
            for first, second in (("rank_grpo", "sft"), (CONSTRAINED, "sft"), (CONSTRAINED, "rank_grpo")):
                found.append((f"{first}{end} minus {second}{end}, {of}", (f"{first}{end}", of), (f"{second}{end}", of)))
        for start in ("sft", "rank_grpo", CONSTRAINED):
            for end in (end for end in PROMPT if end):
                found.append((f"{start}{end} minus {start}, {of}", (f"{start}{end}", of), (start, of)))
    return found


def differences(out: Path, seeds: list[str], kinds: list[str | None]) -> str:
    """Return the table of pairs.md.

    Args:
        out: folder of the study.
        seeds: those that count where both sides have them.
        kinds: of requests, one row each; None for all requests.
    """
    lines = ["| | requests | seeds | ndcg@20 | recall@20 |", "|---|---|---|---|---|"]
    for what, first, second in comparisons():
        pairs = [(_place(out, *first, seed), _place(out, *second, seed)) for seed in seeds]
        pairs = [pair for pair in pairs if all((folder / "rows.parquet").exists() for folder in pair)]
        for kind in kinds if pairs else ():
            values = difference(pairs, {"request": kind} if kind else {})
            cells = (f"{values[metric][0]:+.4f} ({values[metric][1]:.4f})" for metric in (NDCG, RECALL))
            lines.append(f"| {' | '.join([what, kind or 'all', str(len(pairs)), *cells])} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out.resolve()
    for run in runs(out, SIZES):
        if (out / "evaluation" / run.name / "metrics.json").exists():
            write_conversations(out, run)
    kinds = sorted({*requests_of(out / "data" / "test.parquet")})
    write_text(out / "pairs.md", differences(out, [*map(str, SEEDS)], [None, *kinds]))
    print(out / "pairs.md")


if __name__ == "__main__":
    main()
