"""What a run of the tests found, kept as a file: `pytest --record FILE` adds its own files' results to those there."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.machine import describe_machine

OUTCOMES = ("passed", "failed", "skipped")


class ResultRecorder:
    """A pytest plugin that counts the results of each test file.

    Args:
        path: a JSON file. Results of files that this run does not test stay in it, each with its own date and commit.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._machine = describe_machine()
        self._seconds: Counter[str] = Counter()
        self._outcomes: dict[str, dict[str, str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take one part of a test: its set-up, its call or its tear-down."""
        file = report.location[0]
        self._seconds[file] += report.duration
        outcomes = self._outcomes.setdefault(file, {})
        known = outcomes.get(report.nodeid)
        # A set-up that passes says nothing yet; a tear-down that fails turns a passed test into a failed one.
        if report.failed or report.skipped or (report.when == "call" and known is None):
            outcomes[report.nodeid] = report.outcome

    def pytest_sessionfinish(self) -> None:
        """Write the file. An interrupted run is kept, too: its files have what they came to."""
        kept = json.loads(self._path.read_text(encoding="utf-8")) if self._path.exists() else {}
        kept |= {file: self._summarize(file) for file in self._outcomes}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(".partial")
        lines = ",\n".join(f"{json.dumps(file)}: {json.dumps(kept[file])}" for file in sorted(kept))
        partial.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
        partial.replace(self._path)

    def _summarize(self, file: str) -> dict[str, Any]:
        counts = Counter(self._outcomes[file].values())
        return {
            **{key: self._machine[key] for key in ("date", "commit", "processor", "cores", "gpus")},
            "minutes": round(self._seconds[file] / 60, 1),
            **{outcome: counts[outcome] for outcome in OUTCOMES},
        }
