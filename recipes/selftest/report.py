"""Progress, the table and the JSON of `recipes.gpu_check`."""

import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from convrec.files import write_json
from recipes.selftest.phases import Phase
from recipes.selftest.runner import Outcome

GIB = 2**30


class Progress:
    """Takes outcomes as they come: a line for each, and the file anew, so that an interrupted check leaves one too."""

    def __init__(self, phases: Sequence[Phase], gpus: int, file: Path) -> None:
        self.what = {phase.name: phase.what for phase in phases}
        self.gpus, self.file = gpus, file
        self.outcomes: list[Outcome] = []
        self.start = time.time()
        where = f"{gpus} GPU{'s' * (gpus > 1)}" if gpus else "no GPU: what a CPU can run"
        print(f"{len(phases)} phases, {where}", flush=True)

    def add(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        count = f"[{len(self.outcomes)}/{len(self.what)}]"
        print(f"{count} {line(outcome)} {outcome.reason or self.what[outcome.phase]}", flush=True)
        for text in outcome.log:
            print(f"      | {text}", file=sys.stderr)
        write_json(self.file, self.report())

    def report(self) -> dict[str, Any]:
        figures = {outcome.phase: outcome.figures for outcome in self.outcomes}
        return {
            "ok": not any(outcome.status == "fail" for outcome in self.outcomes),
            "finished": len(self.outcomes) == len(self.what),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.start)),
            "seconds": round(time.time() - self.start, 1),
            "host": {
                "gpus": self.gpus,
                "cores": len(os.sched_getaffinity(0)),
                "memory_bytes": psutil.virtual_memory().total,
                "kernel": platform.release(),
            },
            "versions": figures.get("versions", {}),
            "left_out": {o.phase: o.reason for o in self.outcomes if o.status == "skipped"},
            "phases": [{"what": self.what[outcome.phase], **asdict(outcome)} for outcome in self.outcomes],
        }

    def finish(self) -> int:
        """Print the table; the exit status."""
        print(f"\n{'phase':16} {'':7} {'seconds':>7} {'host GiB':>8} {'GPU GiB':>8}")
        for outcome in self.outcomes:
            print(f"{line(outcome)} {outcome.reason or figures_line(outcome.figures)}"[:160])
        counts = [
            f"{sum(o.status == status for o in self.outcomes)} {status}" for status in ("pass", "fail", "skipped")
        ]
        print(f"{', '.join(counts)}; {time.time() - self.start:.0f} s; {self.file}")
        return 0 if self.report()["ok"] else 1


def line(outcome: Outcome) -> str:
    """The columns of an outcome: name, status, seconds and GiB where they were measured."""
    if outcome.status == "skipped":
        return f"{outcome.phase:16} skipped {'':7} {'':8} {'':8}"
    device = f"{outcome.device_bytes / GIB:8.2f}" if outcome.device_bytes else f"{'':8}"
    return f"{outcome.phase:16} {outcome.status:7} {outcome.seconds:7.1f} {outcome.host_bytes / GIB:8.2f} {device}"


def figures_line(figures: dict[str, Any]) -> str:
    """The numbers of a phase, in short."""
    shown = {key: value for key, value in figures.items() if isinstance(value, int | float | str)}
    return ", ".join(
        f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in shown.items()
    )
