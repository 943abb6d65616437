"""The command: parts of a matrix, the tables of all of it, what it says beforehand. The rest is in experiments/."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recipes import matrix
from recipes.evaluation.options import EvaluationOptions
from recipes.experiments import local_runs
from recipes.experiments.matrix_runs import MatrixRun
from tests.recipes.experiments.found import make_metrics as found_of

SMALL = """
seeds: [1]
runs: {sft: {recipe: sft}, a: {recipe: sft, start: sft}, b: {recipe: sft, start: sft}}
evaluate: {data: d, catalog: c, ks: [5]}
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """`convrec matrix` of a file with this text on this machine, with these arguments; OUT is tmp_path/out."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def run(*arguments: str, text: str = SMALL) -> int:
        (tmp_path / "matrix.yaml").write_text(f"out: {tmp_path / 'out'}\n{text}")
        return matrix.main([str(tmp_path / "matrix.yaml"), *arguments])

    return run


@pytest.fixture
def nothing_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_runs, "train", lambda run, out: pytest.fail("trained"))


def make_metrics(value: float, gain: float | None, **settings: Any) -> dict[str, Any]:
    """Of one conversation: no standard error is known."""
    found = found_of(value, gain, None, data="d", catalog="c", catalog_items=4, **settings)
    found["results"]["paper"]["model"]["calibration"] = {"mean": None, "se": None, "n": 0}  # no row has it
    return found | {"slices": {"turns": {"1": {"n": 2, "ndcg@5": {"mean": value, "se": None}}}}}


def test_what_the_shell_gives_to_runs_is_told(
    start: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"LR": "0.5", "SAVE_PATH": "nothing/reads/it", "SEED": "9"}.items():
        monkeypatch.setenv(name, value)
    assert start("--dry-run", text=SMALL.replace("a: {", "a: {variables: {LR: 1e-3}, ")) == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert warnings == ["warning: LR is set in the shell, and counts for 2 of 3 runs, for which the file has none"]


def test_a_part_of_the_matrix_leaves_the_other_runs_in_the_table(
    start: Callable[..., int],
    sample: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    text = SMALL.replace("data: d, catalog: c", f"data: {sample}/test.parquet, catalog: {sample}/catalog.parquet")

    def evaluate(options: EvaluationOptions) -> dict[str, Any]:
        out = Path(options.out)
        found = make_metrics(*{"sft": (0.1, None), "a": (0.2, 0.1), "b": (0.3, 0.2)}[out.name])
        out.mkdir(parents=True, exist_ok=True)
        (out / "metrics.json").write_text(json.dumps(found))
        names = [name for name in found["results"]["paper"]["model"] if "@" in name]
        row = {"sample_id": "x", "prompt_id": "x", "recommended": [1]} | dict.fromkeys(names, 0.5)
        pq.write_table(pa.Table.from_pylist([row]), out / "rows.parquet")
        return found

    def train(run: MatrixRun, out: Path) -> None:
        (out / run.name / "metrics").mkdir(parents=True, exist_ok=True)
        (out / run.name / "metrics" / "0001.jsonl").write_text('{"step": 1, "data": {"train/loss": 0.5}}\n')
        (out / run.name / "config.yaml").write_text("run: {recipe: sft}\n")

    def drawn() -> list[str]:
        rows = (out / "plots" / "curves.csv").read_text().splitlines()[1:]
        return list(dict.fromkeys(row.split(",")[0] for row in rows))

    monkeypatch.setattr(local_runs, "evaluate", evaluate)
    monkeypatch.setattr(local_runs, "train", train)
    assert start("--only", "sft", "b", text=text) == 0
    assert drawn() == ["sft", "b"]
    assert start("--only", "a", text=text) == 0
    assert [line.split(",")[0] for line in (out / "table.csv").read_text().splitlines()] == ["run", "sft", "a", "b"]
    assert "| b | 1 | 0.3000 | +0.2000 (se of each nan) |" in (out / "table.md").read_text()
    assert (out / "slices.csv").read_text().splitlines() == [
        "run,variant,seed,slice,part,rows,ndcg@5,ndcg@5 se",
        *(f"{run},{run},1,turns,1,2,{value}," for run, value in (("sft", 0.1), ("a", 0.2), ("b", 0.3))),
    ]
    assert drawn() == ["sft", "a", "b"]

    (out / "evaluation" / "b" / "metrics.json").write_text(json.dumps(make_metrics(0.9, 0.9, limit=5)))
    capsys.readouterr()
    assert start("--only", "a", text=text) == 0
    warning = capsys.readouterr().err
    assert "warning: b: not in the table" in warning
    assert "(limit was 5 and" in warning
    assert drawn() == ["sft", "a"]


def test_given_model_is_evaluated_with_the_runs_but_not_trained(
    start: Callable[..., int],
    nothing_is_trained: None,
    sample: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: dict[str, tuple[str | None, str | None]] = {}

    def evaluate(options: EvaluationOptions) -> None:
        out = Path(options.out)
        asked[out.name] = (options.model, options.against)
        out.mkdir(parents=True)
        (out / "metrics.json").write_text(json.dumps(make_metrics(0.1, None)))
        row = {"sample_id": "x", "prompt_id": "x", "recommended": [1], "recall@5": 0.5, "ndcg@5": 0.5}
        pq.write_table(pa.Table.from_pylist([row]), out / "rows.parquet")

    monkeypatch.setattr(local_runs, "evaluate", evaluate)
    text = f"runs: {{ours: {{model: my/sft}}, other: {{model: org/name}}}}\nevaluate: {{data: {sample}/test.parquet, "
    text += f"catalog: {sample}/catalog.parquet, ks: [5]}}"
    assert start(text=text) == 0
    assert asked == {"ours": ("my/sft", None), "other": ("org/name", None)}
    captured = capsys.readouterr()
    assert "2 of 2 runs finished; 0 of 0 steps" in captured.err
    assert "| other | 1 | 0.1000 |" in captured.out
    (pair,) = csv.DictReader((tmp_path / "out" / "pairs.csv").read_text().splitlines())
    assert (pair["variant"], pair["minus"], float(pair["ndcg@5 mean"])) == ("other", "ours", 0)
    # nothing of the recipe is known of it: a training names it as its MODEL_PATH
    assert start(text=text.replace("other: {model: org/name}", "other: {start: ours}")) == 2
    assert "runs.other: start=ours: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("only", "said"),
    [
        ("a", "--only a: sft, its start, is not evaluated yet; add it to --only"),
        ("c", "--only c: no such run; there are sft, a, b"),
    ],
)
def test_impossible_part_is_reported_before_any_training(
    start: Callable[..., int], nothing_is_trained: None, capsys: pytest.CaptureFixture[str], only: str, said: str
) -> None:
    assert start("--only", only) == 2
    assert said in capsys.readouterr().err


def test_missing_evaluation_file_is_reported_before_any_training(
    start: Callable[..., int], nothing_is_trained: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = SMALL + f"prepare: [{{creates: {tmp_path / 'made'}, run: touch {tmp_path / 'made'}}}]\n"
    assert start(text=text.replace("data: d", f"data: {tmp_path / 'd.parquet'}")) == 2
    assert (tmp_path / "made").exists()
    assert "error: evaluate: " in capsys.readouterr().err


def test_a_dry_run_says_how_much_it_is_and_starts_nothing(
    start: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = SMALL.replace("sft: {recipe: sft}", "sft: {recipe: sft, variables: {TOTAL_STEPS: [10, 20]}}")
    text = text.replace("start: sft", "start: sft-TOTAL_STEPS=10, variables: {TOTAL_STEPS: 5}")
    text += f"prepare: [{{creates: {tmp_path / 'made'}, run: touch {tmp_path / 'made'}}}]\n"
    assert start("--dry-run", text=text) == 0
    assert capsys.readouterr().err.splitlines() == [
        "0 of 4 runs finished; 0 of 40 steps",
        "nothing was started (--dry-run)",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["matrix.yaml"]


def test_what_is_of_a_cluster_wants_one(
    start: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start("--parallel", "2") == 2
    assert "set RAY_ADDRESS=http://head:8265" in capsys.readouterr().err
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:9")
    assert start() == 2
    assert "RAY_ADDRESS=http://127.0.0.1:9: no answer" in capsys.readouterr().err
