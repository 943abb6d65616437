"""The record of each start of a run."""

import subprocess
from datetime import UTC, datetime
from pathlib import Path

from convrec.runs.starts import STARTS, note_start, read_starts, source_commit


def test_every_start_is_a_line_with_time_and_versions(tmp_path: Path) -> None:
    assert read_starts(tmp_path) == []
    note_start(tmp_path)
    note_start(tmp_path)
    first, second = read_starts(tmp_path)
    seconds = (datetime.now(UTC) - datetime.fromisoformat(first["time"])).total_seconds()
    assert 0 <= seconds < 60
    assert first["time"] <= second["time"]
    assert first["versions"]["verl"] == "0.9.1"


def test_a_truncated_line_hides_no_other(tmp_path: Path) -> None:
    note_start(tmp_path)
    with (tmp_path / STARTS).open("a") as file:
        file.write('{"time": "2026')
    note_start(tmp_path)
    assert len(read_starts(tmp_path)) == 2
    assert len((tmp_path / STARTS).read_text().splitlines()) == 3


def git(folder: Path, *command: str) -> str:
    options = ["-c", "user.name=a", "-c", "user.email=a@b"]
    process = subprocess.run(["git", "-C", str(folder), *options, *command], capture_output=True, text=True, check=True)
    return process.stdout.strip()


def test_commit_is_that_of_the_repository_tracking_the_file(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text("a = 1\n")
    assert source_commit(file) is None
    git(tmp_path, "init")
    assert source_commit(file) is None  # as in site-packages inside another repository
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    commit = source_commit(file)
    assert commit
    assert git(tmp_path, "rev-parse", "HEAD").startswith(commit)
    file.write_text("a = 2\n")
    assert source_commit(file) == f"{commit}-dirty"
