"""The slopes of the growth benchmark, and the machine that every benchmark describes."""

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks import machine
from benchmarks.bench_growth import QUANTITIES, compute_slope


def test_slopes_are_exponents_over_the_upper_decades() -> None:
    sizes = [10, 100, 1000, 10_000]
    assert compute_slope(sizes, [7.0, 1.0, 10.0, 100.0]) == 1  # the smallest size does not count
    assert compute_slope(sizes, [1.0, 1.0, 100.0, 10_000.0]) == 2
    assert compute_slope(sizes, [9.0, 3.0, 3.0, 3.0]) == 0
    assert compute_slope(sizes, [0.0, 0.0, 0.0, 5.0]) is None


def test_sizes_are_powers_of_ten_within_the_limits_of_a_quantity() -> None:
    assert QUANTITIES["serving"].list_sizes(1_000_000) == [1000, 10_000, 100_000, 1_000_000]
    assert QUANTITIES["serving"].list_sizes(10) == [1000]
    assert QUANTITIES["evaluation"].list_sizes(1_000_000) == [1000, 10_000, 100_000]
    assert QUANTITIES["lists"].list_sizes(100) == [10, 100]


def test_reports_name_the_machine_and_the_commit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def git(*words: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    monkeypatch.setattr(machine, "ROOT", tmp_path)
    assert machine.describe_machine()["commit"] == ""  # no clone
    git("init")
    (tmp_path / "README.md").write_text("a")
    git("add", ".")
    git("commit", "--message", "a")
    commit = git("rev-parse", "HEAD")[:12]
    (tmp_path / "README.md").write_text("changed")
    machine.print_report({"seconds": 1.5})
    report = json.loads(capsys.readouterr().out)
    assert report["seconds"] == 1.5
    described = report["machine"]
    assert described["commit"] == f"{commit}+changes"
    assert described["cores"] > 0
    assert described["memory_gib"] > 0
    assert described["versions"]["pyarrow"]
    git("checkout", "README.md")
    (tmp_path / "notes.txt").write_text("git does not track it")
    assert machine.describe_machine()["commit"] == commit
