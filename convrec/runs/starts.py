"""Record when a run was started and with which versions, one line per start in RUN/starts.jsonl."""

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
    """Append {"time": UTC in ISO 8601, "commit": this code's or null, "versions": {package: version}}."""
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
    """Return the entries in order, without a truncated one; [] for a run that has not started to train."""
    path = run_folder / STARTS
    starts = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            starts.append(json.loads(line))
    return starts


def source_commit(file: Path) -> str | None:
    """Return the commit of a source file, with "-dirty" if tracked files differ from it.

    None if git does not track the file: it belongs to an installed package (perhaps inside another repository), or a
    submitted job has uploaded it.
    """
    git = ["git", "-C", str(file.parent)]
    try:
        for command in (["ls-files", "--error-unmatch", file.name], ["describe", "--always", "--dirty", "--exclude=*"]):
            process = subprocess.run([*git, *command], capture_output=True, text=True, timeout=GIT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip()


def installed_version(package: str) -> str | None:
    """Return the version of a package, None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
