"""The machine and the commit that every benchmark names."""

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks import machine


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
