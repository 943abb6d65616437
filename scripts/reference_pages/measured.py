"""What is kept in notes/measured/, and how the pages word it."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "notes" / "measured"


def read_kept(name: str) -> dict[str, Any]:
    """Return the content of a kept JSON file; {} if there is none.

    Args:
        name: path below MEASURED.
    """
    path = MEASURED / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def with_error(value: dict[str, float], sign: str = "") -> str:
    """Return a mean with its standard error. sign: "+" shows the sign of a difference."""
    return f"{value['mean']:{sign}.4f} ±{value['se']:.4f}"


def shorten_commit(record: dict[str, Any]) -> str:
    """Return the first eight digits of a record's commit, and `+changes` if it has that."""
    commit, plus, changes = record["commit"].partition("+")
    return f"{commit[:8]}{plus}{changes}"


def describe_machine(machine: dict[str, Any]) -> str:
    """Return the cores, the day and the commit of a kept file."""
    processor = " ".join((machine["processor"], *machine["flags"]))
    cores = "1 core" if machine["cores"] == 1 else f"{machine['cores']} cores"
    return f"{cores} ({processor}), {machine['date'][:10]}, `{shorten_commit(machine)}`"
