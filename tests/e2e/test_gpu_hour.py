"""The first hour on a GPU, rehearsed without one: every part from the first to the last, by calls of nine minutes."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from convrec.runs.folder import latest_step

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow  # half an hour: not in CI
PARTS = 16  # and calls at most: of two parts of 480 s one call takes both only where the first ends within a minute


@pytest.mark.timeout(5400)
def test_every_part_of_the_hour_runs_and_is_done_once(trained, tmp_path):
    out, said = tmp_path / "hour", [""]
    command = [sys.executable, "benchmarks/gpu_hour.py", "--demo", str(trained.out), "--out", str(out)]
    while not re.search(r"\b0 are left", said[-1]):  # not "10 are left"
        assert len(said) <= PARTS
        done = subprocess.run([*command, "--minutes", "9"], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        said.append(done.stdout)
        assert (out / "results" / "report.html").exists()
    assert "to continue: python" in said[1]
    assert sum(text.count(", at most ") for text in said) == PARTS  # each was begun once

    kept = {path.stem: json.loads(path.read_text()) for path in (out / "results").glob("*.json")}
    figures = {name: one["figures"] for name, one in kept.items() if "status" in one}
    assert len(figures) == PARTS
    assert figures["free"]["free"]["steps"] == 8
    assert (figures["resume"]["resume"]["steps"], latest_step(out / "free")) == (10, 10)
    (step,) = figures["half_b"]["step"]["phases"]
    assert (step["figures"]["steps"], step["figures"]["model and batch"]) == (5, "scaled down: no GPU")
    lists = figures["evaluation_constrained"]["evaluation of constrained"]["results"]["paper"]["constrained"]
    assert (lists["catalog_hit_ratio"], lists["repeats_per_list"]) == (1, 0)
    assert figures["serving"]["serving"]["levels"]["4"]["list"]["errors"] == {}
    outcomes = {
        phase["phase"]: phase["figures"] | {"status": phase["status"]}
        for name, of_part in figures.items()
        if name.startswith("check_")
        for phase in of_part[name]["phases"]
    }
    assert {name for name, one in outcomes.items() if one["status"] != "pass"} == {
        *("sleep", "llama_sleep", "qwen3_sleep", "tensor_parallel")  # want a GPU
    }
    assert outcomes["llama_constrained"]["model runner"] == "V1"

    page = (out / "results" / "report.html").read_text()
    assert all(text in page for text in ("rehearsed without one", "after, under the constraint", "<svg", ">plan<"))
