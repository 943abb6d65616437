"""Each benchmark at its smallest, to its end: the figures of the manual can be measured again on any commit."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.step_timeline import ACTOR, ROWS, STAGES

from .conftest import ROOT


def run(name: str, options: str) -> dict[str, Any]:
    """Its JSON."""
    return json.loads(run_script(f"bench_{name}", options))


def run_script(name: str, options: str) -> str:
    """Its output."""
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *options.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("checkpoint", "--mib 1 --turns 2"),
        ("conversion", "--rows 4000"),
        ("driver", "--steps 200"),
        ("log_probs", "--tokens 8 --hidden 16 --words 500 --repeats 1"),
        ("loss", "--repeats 2"),
        ("growth", "--repeats 2 --largest 1000"),
        ("matching", "--repeats 2"),
        ("remap_adjust", "--items 300 --conversations 300 --dimensions 16 --epochs 1"),
    ],
)
def test_on_data_of_its_own(name: str, options: str) -> None:
    report = run(name, options)
    assert len(report) > 1
    assert {"commit", "processor", "cores", "versions"} <= report["machine"].keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [("constrained_decoding", "--lists 2 --tokens 4"), ("constrained_update", "--lists 1 --prompt 20")],
)
def test_a_model_of_its_own(name: str, options: str) -> None:
    assert run(name, f"--hidden 64 --layers 1 --items 300 --repeats 1 {options}")


@pytest.mark.slow
def test_training_beside_stock_verl(trained: Any) -> None:
    found = run("training", f"--demo {trained.out} --steps 4 --batch 2 --rollouts 2 --response 16")
    assert {"ours", "stock"} == found["runs"].keys()
    assert found["to"]["stock"]["step"]["median"] > 0


@pytest.mark.slow
def test_models_that_a_benchmark_trains_are_evaluated(trained: Any) -> None:
    sizes = "--steps 4 --batch 2 --rollouts 2 --response 16"
    evaluation = run("training", f"--demo {trained.out} --runs ours grpo {sizes} --evaluate 8")["evaluation"]
    assert evaluation.keys() == {"start", "ours", "grpo"}
    assert "gain" not in evaluation["start"]
    assert evaluation["ours"]["gain"].keys() >= {"mean", "se"}


@pytest.mark.slow
def test_growth_of_a_step_with_its_lists(trained: Any) -> None:
    growth = run("growth", f"--demo {trained.out} --only step_lists --largest 16 --repeats 3")["growth"]["step_lists"]
    figures = growth["figures"]
    assert growth["sizes"] == [8, 16]
    assert figures["step_s"]["slope"] is not None
    # only the lists grow
    assert figures["response_tokens"]["values"] == [48, 48]


@pytest.mark.slow
def test_a_step_is_drawn_process_by_process(trained: Any, tmp_path: Path) -> None:
    sizes = "--steps 4 --batch 2 --rollouts 2 --response 16"
    run_script("profile_step", f"--demo {trained.out} --out {tmp_path} {sizes}")
    report = json.loads((tmp_path / "step.json").read_text())
    assert "vLLM engine" in (tmp_path / "step.svg").read_text()
    processes = {row["name"]: row["cpu_seconds_by_phase"] for row in report["step"]["processes"]}
    # A process that is missing, or in the wrong phase, is another program of Ray, verl or vLLM, or another name of it.
    assert processes.keys() == set(ROWS)
    assert processes[ACTOR]["update"] > processes["vLLM engine"]["update"]
    assert processes["vLLM engine"]["generation, reward"] > processes[ACTOR]["generation, reward"]
    assert all(len(operators) == 10 for operators in report["operators"].values())
    assert report["operators"].keys() == set(STAGES.values())


@pytest.mark.slow
def test_the_engine_beside_a_plain_loop(trained: Any) -> None:
    rows = "--rounds 1 --rows 3 --shortest 20 --longest 40 --completion 10"
    found = run("engine", f"--model {trained.out / 'sft'} {rows}")
    assert found["ways"].keys() == {"engine", "plain", "plain rows"}
    assert found["plain_against_engine"] > 0


@pytest.mark.slow
def test_validation_replicas_and_serving_beside_plain_vllm(trained: Any) -> None:
    assert run("validation", f"--demo {trained.out} --contexts 8 --rounds 1")
    assert run("replicas", f"--demo {trained.out} --contexts 1 --rounds 1 --replicas 1")  # a start of each
    files = f"--model {trained.out / 'rank_grpo'} --catalog {trained.files['CATALOG_FILE']}"
    files += f" --retrieval {trained.out / 'retrieval'}"
    kinds = run("serving", f"{files} --levels 1 --seconds 2 --malformed 9 --no-faults")["levels"]["1"]
    assert all(figures["answers"] and not figures["errors"] for figures in kinds.values())
    assert set(kinds["candidates_list"]["to_vllm"]) == {"p50", "p95", "p99"}
