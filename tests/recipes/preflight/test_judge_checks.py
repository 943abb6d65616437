"""Bad input for a judge is one clear message before Ray starts; good input passes."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.base.errors import UserError
from convrec.judges.schema import judge_schema, make_row, swap_row
from recipes import evaluate
from recipes.judge.evaluation import format_metrics
from recipes.launch import runner, settings
from recipes.launch.recipe import RECIPES
from recipes.preflight import judge_checks as checks
from tests.user_errors import refuses

USER = [{"role": "user", "content": "A horror film?"}]


@pytest.fixture
def run(set_variables: Callable[[dict[str, str]], None], good: dict[str, str], tmp_path: Path) -> Path:
    """The environment of a small pairwise run that would start."""
    rows = [make_row(USER, ["Alien.", "Up."], label, "test") for label in "AB" * 4]
    pq.write_table(pa.Table.from_pylist(rows, judge_schema("pairwise")), tmp_path / "rows.parquet")
    files = dict.fromkeys(("TRAIN_FILE", "VAL_FILE"), str(tmp_path / "rows.parquet"))
    set_variables(good | files | {"MAX_PROMPT_LENGTH": "512", "ROLLOUT_N": "4"})
    return tmp_path


def test_the_settings_these_tests_break_are_good(run: Path) -> None:
    assert checks.check_judge(settings.compose("judge_pairwise", [])) == []


@pytest.mark.parametrize(
    ("variables", "code", "values"),
    [
        ({"TRAIN_FILE": "none.parquet"}, "preflight.missing-file", ["none.parquet", "convrec data judge-sample"]),
        ({"ROLLOUT_N": "1"}, "preflight.too-few-rollouts", ["ROLLOUT_N=1"]),
        (
            {"N_GPUS_PER_NODE": "3", "TRAIN_BATCH_SIZE": "3"},
            "preflight.tensor-parallel",
            ["TENSOR_PARALLEL=3", "4 attention heads"],
        ),
        (
            {"N_GPUS_PER_NODE": "4", "TRAIN_BATCH_SIZE": "8", "ROLLOUT_N": "3"},
            "preflight.indivisible-batch",
            ["mini_batch_size=2", "ROLLOUT_N=3", "4 devices"],
        ),
    ],
)
def test_wrong_variables(
    run: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], code: str, values: list[str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with refuses(code, *values):
        checks.check_judge(settings.compose("judge_pairwise", []))


@pytest.mark.parametrize("orders", ["consistent", "together"])
def test_both_orders_are_there_where_they_count_together(
    run: Path, monkeypatch: pytest.MonkeyPatch, orders: str
) -> None:
    def check(*overrides: str) -> list[str]:
        return checks.check_judge(settings.compose("judge_pairwise", [f"convrec.orders={orders}", *overrides]))

    with pytest.raises(UserError, match=r"TRAIN_FILE=.*rows 0, 1, 2, 3, 4 and 3 more: .*--both-orders"):
        check()
    row = make_row(USER, ["Alien.", "Up."], "A", "test")
    table = pa.Table.from_pylist([row, swap_row(row)] * 4, judge_schema("pairwise"))
    pq.write_table(table, run / "both.parquet")
    monkeypatch.setenv("TRAIN_FILE", str(run / "both.parquet"))
    assert check() == []
    with refuses("judges.group-filter", "convrec.orders="):
        check("algorithm.filter_groups.enable=true")
    monkeypatch.setenv("TRAIN_BATCH_SIZE", "3")
    with refuses("judges.odd-batch", "TRAIN_BATCH_SIZE=3"):
        check()


def test_data_of_the_other_judge_mode_is_refused(run: Path, capfd: Any) -> None:
    assert runner.run(RECIPES["judge_pointwise"], []) == 2
    assert (
        "rows.parquet: rows 0, 1, 2, 3, 4 and 3 more: `output` does not hold exactly 1 answer" in capfd.readouterr().err
    )
    assert not (run / "run").exists()


# ---- evaluation: errors before vLLM starts, and the printed metrics


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--judge", "pairwise", "--data", "none.parquet"], "none.parquet: no such file"),
        (["--judge=pairwise", "--data", "none.parquet"], "none.parquet: no such file"),
        (["--judge", "pointwise", "--data", "rows.parquet"], "exactly 1 answer"),
        (["--judge", "pairwise", "--data", "rows.parquet", "--against", "other"], "--against other: no metrics.json"),
    ],
)
def test_evaluation_refuses(
    run: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(run)
    assert evaluate.main([*arguments, "--model", str(model), "--out", "out"]) == 2
    assert said in capsys.readouterr().err
    assert not (run / "out").exists()


def test_judge_model_without_tokenizer_is_refused_everywhere(
    run: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    own = shutil.copytree(model, run / "own")
    (own / "tokenizer.json").unlink()
    monkeypatch.setenv("MODEL_PATH", str(own))
    with pytest.raises(UserError, match=r"MODEL_PATH=.*/own: the tokenizer has 3 ids"):
        checks.check_judge(settings.compose("judge_pairwise", []))
    monkeypatch.chdir(run)
    arguments = ["--judge", "pairwise", "--data", "rows.parquet", "--model", str(own), "--out", "out"]
    assert evaluate.main(arguments) == 2
    assert "--model " in (said := capsys.readouterr().err)
    assert "the tokenizer has 3 ids" in said


def test_numbers_have_their_errors_and_the_baseline_beside_them() -> None:
    text = format_metrics(
        {
            "settings": {"data": "rows.parquet", "judge": "pointwise"},
            "results": {
                "n": 4,
                "num_contexts": 3,
                "exact_match": {"mean": 0.5, "se": 0.25},
                "mae": {"mean": float("nan"), "se": float("nan")},
                "baseline": {"exact_match": 0.3},
            },
            "generation": {
                "generated": 1,
                "prompts": 4,
                "seconds": 2.0,
                "too_long_left_out": 5,
                "unfinished_responses": 0,
            },
            "paired": {
                "against": "other",
                "n": 4,
                "exact_match": {"mean": 0.1, "se": 0.05},
                "reward": {"mean": float("nan"), "se": float("nan")},
            },
        }
    )
    assert "rows.parquet: 4 rows, 3 queries, pointwise judge" in text
    assert "exact_match       0.5000 ±0.2500   0.3000 for a constant verdict" in text
    assert "mae               – ±–" in text
    assert "minus other, 4 rows paired:\n  exact_match       +0.1000 ±0.0500\n  reward            –" in text
    assert "1 of 4 prompts generated in 2 s" in text
    assert "5 rows too long" in text
