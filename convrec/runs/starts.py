"""When a run was started and with which versions: RUN/starts.jsonl, a line for each start."""

import contextlib
import json
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from convrec.shipped import commit

STARTS = "starts.jsonl"
PACKAGES = ("convrec", "verl", "ray", "torch", "vllm", "transformers")


def note_start(run_folder: Path) -> None:
    """Append {"time": UTC in ISO 8601, "commit": of this code or null, "versions": {package: version}}."""
    versions = {"python": platform.python_version()} | {name: installed_version(name) for name in PACKAGES}
    entry = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit() or None,
        "versions": {name: version for name, version in versions.items() if version},
    }
    with (run_folder / STARTS).open("a+", encoding="utf-8") as file:
        file.seek(0)
        end = file.read()[-1:]
        file.write("\n" * (end not in "\n") + json.dumps(entry) + "\n")


def read_starts(run_folder: Path) -> list[dict[str, Any]]:
    """The entries in order, without one that a full disk cut off; [] for a run that has not begun to train."""
    path, starts = run_folder / STARTS, []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            starts.append(json.loads(line))
    return starts


def installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
