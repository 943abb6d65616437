"""When a run was started and with which versions: RUN/starts.jsonl, a line for each start."""

import contextlib
import json
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

STARTS = "starts.jsonl"
PACKAGES = ("convrec", "verl", "ray", "torch", "vllm", "transformers")
GIT_SECONDS = 10


def note_start(run_folder: Path) -> None:
    """Append {"time": UTC in ISO 8601, "commit": of this code or null, "versions": {package: version}}."""
    versions = {"python": platform.python_version()} | {name: installed_version(name) for name in PACKAGES}
    entry = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": source_commit(Path(__file__)),
        "versions": {name: version for name, version in versions.items() if version},
    }
    with (run_folder / STARTS).open("a+", encoding="utf-8") as file:
        file.seek(0)
        end = file.read()[-1:]
        file.write("\n" * (end not in "\n") + json.dumps(entry) + "\n")


def read_starts(run_folder: Path) -> list[dict[str, Any]]:
    """The entries in order, without one that a full disk cut off; [] for a run that has not begun to train."""
    path = run_folder / STARTS
    starts = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            starts.append(json.loads(line))
    return starts


def source_commit(file: Path) -> str | None:
    """The commit a source file is of, with "-dirty" where tracked files differ from it.

    None where git does not track the file: an installed package (perhaps inside a repository of something else), or
    what a submitted job has uploaded.
    """
    git = ["git", "-C", str(file.parent)]
    try:
        for command in (["ls-files", "--error-unmatch", file.name], ["describe", "--always", "--dirty", "--exclude=*"]):
            done = subprocess.run([*git, *command], capture_output=True, text=True, timeout=GIT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
