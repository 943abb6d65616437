"""`convrec gpu-check` as a user runs it, with the phases that no other test covers: what is compared on a GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

PHASES = ["packed", "fused", "two_ranks", "sleep", "llama_constrained"]


def test_the_self_test_passes_here_and_says_what_it_left_out(tmp_path: Path) -> None:
    file = tmp_path / "check.json"
    command = [sys.executable, "-m", "recipes", "gpu-check", "--json", str(file), "--only", *PHASES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    outcomes = {entry["phase"]: entry for entry in found["phases"]}
    assert {name: outcome["status"] for name, outcome in outcomes.items()} == {
        "packed": "pass",
        "fused": "pass",
        "two_ranks": "pass",
        "sleep": "skipped",
        "llama_constrained": "pass",
    }
    assert found["left_out"] == {"sleep": "needs a GPU, this machine has 0"}
    assert outcomes["packed"]["figures"]["attention"] == "varlen"
    one, two = outcomes["two_ranks"]["figures"]["one process"], outcomes["two_ranks"]["figures"]["two processes"]
    assert one["grad_norm"] > 0.01
    assert abs(two[0]["grad_norm"] - one["grad_norm"]) < 1e-5
    # vLLM refuses logits processors in its model runner V2, which is Llama's on a GPU
    assert outcomes["llama_constrained"]["figures"]["model runner"] == "V1"
