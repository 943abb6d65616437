"""The matrix file: it becomes runs, and an error names the mistake in it."""

from pathlib import Path

import pytest

from convrec.base.errors import UserError
from recipes.experiments.matrix_file import read_matrix
from recipes.experiments.matrix_runs import MAX_NAME_LENGTH, expand_matrix
from tests.user_errors import refuses

ROOT = Path(__file__).resolve().parents[3]


def test_the_shipped_matrix_has_every_variant_with_its_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIAL", "/data/redial")
    read = read_matrix(ROOT / "benchmarks" / "studies" / "redial_matrix.yaml")
    runs = {run.name: run for run in expand_matrix(read)}
    assert len(runs) == 2 + 7 * 2
    assert runs["sft"].start == "sft_titles"
    assert runs["sft"].variables["LR"] == "3e-3"  # its own value overrides the common one
    assert runs["rank_exp_inf_mu2-s3408"].variables.items() >= {"MU": "2", "SEED": "3408", "LR": "2e-4"}.items()
    assert all(run.start == "sft" for run in runs.values() if run.recipe == "rank_grpo")
    budgets = {
        (run.variables["TOTAL_STEPS"], run.variables["ROLLOUT_N"]) for run in runs.values() if run.recipe != "sft"
    }
    assert len(budgets) == 1  # all methods have the same budget
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
    others_fixed = [{name: value for name, value in run.variables.items() if name not in varied} for run in others]
    assert all(variables == others_fixed[0] for variables in others_fixed)
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


def test_every_shipped_matrix_expands_to_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REDIAL", "MOVIES", "LR_GRPO", "LR_GSPO", "LR_EXP_INF", "LR_LOG_DECAY", "LR_LIST", "LR_RANK"):
        monkeypatch.setenv(name, "1e-4")
    for name in ("STEPS", "SFT_STEPS", "RL_STEPS", "SAVE_EVERY", "PROMPTS"):
        monkeypatch.setenv(name, "120")
    for name, value in {"SMOLLM2": "model", "FORM": "hard", "SPLIT": "test", "SEEDS": "[3407]"}.items():
        monkeypatch.setenv(name, value)
    files = [path for path in (ROOT / "benchmarks" / "studies").rglob("*.yaml") if "runs:" in path.read_text()]
    files.append(ROOT / "docs" / "examples" / "matrix.yaml")
    assert len(files) >= 5
    for file in files:
        assert expand_matrix(read_matrix(file)), file


EVALUATE = "evaluate: {data: d, catalog: c}\n"
RUNS = "out: o\nruns: {a: {}}\n"


@pytest.mark.parametrize(
    ("text", "code", "values"),
    [
        ("out: $NOT_SET_ANYWHERE\nruns: {}\n" + EVALUATE, "unset-variable", ["NOT_SET_ANYWHERE"]),
        ("out: o\nruns: {}\n", "missing-setting", ["evaluate: ", "{data: test.parquet"]),
        ("[1]", "missing-setting", ["matrix.yaml: out: "]),
        (RUNS + EVALUATE + "seedz: [1]\n", "unknown-setting", ["seedz", "did you mean seeds?"]),
        ("out: o\nruns: [a]\n" + EVALUATE, "wrong-setting", ["matrix.yaml: runs=", "{a: {recipe: sft}}"]),
        ("out: o\nruns: {}\n" + EVALUATE, "no-runs", ["runs: "]),
        (RUNS + "variables: [LR]\n" + EVALUATE, "wrong-setting", ["variables=", "{LR: 1e-6}"]),
        (RUNS + "seeds: 3\n" + EVALUATE, "wrong-setting", ["seeds=3: "]),
        (RUNS + "seeds: [1, -1]\n" + EVALUATE, "wrong-setting", ["seeds.1=-1: "]),
        (RUNS + "seeds:\n" + EVALUATE, "wrong-setting", ["seeds=null: "]),
        (RUNS + "seeds: []\n" + EVALUATE, "no-runs", ["runs: "]),
        (
            RUNS + "evaluate: {data: d, catalog: c, sampling: {model: x}}\n",
            "wrong-setting",
            ["evaluate.sampling={'model': 'x'}: "],
        ),
        (
            RUNS + "evaluate: {data: d, catalog: c, protocols: [papr]}\n",
            "wrong-setting",
            ["evaluate.protocols.0=papr: ", "'paper'"],
        ),
        (RUNS + "evaluate:\n", "wrong-setting", ["evaluate=null: ", "{data: test.parquet"]),
        (RUNS + "evaluate: {catalog: c}\n", "missing-setting", ["evaluate.data: "]),
        (RUNS + "evaluate: {data: d}\n", "missing-setting", ["evaluate.catalog: "]),
        (RUNS + "evaluate: {top_k: 5}\n", "unknown-setting", ["evaluate.top_k: ", "data, catalog, train"]),
        (RUNS + "evaluate: {num_item: 5}\n", "unknown-setting", ["evaluate.num_item: ", "did you mean num_items?"]),
        (RUNS + "evaluate: {against: x}\n", "unknown-setting", ["evaluate.against: "]),
        (RUNS + "evaluate: {data: d, catalog: c, ks: 5}\n", "wrong-setting", ["evaluate.ks=5: "]),
        (RUNS + "evaluate: {data: d, catalog: c, limit: x}\n", "wrong-setting", ["evaluate.limit=x: "]),
        (
            RUNS + "evaluate: {data: d, catalog: c, baselines: [oracle]}\n",
            "wrong-setting",
            ["evaluate.baselines.0=oracle: ", "'popularity'"],
        ),
        ("out: o\nruns: {a: {start: b}}\n" + EVALUATE, "unknown-start", ["runs.a: start=b: "]),
        ("out: o\nruns: {a: {variables: {LEARNING_RATE: 1}}}\n" + EVALUATE, "unknown-variable", ["runs.a: LEARNING"]),
        ("out: o\nruns: {a: {recipe: dpo}}\n" + EVALUATE, "wrong-setting", ["runs.a: recipe=dpo: ", "sft or rank"]),
        ("out: o\nruns: {a: {seed: 5}}\n" + EVALUATE, "unknown-setting", ["runs.a: seed: ", "did you mean seeds?"]),
        ("out: o\nruns: {a: sft}\n" + EVALUATE, "wrong-setting", ["runs.a=sft: "]),
        ("out: o\nruns: {a: {seeds: 5}}\n" + EVALUATE, "wrong-setting", ["runs.a: seeds=5: "]),
        ("out: o\nruns: {a: {overrides: b=1}}\n" + EVALUATE, "wrong-setting", ["runs.a: overrides=b=1: "]),
        ("out: o\nseeds: [1, 1]\nruns: {a: {}}\n" + EVALUATE, "duplicate-run", ["a-s1"]),
        ("out: o\nseeds: [1, 2]\nruns: {a-s2: {seeds: [1]}, a: {}}\n" + EVALUATE, "duplicate-run", ["a-s2"]),
        ("out: o\n\truns: {}\n", "invalid-yaml", ["matrix.yaml: "]),
        ("out: o\nruns: {a: {\n" + EVALUATE, "invalid-yaml", ["matrix.yaml: "]),
        ("out:\nruns: {a: {}}\n" + EVALUATE, "wrong-setting", ["out=null: "]),
        (RUNS + "prepare: [{run: x}]\n" + EVALUATE, "wrong-setting", ["prepare.0.creates=", "{creates: FILE, run: "]),
        (RUNS + "prepare: x\n" + EVALUATE, "wrong-setting", ["prepare=x: "]),
        ("out: o\nruns: {1: {}}\n" + EVALUATE, "run-name", ["runs.1: "]),
        ("out: o\nruns: {../../x: {}}\n" + EVALUATE, "run-name", ["runs.../../x: "]),
        ("out: o\nruns: {evaluation: {}}\n" + EVALUATE, "run-name", ["runs.evaluation: ", "evaluation, plots, logs"]),
        ("out: o\nruns: {a: {variables: {SAVE_PATH: x}}}\n" + EVALUATE, "save-path", ["runs.a: SAVE_PATH=x: "]),
        (f"out: o\nruns: {{{'a' * (MAX_NAME_LENGTH + 1)}: {{}}}}\n" + EVALUATE, "long-name", [MAX_NAME_LENGTH]),
    ],
)
def test_a_mistake_in_the_file_is_named(text: str, code: str, values: list[str], tmp_path: Path) -> None:
    file = tmp_path / "matrix.yaml"
    file.write_text(text)
    with refuses(f"matrix.{code}", *values):
        expand_matrix(read_matrix(file))


@pytest.mark.parametrize(("variables", "value"), [("{MU: x}", "runs.a: MU=x: "), ("{MU: [1, 0]}", "runs.a: MU=0: ")])
def test_a_wrong_value_of_a_variable_is_named_with_its_run(variables: str, value: str, tmp_path: Path) -> None:
    file = tmp_path / "matrix.yaml"
    file.write_text(f"out: o\nruns: {{a: {{variables: {variables}}}}}\n{EVALUATE}")
    with pytest.raises(UserError) as error:
        expand_matrix(read_matrix(file))
    assert str(error.value).startswith(value)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").write_bytes(b"out: \xff\n")
    with refuses("matrix.invalid-yaml", tmp_path / "matrix.yaml"):
        read_matrix(tmp_path / "matrix.yaml")
