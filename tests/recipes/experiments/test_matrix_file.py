"""The matrix file: what it says becomes runs, and a mistake in it is named."""

from pathlib import Path

import pytest

from convrec.base.errors import UserError
from recipes.experiments.matrix_file import read_matrix
from recipes.experiments.matrix_runs import LONGEST_NAME, expand_matrix

ROOT = Path(__file__).resolve().parents[3]


def test_the_shipped_matrix_has_every_variant_with_its_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIAL", "/data/redial")
    read = read_matrix(ROOT / "benchmarks" / "studies" / "redial_matrix.yaml")
    runs = {run.name: run for run in expand_matrix(read)}
    assert len(runs) == 2 + 7 * 2
    assert runs["sft"].start == "sft_titles"
    assert runs["sft"].variables["LR"] == "3e-3"  # its own, not that of all
    assert runs["rank_exp_inf_mu2-s3408"].variables.items() >= {"MU": "2", "SEED": "3408", "LR": "2e-4"}.items()
    assert all(run.start == "sft" for run in runs.values() if run.recipe == "rank_grpo")
    budgets = {
        (run.variables["TOTAL_STEPS"], run.variables["ROLLOUT_N"]) for run in runs.values() if run.recipe != "sft"
    }
    assert len(budgets) == 1  # the same rollouts for all
    assert "--source /data/redial" in read.prepare[0].run


def test_example_matrix_gives_all_methods_equal_rollouts() -> None:
    read = read_matrix(ROOT / "docs" / "examples" / "matrix.yaml")
    start, *others = expand_matrix(read)
    assert (start.name, start.recipe) == ("sft", "sft")
    assert {run.start for run in others} == {"sft"}
    varied = ("ALGORITHM", "REWARD", "CONSTRAINED")
    assert [tuple(run.variables.get(name, "") for name in varied) for run in others] == [
        ("grpo", "", ""),
        ("gspo", "", ""),
        ("", "log_decay", ""),
        ("", "exp_inf", ""),
        ("", "log_decay", "1"),
        ("", "exp_inf", "1"),
    ]
    kept = [{name: value for name, value in run.variables.items() if name not in varied} for run in others]
    assert all(variables == kept[0] for variables in kept)
    assert read.evaluate["baselines"] == ["popularity", "retrieval"]


def test_the_study_has_a_start_for_each_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GRPO", "GSPO", "EXP_INF", "LOG_DECAY"):
        monkeypatch.setenv(f"LR_{name}", "1e-4")
    runs = expand_matrix(read_matrix(ROOT / "benchmarks" / "studies" / "ranks" / "study.yaml"))
    assert [run.start for run in runs if run.variant == "gspo"] == ["sft-s3407", "sft-s3408", "sft-s3409"]
    rates = {
        run.name: run for run in expand_matrix(read_matrix(ROOT / "benchmarks" / "studies" / "ranks" / "rates.yaml"))
    }
    assert rates["gspo_3e-4"].variables.items() >= {"ALGORITHM": "gspo", "LR": "3e-4", "TOTAL_STEPS": "100"}.items()
    assert len(rates) == 1 + 4 * 4  # a start, then four rates for each method


def test_every_shipped_matrix_comes_to_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REDIAL", "MOVIES", "LR_GRPO", "LR_GSPO", "LR_EXP_INF", "LR_LOG_DECAY"):
        monkeypatch.setenv(name, "1e-4")
    monkeypatch.setenv("STEPS", "120")
    files = [path for path in (ROOT / "benchmarks" / "studies").rglob("*.yaml") if "runs:" in path.read_text()]
    files.append(ROOT / "docs" / "examples" / "matrix.yaml")
    assert len(files) >= 5
    for file in files:
        assert expand_matrix(read_matrix(file)), file


EVALUATE = "evaluate: {data: d, catalog: c}\n"
RUNS = "out: o\nruns: {a: {}}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("out: $NOT_SET_ANYWHERE\nruns: {}\n" + EVALUATE, "NOT_SET_ANYWHERE is not set"),
        ("out: o\nruns: {}\n", r"evaluate: missing; give names with their values, such as {data: test\.parquet"),
        ("[1]", r"matrix\.yaml: out: missing; give the name of a folder"),
        (RUNS + EVALUATE + "seedz: [1]\n", r"seedz is no setting here; did you mean seeds\?"),
        ("out: o\nruns: [a]\n" + EVALUATE, r"matrix\.yaml: runs: expected names with their settings, such as {a: {re"),
        ("out: o\nruns: {}\n" + EVALUATE, "runs: there is none"),
        (RUNS + "variables: [LR]\n" + EVALUATE, "variables: expected names with their values, such as {LR: 1e-6}"),
        (
            RUNS + "seeds: 3\n" + EVALUATE,
            r"seeds: expected a list .* an integer of at least 0; it is 3",
        ),
        (RUNS + "seeds: [1, -1]\n" + EVALUATE, r"seeds\.1: expected a list in \[\], each of it an integer.*; it is -1"),
        (RUNS + "seeds:\n" + EVALUATE, "seeds: expected a list"),
        (RUNS + "seeds: []\n" + EVALUATE, "runs: there is none"),
        (
            RUNS + "evaluate: {data: d, catalog: c, sampling: {model: x}}\n",
            r"evaluate\.sampling: .*; model is none; it is {'model': 'x'}",
        ),
        (
            RUNS + "evaluate: {data: d, catalog: c, protocols: [papr]}\n",
            r"evaluate\.protocols\.0: .*'paper'.*; it is papr",
        ),
        (RUNS + "evaluate:\n", "evaluate: expected names with their values, such as {data: test.parquet, "),
        (RUNS + "evaluate: {catalog: c}\n", r"evaluate\.data: missing; give the split to score"),
        (RUNS + "evaluate: {data: d}\n", r"evaluate\.catalog: missing; give the catalog of its items"),
        (RUNS + "evaluate: {top_k: 5}\n", r"evaluate\.top_k is no setting here; there are data, catalog, train"),
        (RUNS + "evaluate: {num_item: 5}\n", r"evaluate\.num_item is no .*; did you mean num_items\?"),
        (RUNS + "evaluate: {against: x}\n", r"evaluate\.against is no setting"),
        (RUNS + "evaluate: {data: d, catalog: c, ks: 5}\n", r"evaluate\.ks: Input should be a valid list; it is 5"),
        (RUNS + "evaluate: {data: d, catalog: c, limit: x}\n", r"evaluate\.limit: .*valid integer; it is x"),
        (
            RUNS + "evaluate: {data: d, catalog: c, baselines: [oracle]}\n",
            r"evaluate\.baselines\.0: .*'popularity'.*",
        ),
        ("out: o\nruns: {a: {start: b}}\n" + EVALUATE, r"runs\.a: start=b: no run of that name comes before"),
        ("out: o\nruns: {a: {variables: {LEARNING_RATE: 1}}}\n" + EVALUATE, r"runs\.a: LEARNING_RATE is no variable"),
        ("out: o\nruns: {a: {variables: {MU: x}}}\n" + EVALUATE, r"runs\.a: MU=x: expected a positive integer"),
        ("out: o\nruns: {a: {variables: {MU: [1, 0]}}}\n" + EVALUATE, r"runs\.a: MU=0: expected a positive integer"),
        ("out: o\nruns: {a: {recipe: dpo}}\n" + EVALUATE, r"runs\.a: recipe: expected sft or rank_grpo; it is dpo"),
        ("out: o\nruns: {a: {seed: 5}}\n" + EVALUATE, r"runs\.a: seed is no setting here; did you mean seeds\?"),
        ("out: o\nruns: {a: sft}\n" + EVALUATE, r"runs\.a: expected names with their settings.*; it is sft"),
        ("out: o\nruns: {a: {seeds: 5}}\n" + EVALUATE, r"runs\.a: seeds: expected a list"),
        ("out: o\nruns: {a: {overrides: b=1}}\n" + EVALUATE, r"runs\.a: overrides: expected a list .*; it is b=1"),
        ("out: o\nseeds: [1, 1]\nruns: {a: {}}\n" + EVALUATE, "a-s1: two runs have this name"),
        ("out: o\nseeds: [1, 2]\nruns: {a-s2: {seeds: [1]}, a: {}}\n" + EVALUATE, "a-s2: two runs have this name"),
        ("out: o\n\truns: {}\n", r"(?s)matrix\.yaml: not readable as YAML .*; indent with spaces"),
        ("out: o\nruns: {a: {\n" + EVALUATE, "not readable as YAML"),
        ("out:\nruns: {a: {}}\n" + EVALUATE, r"out: expected the name of a folder"),
        (RUNS + "prepare: [{run: x}]\n" + EVALUATE, r"prepare\.0\.creates: expected {creates: FILE, run: COMMAND} for"),
        (RUNS + "prepare: x\n" + EVALUATE, "prepare: expected"),
        ("out: o\nruns: {1: {}}\n" + EVALUATE, r"runs\.1: the name of a run becomes a folder in out"),
        ("out: o\nruns: {../../x: {}}\n" + EVALUATE, r"runs\.\.\./\.\./x: the name of a run becomes a folder"),
        ("out: o\nruns: {evaluation: {}}\n" + EVALUATE, "none of evaluation, plots, logs"),
        ("out: o\nruns: {a: {variables: {SAVE_PATH: x}}}\n" + EVALUATE, r"runs\.a: SAVE_PATH: a run's folder is its"),
        (f"out: o\nruns: {{{'a' * (LONGEST_NAME + 1)}: {{}}}}\n" + EVALUATE, "longer than"),
    ],
)
def test_a_mistake_in_the_file_is_named(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "matrix.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        expand_matrix(read_matrix(file))


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").write_bytes(b"out: \xff\n")
    with pytest.raises(UserError, match=r"matrix\.yaml: not readable as YAML"):
        read_matrix(tmp_path / "matrix.yaml")
