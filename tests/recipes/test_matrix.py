"""The command: parts of a matrix, the tables of all of it, what it says beforehand. The rest is in experiments/."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recipes import matrix
from recipes.evaluation.options import EvaluationOptions
from recipes.experiments import here
from recipes.experiments.matrix_file import Run

pytestmark = pytest.mark.usefixtures("here_alone")


@pytest.fixture
def here_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


SMALL = """
out: OUT
seeds: [1]
runs: {sft: {recipe: sft}, a: {recipe: sft, start: sft}, b: {recipe: sft, start: sft}}
evaluate: {data: d, catalog: c, ks: [5]}
"""


def metrics_of(value: float, gain: float | None, **settings: Any) -> dict[str, Any]:
    names = ("recall@5", "ndcg@5")
    model: dict[str, Any] = {name: {"mean": value, "se": None} for name in names}  # JSON's form of NaN
    model |= {"catalog_hit_ratio": 1.0, "repeats_per_list": 0.0, "distinct_items": 3}
    model |= {"items_per_list": 5.0, "list_length_errors": 0, "n": 2}
    model["calibration"] = {"mean": None, "se": None, "n": 0}  # no row has it
    part = {"n": 2, "ndcg@5": {"mean": value, "se": None}}
    found: dict[str, Any] = {
        "slices": {"turns": {"1": part}},
        "settings": {"data": "d", "catalog": "c", "protocols": ["paper"], "ks": [5], "catalog_items": 4} | settings,
        "results": {"paper": {"model": model}},
    }
    if gain is not None:
        found["paired"] = {name: {"mean": gain, "se": None, "p": None} for name in names}
    return found


def test_what_the_shell_gives_to_runs_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "matrix.yaml"
    file.write_text(SMALL.replace("OUT", str(tmp_path / "out")).replace("a: {", "a: {variables: {LR: 1e-3}, "))
    monkeypatch.setenv("LR", "0.5")
    monkeypatch.setenv("SAVE_PATH", "nothing/reads/it")
    monkeypatch.setenv("SEED", "9")
    assert matrix.main([str(file), "--dry-run"]) == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert warnings == ["warning: LR is set in the shell, and counts for 2 of 3 runs, for which the file has none"]


def test_a_part_of_the_matrix_leaves_the_other_runs_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    file = tmp_path / "matrix.yaml"
    file.write_text(SMALL.replace("OUT", str(out)))

    def evaluate(options: EvaluationOptions) -> dict[str, Any]:
        out = Path(options.out)
        found = metrics_of(*{"sft": (0.1, None), "a": (0.2, 0.1), "b": (0.3, 0.2)}[out.name])
        out.mkdir(parents=True, exist_ok=True)
        (out / "metrics.json").write_text(json.dumps(found))
        names = [name for name in found["results"]["paper"]["model"] if "@" in name]
        row = {"sample_id": "x", "prompt_id": "x", "recommended": [1]} | dict.fromkeys(names, 0.5)
        pq.write_table(pa.Table.from_pylist([row]), out / "rows.parquet")
        return found

    def train(run: Run, out: Path) -> None:
        (out / run.name / "metrics").mkdir(parents=True, exist_ok=True)
        (out / run.name / "metrics" / "0001.jsonl").write_text('{"step": 1, "data": {"rank_grpo/return@1": 0.5}}\n')

    drawn: list[list[str]] = []
    monkeypatch.setattr(here, "check_evaluation", lambda *_: None)
    monkeypatch.setattr(here, "evaluate", evaluate)
    monkeypatch.setattr(here, "train", train)
    monkeypatch.setattr(matrix, "plot", lambda runs, out: drawn.append([run.name for run in runs]))
    assert matrix.main([str(file), "--only", "sft", "b"]) == 0
    assert matrix.main([str(file), "--only", "a"]) == 0
    assert [line.split(",")[0] for line in (out / "table.csv").read_text().splitlines()] == ["run", "sft", "a", "b"]
    assert "| b | 1 | 0.3000 | +0.2000 (se of each nan) |" in (out / "table.md").read_text()
    assert (out / "slices.csv").read_text().splitlines() == [
        "run,variant,seed,slice,part,rows,ndcg@5,ndcg@5 se",
        *(f"{run},{run},1,turns,1,2,{value}," for run, value in (("sft", 0.1), ("a", 0.2), ("b", 0.3))),
    ]
    assert drawn == [["sft", "b"], ["sft", "a", "b"]]

    (out / "evaluation" / "b" / "metrics.json").write_text(json.dumps(metrics_of(0.9, 0.9, limit=5)))
    capsys.readouterr()
    assert matrix.main([str(file), "--only", "a"]) == 0
    assert "warning: b: evaluated with other settings" in capsys.readouterr().err
    assert drawn[-1] == ["sft", "a"]


def test_a_start_that_is_not_evaluated_is_said_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "matrix.yaml"
    file.write_text(SMALL.replace("OUT", str(tmp_path / "out")))
    monkeypatch.setattr(here, "train", lambda run, out: pytest.fail("trained"))
    assert matrix.main([str(file), "--only", "a"]) == 2
    assert "--only a: sft, its start, is not evaluated yet; add it to --only" in capsys.readouterr().err


def test_an_evaluation_without_its_file_is_said_after_the_preparation_and_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, made = tmp_path / "matrix.yaml", tmp_path / "made"
    text = SMALL.replace("OUT", str(tmp_path / "out")) + f"prepare: [{{creates: {made}, run: touch {made}}}]\n"
    file.write_text(text.replace("data: d", f"data: {tmp_path / 'd.parquet'}"))
    monkeypatch.setattr(here, "train", lambda run, out: pytest.fail("trained"))
    assert matrix.main([str(file)]) == 2
    assert made.exists()
    assert "error: evaluate: " in capsys.readouterr().err


def test_a_dry_run_says_how_much_it_is_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "matrix.yaml", tmp_path / "out"
    text = SMALL.replace("OUT", str(out)).replace(
        "sft: {recipe: sft}", "sft: {recipe: sft, variables: {TOTAL_STEPS: [10, 20]}}"
    )
    made = tmp_path / "made"
    file.write_text(
        text.replace("start: sft", "start: sft-TOTAL_STEPS=10, variables: {TOTAL_STEPS: 5}")
        + f"prepare: [{{creates: {made}, run: touch {made}}}]\n"
    )
    assert matrix.main([str(file), "--dry-run"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "4 runs, 0 of them finished; 0 of 40 steps",
        "the hours of 4 runs are unknown until the first steps are done",
        "nothing was started (--dry-run)",
    ]
    assert not out.exists()
    assert not made.exists()


def test_what_is_of_a_cluster_wants_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "matrix.yaml"
    file.write_text(SMALL.replace("OUT", str(tmp_path / "out")))
    assert matrix.main([str(file), "--parallel", "2"]) == 2
    assert "set RAY_ADDRESS=http://head:8265" in capsys.readouterr().err
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:9")
    assert matrix.main([str(file)]) == 2
    assert "RAY_ADDRESS=http://127.0.0.1:9: no answer" in capsys.readouterr().err
