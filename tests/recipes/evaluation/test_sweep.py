"""Every checkpoint of a run evaluated: which steps, what is written, and the report made of it."""

import csv
import json
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from convrec.checkpoints.saving import prune
from convrec.report.curves import read_csv
from recipes import evaluate, report
from recipes.evaluation.sweep import _check_settings, find_sweep_models
from tests.conftest import mark_complete
from tests.recipes.evaluation.small import row, write_catalog, write_rows
from tests.user_errors import refuses

# what the model of each step answers: the start misses, step 2 hits at rank 2, step 4 at rank 1
LISTS = {0.0: "Jaws (1975)\nJaws (1975)", 2.0: "Jaws (1975)\nHeat (1995)", 4.0: "Heat (1995)\nNowhere (2001)"}


def answer(_: str, model: str, **settings: Any) -> str:
    """Of the step whose weight the checkpoint holds."""
    return LISTS[struct.unpack("<f", (Path(model) / "model.safetensors").read_bytes()[-4:])[0]]


@pytest.fixture
def run(tmp_path: Path, sound_model: Callable[..., Path]) -> Path:
    """Steps 2 and 4 are whole, 3 was removed to keep only newer ones, 5 was being saved when the run was killed."""
    run = tmp_path / "run"
    start = sound_model(tmp_path / "start", weight=0.0)
    for step in (2, 4):
        sound_model(run / f"global_step_{step}" / "actor" / "huggingface", weight=float(step))
    (run / "global_step_3").mkdir()
    (run / "global_step_3" / "data.pt").write_bytes(b"")
    (run / "global_step_5" / "actor").mkdir(parents=True)
    (run / "global_step_5" / "actor" / "model_world_size_1_rank_0.pt").write_bytes(b"half")
    mark_complete(run, 2, 4)
    ours = "convrec: {year_tolerance: 1}\n"
    (run / "config.yaml").write_text(
        f"run: {{recipe: rank_grpo}}\nactor_rollout_ref: {{model: {{path: {start}}}}}\n{ours}"
    )
    (run / "metrics").mkdir()
    lines = [{"step": step, "data": {"rank_grpo/return@1": 0.1 * step, "actor/kl": 0.01}} for step in (1, 2, 3, 4)]
    (run / "metrics" / "0001.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    return run


@pytest.fixture
def options(tmp_path: Path, answer_with: Callable[..., Any]) -> list[str]:
    """A split of two conversations."""
    answer_with(answer)
    data = write_rows(tmp_path / "test.parquet", [row(name, name, ["Heat"]) for name in ("a", "b")])
    catalog = write_catalog(tmp_path / "catalog.parquet", {"Heat": 1995, "Jaws": 1975})
    return ["--data", data, "--catalog", catalog, "--train", data, "--num-items", "2", "--ks", "1", "2"]


def test_missing_initial_model_and_step_without_model_are_named(run: Path, tmp_path: Path) -> None:
    assert find_sweep_models(run, start="another/model")[0] == "another/model"
    mark_complete(run, 3)
    with refuses("evaluation.removed-model", run / "global_step_3"):
        find_sweep_models(run)
    (run / "config.yaml").write_text("actor_rollout_ref: {model: {path: /gone/model}}\n")
    with refuses("evaluation.missing-initial-model", "/gone/model", "--start"):
        find_sweep_models(run)
    with refuses("evaluation.no-checkpoint", f"--sweep {tmp_path}"):
        find_sweep_models(tmp_path)


def test_sweep_writes_a_row_per_step_and_report_shows_both_ends(
    run: Path, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate.main(["--model", str(run), "--sweep", *options]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].endswith("test.parquet, 2 rows, protocol paper")
    assert [line.split("  ")[0] for line in printed[2:6]] == ["popularity", "step 0", "step 2", "step 4"]
    of_step_4 = "step 4  1.0000 ±0.0000  1.0000 ±0.0000  0.5000  1  0 of 2  0.0000"
    assert printed[5].split() == of_step_4.split()
    for step in ("step_000000", "step_000004"):  # the start model too is scored as the run was trained
        metrics = json.loads((run / "evaluation" / "test" / step / "metrics.json").read_text())
        assert metrics["settings"]["year_tolerance"] == 1
    rows = read_csv(run / "evaluation" / "test" / "sweep.csv")
    assert [(row["step"], row["recall@1"], row["recall@2"]) for row in rows] == [(0, 0, 0), (2, 0, 1), (4, 1, 1)]
    assert [row["in catalog"] for row in rows] == [1.0, 1.0, 0.5]
    assert [row["repeats per list"] for row in rows] == [1.0, 0.0, 0.0]
    assert [row.get("recall@2 gain") for row in rows] == [None, 1, 1]  # minus step 0, which has no other
    assert {"recall@2 gain se", "recall@2 gain p", "coverage gain se"} <= rows[1].keys()
    parts = list(csv.DictReader((run / "evaluation" / "test" / "slices.csv").open()))
    wanted = [part for part in parts if part["slice"] == "wanted"]
    gains = [(part["step"], part["recall@2"], part["recall@2 gain"]) for part in wanted]
    assert gains == [("0", "0.0", ""), ("2", "1.0", "1.0"), ("4", "1.0", "1.0")]

    out = tmp_path / "report.html"
    assert report.main([str(run), "--out", str(out)]) == 0
    html = out.read_text()
    for text in (
        "rank_grpo (step 4) minus rank_grpo (step 0), test.parquet: NDCG@2 +",
        "popularity",
        "KL to the initial model",
        "NDCG@2 on test",
        "the largest gain of rank_grpo (step 4) over rank_grpo (step 0)",
        "catalog coverage",
        "Catalog coverage on test, by checkpoint",
        "Protocol paper removes seen items",
    ):
        assert text in html, text
    assert "ndcg@" not in html  # one name everywhere: NDCG@2


@pytest.mark.parametrize("when", ["before it is opened", "while it is read"])
def test_steps_that_a_training_run_removes_meanwhile_are_left_out(
    run: Path,
    options: list[str],
    answer_with: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    when: str,
) -> None:
    def answer_beside_training(conversation: str, model: str, **settings: Any) -> str:
        is_now = (Path(model).name == "start") == (when == "before it is opened")
        if is_now and (run / "global_step_2").exists():
            prune(run, keep=1)  # the newest is 4
        return answer(conversation, model)

    answer_with(answer_beside_training)
    assert evaluate.main(["--model", str(run), "--sweep", *options]) == 0
    removed = [line for line in capsys.readouterr().err.splitlines() if line.startswith(f"{run}/global_step_2: ")]
    assert len(removed) == 1
    assert [row["step"] for row in read_csv(run / "evaluation" / "test" / "sweep.csv")] == [0, 4]


def test_a_sweep_that_ends_with_an_error_writes_the_steps_before_it(
    run: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "global_step_4" / "actor" / "huggingface" / "model.safetensors").write_bytes(b"half")
    assert evaluate.main(["--model", str(run), "--sweep", *options]) == 2
    assert "global_step_4" in capsys.readouterr().err.splitlines()[-1]
    folder = run / "evaluation" / "test"
    assert [row["step"] for row in read_csv(folder / "sweep.csv")] == [0, 2]
    assert {part["step"] for part in csv.DictReader((folder / "slices.csv").open())} == {"0", "2"}
    before = (folder / "sweep.csv").read_bytes()
    (Path(run).parent / "start" / "model.safetensors").write_bytes(b"half")
    assert evaluate.main(["--model", str(run), "--sweep", *options]) == 2
    assert (folder / "sweep.csv").read_bytes() == before


def test_a_sweep_with_other_settings_does_not_overwrite_one(
    run: Path, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--model", str(run), "--sweep", *options]
    assert evaluate.main([*command, "--limit", "0"]) == 2  # what cannot be evaluated leaves no settings behind
    assert evaluate.main(command) == 0
    folder = run / "evaluation" / "test"
    settings = json.loads((folder / "sweep.json").read_text())
    assert (settings["protocols"], settings["ks"]) == (["paper"], [1, 2])
    assert (settings["limit"], settings["run"]) == (None, "../..")
    before = (folder / "sweep.csv").read_text()
    capsys.readouterr()
    assert evaluate.main([*command, "--limit", "1"]) == 2
    message = capsys.readouterr().err
    assert "limit was None and is 1" in message
    assert message.endswith("[evaluation.other-sweep]\n")
    same_name = tmp_path / "other" / "test.parquet"
    same_name.parent.mkdir()
    same_name.write_bytes((tmp_path / "test.parquet").read_bytes())
    assert evaluate.main([*command, "--data", str(same_name)]) == 0  # the same, elsewhere
    write_rows(same_name, [row(name, name, ["Jaws"]) for name in ("a", "b")])
    assert evaluate.main([*command, "--data", str(same_name)]) == 2
    assert "data was 'test.parquet (SHA-256 " in capsys.readouterr().err
    assert (folder / "sweep.csv").read_text() == before
    assert evaluate.main([*command, "--limit", "1", "--out", str(tmp_path / "one")]) == 0
    capsys.readouterr()
    assert evaluate.main([*command, "--out", str(tmp_path / "one")]) == 2
    assert "limit was 1 and is None" in capsys.readouterr().err
    assert evaluate.main([*command, "--year-tolerance", "2"]) == 2  # the run's is 1
    assert evaluate.main([*command, "--year-tolerance", "1"]) == 0
    assert evaluate.main(command) == 0  # the same again
    stored = json.loads((folder / "step_000004" / "metrics.json").read_text())["settings"]
    with_user = SimpleNamespace(settings=stored | {"user": "rule", "ask": ["genre"], "max_turns": 3})
    with refuses("evaluation.other-sweep", "user"):
        _check_settings(folder, run, with_user)  # type: ignore[arg-type]
    (folder / "sweep.json").unlink()
    assert evaluate.main([*command, "--limit", "1"]) == 0  # as the message says


@pytest.mark.parametrize("changed", ["data", "train"])
def test_evaluations_of_changed_files_are_not_compared(
    run: Path, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: str
) -> None:
    assert evaluate.main(["--model", str(run), "--sweep", *options]) == 0
    file = run / "evaluation" / "test" / "step_000004" / "metrics.json"
    metrics = json.loads(file.read_text())
    metrics["settings"]["sha256"][changed] = "0" * 64
    file.write_text(json.dumps(metrics))
    assert report.main([str(run), "--out", str(tmp_path / "report.html")]) == 2
    message = capsys.readouterr().err
    assert ("SHA-256 000000000000" if changed == "data" else "different training files") in message


def test_sweep_of_one_conversation_is_reported_and_stale_flagged(
    run: Path, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate.main(["--model", str(run), "--sweep", *options, "--limit", "1"]) == 0  # no standard error
    stale = "ends at step 4, but the newest checkpoint is step 6"
    report.report([run], tmp_path / "report.html")
    assert stale not in capsys.readouterr().err
    mark_complete(run, 6)
    # being evaluated now, not yet in sweep.csv
    (run / "evaluation" / "test" / "step_000006").mkdir()
    html = report.report([run], tmp_path / "report.html").read_text()
    assert stale in html
    assert stale in capsys.readouterr().err
    assert "rank_grpo (step 4)" in html
    assert "nan" not in html


def test_evaluations_with_different_settings_are_not_compared(
    run: Path, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert evaluate.main(["--model", str(run), "--out", str(first), *options]) == 0
    assert evaluate.main(["--model", str(run), "--out", str(second), *options, "--num-items", "3"]) == 0
    arguments = [str(run), "--out", str(tmp_path / "r.html"), "--evaluations", f"a={first}", f"b={second}"]
    assert report.main(arguments) == 2
    assert capsys.readouterr().err.endswith("[plot.different-settings]\n")
    for other, message in (
        (["--protocols", "strict"], "b: evaluated with protocol strict, a with protocol paper"),
        (["--limit", "1"], "b: evaluated with limit 1, a with limit None"),
    ):
        assert evaluate.main(["--model", str(run), "--out", str(second), *options, *other]) == 0
        assert report.main(arguments) == 2
        assert message in capsys.readouterr().err
    # of two protocols the first is shown
    assert evaluate.main(["--model", str(run), "--out", str(second), *options, "--protocols", "paper", "strict"]) == 0
    assert report.main(arguments) == 0
    assert report.main([str(run), "--evaluations", "nothing"]) == 2
    assert "--evaluations nothing: " in capsys.readouterr().err
    assert report.main([str(run), "--evaluations", f"a={tmp_path}"]) == 2
    assert capsys.readouterr().err.endswith("[evaluation.missing-metrics]\n")
    assert evaluate.main([*options, "--out", str(second), "--overwrite"]) == 0
    assert report.main([str(run), "--evaluations", f"a={second}"]) == 2
    message = capsys.readouterr().err
    assert str(second) in message
    assert message.endswith("[report.baselines-only]\n")
