"""A matrix on a real Ray cluster of two nodes: two runs side by side, left with Ctrl-C, found again, one table."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from convrec.base.files import read_json
from convrec.runs.folder import read_metrics
from convrec.runs.starts import read_starts

from .conftest import ROOT, trained_steps, wait_for
from .two_nodes import Cluster

RUNS = ("rank-LR=1e-6", "rank-LR=1e-3")


def matrix_of(cluster: Cluster) -> dict:
    data = cluster.trained.out / "data"
    return {
        "out": str(cluster.folder / "matrix"),
        "variables": {
            **cluster.files,
            "MODEL_PATH": str(cluster.trained.out / "sft"),
            **{"TOTAL_STEPS": 1, "TRAIN_BATCH_SIZE": 2, "ROLLOUT_N": 2, "SAVE_FREQ": 100, "TEST_FREQ": 100},
            **{"MAX_PROMPT_LENGTH": 256, "MAX_RESPONSE_LENGTH": 32, "LOGGER": ["console", "file"]},
        },
        "runs": {
            "rank": {
                "variables": {"LR": [name.partition("=")[2] for name in RUNS]},
                "overrides": ["trainer.val_before_train=false", "data.val_max_samples=4", "data.train_max_samples=8"],
            }
        },
        "evaluate": {
            **{"data": str(data / "test.parquet"), "catalog": str(data / "catalog.parquet")},
            **{"limit": 4, "ks": [5], "max_prompt_length": 256, "max_response_length": 32},
        },
    }


def start(cluster: Cluster, file: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "recipes", "matrix", str(file), "--parallel", "2"],
        env=cluster.environment | {"RAY_ADDRESS": f"http://127.0.0.1:{cluster.dashboard}"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.long
def test_two_runs_side_by_side_left_and_found_again(nodes: Cluster, tmp_path: Path) -> None:
    file, out = tmp_path / "matrix.yaml", nodes.folder / "matrix"
    asked = matrix_of(nodes)
    file.write_text(yaml.safe_dump(asked | {"evaluate": asked["evaluate"] | {"replicas": 9}}))
    too_large = start(nodes, file)
    assert "tensor_parallel x replicas = 9 GPU slots on one node" in too_large.communicate(timeout=300)[1]
    assert too_large.returncode == 2
    assert not out.exists()  # refused before the first training

    file.write_text(yaml.safe_dump(asked))
    first = start(nodes, file)
    wait_for(first, lambda: all((out / name / "starts.jsonl").exists() for name in RUNS))
    os.kill(first.pid, signal.SIGINT)
    _, left = first.communicate(timeout=300)

    second = start(nodes, file)
    stdout, stderr = second.communicate(timeout=1200)
    said = stderr.splitlines()
    assert first.returncode == 130, left
    assert second.returncode == 0, stdout + stderr
    assert "0 of 2 runs finished; 0 of 2 steps" in left
    assert left.count(" is still running; to stop it: ray job stop matrix-") == 2
    for name in RUNS:
        assert [line for line in said if line.endswith(f"-{name}-train-1 is already running")]
        assert len(read_starts(out / name)) == 1  # not submitted twice
        assert trained_steps(out / name) == [1]
        evaluation = read_json(out / "evaluation" / name / "metrics.json")
        assert (evaluation["settings"]["model"], evaluation["generation"]["generated"]) == (str(out / name), 4)
        assert f"| {name} | 1 |" in stdout
    assert "2 of 2 runs finished; 2 of 2 steps" in said
    # side by side: each began before the other had trained its step
    begun = [(out / name / "starts.jsonl").stat().st_mtime for name in RUNS]
    ended = [(out / name / "metrics" / "0001.jsonl").stat().st_mtime for name in RUNS]
    assert max(begun) < min(ended)
    # each from its own rollouts: in one queue for both they would be mixed
    rates = [row["actor/lr"] for name in RUNS for row in read_metrics(out / name) if "actor/lr" in row]
    assert rates == [1e-6, 1e-3]
    assert (out / "table.csv").read_text().count("\n") == 1 + len(RUNS)
    assert (out / "plots" / "curves.csv").exists()
