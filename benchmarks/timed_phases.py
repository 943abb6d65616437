"""Run `convrec COMMAND` and log the phases of its training loop, for profile_step.py.

python benchmarks/timed_phases.py FILE COMMAND...

FILE gets a JSON line per phase: its name, its begin and end by time.monotonic(), and the driver's process id.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from convrec.runs.phases import Phases
from recipes.cli import run


def log_phases(file: str) -> None:
    """Append every phase that ends in this process, or in a fork of it, to a file."""
    run_phase = Phases.phase

    @contextlib.contextmanager
    def run_logged_phase(self: Phases, name: str) -> Iterator[None]:
        begin = time.monotonic()
        with run_phase(self, name):
            yield
        row = {"name": name, "begin": begin, "end": time.monotonic(), "pid": os.getpid()}
        with open(file, "a", encoding="utf-8") as lines:
            lines.write(json.dumps(row) + "\n")

    Phases.phase = run_logged_phase  # type: ignore[method-assign]


if __name__ == "__main__":
    log_phases(sys.argv[1])
    run(sys.argv[2:])
