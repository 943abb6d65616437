"""The first hour on a GPU, rehearsed without one: every part from the first to the last, cut off twice."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from convrec.runs.folder import latest_step, saved_steps

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.faults  # too long for CI


@pytest.mark.timeout(3600)
def test_every_part_of_the_hour_runs_and_is_done_once(trained, tmp_path):
    out = tmp_path / "hour"

    def hour(*arguments: str) -> str:
        command = [sys.executable, "benchmarks/gpu_hour.py", "--demo", str(trained.out), "--out", str(out), *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3000, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "13 are left" in hour("--minutes", "10") or "are left" in hour("--minutes", "10")
    hour()
    results = {path.stem: json.loads(path.read_text()) for path in (out / "results").glob("*.json")}
    parts = {name: one for name, one in results.items() if "status" in one}
    assert {name: one["status"] for name, one in parts.items()} == dict.fromkeys(parts, "pass")
    assert len(parts) == 16
    assert "0 are left" in hour()
