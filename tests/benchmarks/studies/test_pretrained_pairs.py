"""The study with a pretrained model: its runs are alike, and its differences are paired by conversation and seed."""

from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks.studies.pretrained_pairs import CONTRASTS, find_figures, format_differences, match_runs
from convrec.base.files import write_table
from recipes.experiments.matrix_file import Matrix, read_matrix
from recipes.experiments.matrix_runs import MatrixRun, expand_matrix

FILE = Path(__file__).resolve().parents[3] / "benchmarks" / "studies" / "pretrained.yaml"
VALUES = {"REDIAL": "redial", "SMOLLM2": "model", "FORM": "redial500", "SPLIT": "test", "SEEDS": "[3407, 3408]"}
RATES = ("LR_GRPO", "LR_GSPO", "LR_EXP_INF", "LR_LOG_DECAY", "LR_LIST", "LR_RANK")
# The plan's values for a GPU, for the rates, and for two CPU cores.
SIZES = (
    {"PROMPTS": "16", "RL_STEPS": "120", "SAVE_EVERY": "40", "SFT_STEPS": "480"},
    {"PROMPTS": "16", "RL_STEPS": "60", "SAVE_EVERY": "40", "SFT_STEPS": "480"},
    {"PROMPTS": "8", "RL_STEPS": "40", "SAVE_EVERY": "8", "SFT_STEPS": "240"},
)


def read_study(monkeypatch: pytest.MonkeyPatch, sizes: dict[str, str]) -> Matrix:
    for name, value in (VALUES | sizes | dict.fromkeys(RATES, "3e-5")).items():
        monkeypatch.setenv(name, value)
    return read_matrix(FILE)


def make_run(name: str, variant: str, seed: str, start: str | None = None) -> MatrixRun:
    return MatrixRun(name, variant, "rank_grpo", start, {"SEED": seed})


def test_runs_differ_in_their_method_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [run for run in expand_matrix(read_study(monkeypatch, SIZES[0])) if run.start]
    methods = ("ALGORITHM", "REWARD", "CONSTRAINED", "REPAIR", "SEED")
    shared = [{name: value for name, value in run.variables.items() if name not in methods} for run in runs]
    assert all(variables == shared[0] for variables in shared)
    assert {run.start for run in runs} == {"sft", "sft_random"}


def test_contrasts_name_variants_of_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    variants = {run.variant for run in expand_matrix(read_study(monkeypatch, SIZES[0]))}
    assert {variant for contrast in CONTRASTS for variant in contrast} <= variants


@pytest.mark.parametrize("sizes", SIZES)
def test_the_last_step_is_the_only_one_saved_and_validated(
    sizes: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # a run folder stands for its best validated checkpoint, and the plan compares runs after equally many updates
    run = next(run for run in expand_matrix(read_study(monkeypatch, sizes)) if run.start)
    last = int(run.variables["TOTAL_STEPS"])
    saved, validated = ({*range(0, last, int(run.variables[name]))} for name in ("SAVE_FREQ", "TEST_FREQ"))
    assert saved & validated == {0}


def test_a_run_is_paired_with_its_start_or_by_seed() -> None:
    start = make_run("sft", "sft", "1")
    first = [make_run(f"a-s{seed}", "a", seed, "sft") for seed in ("1", "2")]
    second = [make_run(f"b-s{seed}", "b", seed, "sft") for seed in ("2", "3")]
    assert match_runs(first, [start]) == [(first[0], start), (first[1], start)]
    assert match_runs(first, second) == [(first[1], second[0])]


def test_a_difference_is_the_mean_over_conversations_and_seeds(tmp_path: Path) -> None:
    start = make_run("sft", "sft", "1")
    runs = [make_run(f"grpo-s{seed}", "grpo", seed, "sft") for seed in ("1", "2")]
    keys = {"sample_id": ["a", "b"], "prompt_id": ["a", "b"], "request": ["negation", "plain"], "num_truth": [1, 1]}
    figures = {"sft": [0.25, 0.5], "grpo-s1": [0.75, 0.5], "grpo-s2": [0.5, 0.5]}
    for run in (start, *runs):
        for lists in ("free", "constrained", "fused", "retrieval"):
            values = figures[run.name] if lists == "free" else [0.5, 0.5]
            table = pa.table(keys | {"ndcg@20": values, "recall@20": values})
            write_table(find_figures(run, tmp_path, lists) / "rows.parquet", table)
    lines = format_differences([start, *runs], tmp_path, ["negation"]).splitlines()
    free = [line for line in lines if line.startswith("| grpo - sft | free")]
    # seed 1: (.5 + 0) / 2, seed 2: (.25 + 0) / 2; of the negation alone .5 and .25
    assert free[0].startswith("| grpo - sft | free | all | 2 | +0.1875 ± ")
    assert free[1].startswith("| grpo - sft | free | negation | 2 | +0.3750 ± ")
    assert " | 0.0884 | " in free[0]  # standard deviation of .25 and .125
    assert sum(line.startswith("| grpo - retrieval | ") for line in lines) == 6
