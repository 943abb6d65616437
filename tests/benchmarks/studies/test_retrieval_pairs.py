"""The comparisons of the study of retrieval are of runs that it makes, and are paired by conversation and seed."""

from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks.studies.retrieval_pairs import comparisons, differences
from benchmarks.studies.retrieval_study import SMALLEST, runs
from convrec.base.files import write_table


def test_comparisons_are_of_the_studys_variants_each_once(tmp_path: Path) -> None:
    variants = {run.variant for run in runs(tmp_path, SMALLEST)}
    compared = [(first, second) for _, first, second in comparisons()]
    assert len({*compared}) == len(compared)
    assert {variant for pair in compared for variant, _ in pair} == variants


@pytest.mark.parametrize(("kind", "gain"), [(None, 0.25), ("negation", 0.5)])
def test_a_difference_is_the_mean_over_conversations_and_seeds(tmp_path: Path, kind: str | None, gain: float) -> None:
    keys = {"sample_id": ["a", "b"], "prompt_id": ["a", "b"], "request": ["negation", "plain"], "num_truth": [1, 1]}
    for lists, figures in (("free", [0.75, 0.5]), ("retrieval", [0.25, 0.5])):
        file = tmp_path / "conversations" / "sft" / f"{lists}-s1" / "rows.parquet"
        write_table(file, pa.table(keys | {"ndcg@20": figures, "recall@20": figures}))
    (line,) = differences(tmp_path, ["1", "2"], [kind]).splitlines()[2:]  # of seed 2 there is nothing
    assert line.startswith(f"| sft, free, minus the retrieval | {kind or 'all'} | 1 | {gain:+.4f} (")
