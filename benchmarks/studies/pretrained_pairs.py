"""What the runs of pretrained.yaml gain: fused lists, and differences paired by conversation and seed.

    python -m benchmarks.studies.pretrained_pairs benchmarks/studies/pretrained.yaml

Run it after `convrec matrix`, with the same variables and SPLIT=test. It makes nothing again that is there, and writes
into the matrix's folder

weighed/RUN                the retrieval, with the weight that is best for this run on validation rows
fused/RUN                  the evaluation of RUN's lists fused with it, on test rows
conversations/RUN/LISTS    figures of each conversation; LISTS are free, constrained, fused and retrieval
pairs.md                   differences, with errors over conversations; of hard requests also by kind

The plan: notes/pretrained_study.md.
"""

import argparse
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.studies.ranks.comparisons import NDCG, RECALL, difference
from benchmarks.studies.retrieval_pairs import LISTS, requests_of, retrieved, score_lists, write_figures
from convrec.base.errors import UserError
from convrec.base.files import write_text
from convrec.inference.generate import reuse_engines
from convrec.retrieval.folder import load_notes
from convrec.retrieval.retriever import Fusion
from recipes.evaluation.options import EvaluationOptions
from recipes.evaluation.single import evaluate
from recipes.experiments.local_runs import make_evaluation_options
from recipes.experiments.matrix_file import read_matrix
from recipes.experiments.matrix_runs import MatrixRun, expand_matrix

# The first minus the second. The first line is the plan's primary comparison.
CONTRASTS = (
    ("rank_exp_inf_constrained", "list_credit_constrained"),
    ("rank_log_decay_constrained", "list_credit_constrained"),
    ("rank_exp_inf", "grpo"),
    ("rank_exp_inf", "gspo"),
    ("rank_log_decay", "grpo"),
    ("rank_log_decay", "gspo"),
    ("rank_exp_inf_constrained", "grpo"),
    ("rank_exp_inf_constrained", "rank_exp_inf"),
    ("repair_constrained", "rank_exp_inf_constrained"),
    ("rank_exp_inf_constrained", "random_exp_inf_constrained"),
    ("sft", "zero_shot"),
    ("sft", "sft_wanted"),
    ("sft", "sft_random"),
)
RETRIEVAL = "retrieval"
Runs = Sequence[MatrixRun]
Pairs = list[tuple[Path, Path]]  # folders of figures


def fuse(run: MatrixRun, out: Path, settings: Mapping[str, Any]) -> None:
    """Choose a run's weight beside the retrieval on validation rows, and evaluate its fused lists on test rows.

    Args:
        run: an evaluated run.
        out: the matrix's folder.
        settings: the section `evaluate` of the matrix.
    """
    data = Path(settings["data"])
    weighed = out / "weighed" / run.name
    fused = out / "fused" / run.name
    if (fused / "metrics.json").exists():
        return
    if not weighed.exists():
        shutil.copytree(data.parent.parent / RETRIEVAL, weighed)
    fused.mkdir(parents=True, exist_ok=True)
    for lists in (out / "evaluation" / run.name).glob("generations*.parquet"):
        shutil.copy(lists, fused)  # the model's lists are not written again
    options = make_evaluation_options(run, out, settings)
    options |= {"retrieval": str(weighed), "against": None, "out": str(fused)}
    validation = {"data": str(data.with_name("validation.parquet")), "out": f"{weighed}_lists", "weigh": True}
    with reuse_engines():
        evaluate(EvaluationOptions(**options | validation))
        evaluate(EvaluationOptions(**options))


def write_conversations(run: MatrixRun, out: Path, settings: Mapping[str, Any]) -> None:
    """Write the figures of a fused run's lists. Raises ValueError where a mean is not the evaluation's."""
    data = Path(settings["data"]).resolve().parent
    split, found = retrieved(data.parent, data.name)
    fusion = Fusion(**load_notes(out / "weighed" / run.name, fuses=True)["fusion"])
    for lists, rows in score_lists(out / "fused" / run.name, split, found, fusion).items():
        write_figures(find_figures(run, out, lists), split, rows)


def find_figures(run: MatrixRun, out: Path, lists: str) -> Path:
    """Return the folder of the figures of a run's lists."""
    return out / "conversations" / run.name / lists


def match_runs(first: Runs, second: Runs) -> list[tuple[MatrixRun, MatrixRun]]:
    """Pair each run with its start, if the second variant is that, or with the run of the same seed."""
    by_name = {run.name: run for run in second}
    by_seed = {run.seed: run for run in second}
    pairs = []
    for run in first:
        other = by_name.get(run.start or "") or by_seed.get(run.seed)
        if other:
            pairs.append((run, other))
    return pairs


def iter_comparisons(runs: Runs, out: Path) -> Iterator[tuple[str, str, Pairs]]:
    """Yield (difference, lists, figures of each pair of runs): CONTRASTS, minus the start, minus the retrieval."""
    variants: dict[str, list[MatrixRun]] = {}
    for run in runs:
        variants.setdefault(run.variant, []).append(run)
    variant_by_run = {run.name: run.variant for run in runs}
    starts = [(variant, variant_by_run.get(of_seeds[0].start or "")) for variant, of_seeds in variants.items()]
    for first, second in (*CONTRASTS, *starts):
        for lists in LISTS:
            matched = match_runs(variants.get(first, []), variants.get(second or "", []))
            pairs = [(find_figures(run, out, lists), find_figures(other, out, lists)) for run, other in matched]
            yield f"{first} - {second}", lists, pairs
    for variant, of_seeds in variants.items():
        for lists in LISTS:
            pairs = [(find_figures(run, out, lists), find_figures(run, out, RETRIEVAL)) for run in of_seeds]
            yield f"{variant} - {RETRIEVAL}", lists, pairs


def format_differences(runs: Runs, out: Path, kinds: Sequence[str]) -> str:
    """Format a table of all comparisons.

    Args:
        runs: with figures.
        out: the matrix's folder.
        kinds: of requests, each of which gets a line of its own.
    """
    header = ("difference", "lists", "requests", "seeds", NDCG, "sd of seeds", RECALL, "sd of seeds")
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    for name, lists, pairs in iter_comparisons(runs, out):
        if not pairs:
            continue
        for kind in (None, *kinds):
            values = difference(pairs, {"request": kind} if kind else {})
            cells = [name, lists, kind or "all", str(len(pairs))]
            for metric in (NDCG, RECALL):
                mean, error, deviation = values[metric]
                cells += [f"{mean:+.4f} ± {error:.4f}", f"{deviation:.4f}" if len(pairs) > 1 else "-"]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("matrix", type=Path, help="pretrained.yaml of this folder")
    options = parser.parse_args()
    try:
        matrix = read_matrix(options.matrix)
        out = Path(matrix.out).resolve()
        data = Path(matrix.evaluate["data"])
        if data.stem != "test":
            raise UserError("study.not-test", f"{data}: weights are chosen on validation rows. Set SPLIT=test.")
        evaluated = [run for run in expand_matrix(matrix) if (out / "evaluation" / run.name / "metrics.json").exists()]
        if not evaluated:
            raise UserError("study.nothing-evaluated", f"{out}: nothing is evaluated yet")
        for run in evaluated:
            fuse(run, out, matrix.evaluate)
            write_conversations(run, out, matrix.evaluate)
    except UserError as error:
        print(error.as_line(), file=sys.stderr)
        return 2
    text = format_differences(evaluated, out, sorted({*requests_of(data)}))
    write_text(out / "pairs.md", text)
    print(f"{text}\nwritten to {out}/pairs.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
