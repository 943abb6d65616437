"""Runs phases with a line for each, the table and the JSON of `recipes.gpu_check`."""

import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from convrec.files import write_json
from recipes.selftest.checks import Machine
from recipes.selftest.runner import Outcome, Phase, run


def check(phases: Sequence[Phase], machine: Machine, seconds: float, file: Path) -> int:
    """The file is written anew after each phase, so that an interrupted check leaves one too. The exit status."""
    what, outcomes, start = {phase.name: phase.what for phase in phases}, list[Outcome](), time.time()
    where = f"{machine.gpus} GPU{'s' * (machine.gpus > 1)}" if machine.gpus else "no GPU: what a CPU can run"
    print(f"{len(phases)} phases, {where}")
    print(f"{'phase':16} {'':7} {'seconds':>7}", flush=True)
    with closing(run(phases, machine, seconds)) as running:
        for outcome in running:
            outcomes.append(outcome)
            print(line(outcome), flush=True)
            for text in outcome.log:
                print(f"      | {text}", file=sys.stderr)
            write_json(file, as_json(what, outcomes, machine.gpus, start))
    counts = [f"{sum(o.status == status for o in outcomes)} {status}" for status in ("pass", "fail", "skipped")]
    print(f"{', '.join(counts)}; {time.time() - start:.0f} s; {file}")
    return int(any(outcome.status == "fail" for outcome in outcomes))


def as_json(what: dict[str, str], outcomes: Sequence[Outcome], gpus: int, start: float) -> dict[str, Any]:
    """what: of each phase that was asked for; start: seconds since the epoch."""
    return {
        "ok": not any(outcome.status == "fail" for outcome in outcomes),
        "finished": len(outcomes) == len(what),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(start)),
        "seconds": round(time.time() - start, 1),
        "gpus": gpus,
        "left_out": {outcome.phase: outcome.reason for outcome in outcomes if outcome.status == "skipped"},
        "phases": [{"what": what[outcome.phase], **asdict(outcome)} for outcome in outcomes],
    }


def line(outcome: Outcome) -> str:
    """Name, status, seconds, and the numbers in short, or why there are none."""
    numbers = [(key, value) for key, value in outcome.figures.items() if isinstance(value, int | float | str)]
    said = ", ".join(f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in numbers)
    seconds = f"{outcome.seconds:.1f}" if outcome.seconds else ""
    return f"{outcome.phase:16} {outcome.status:7} {seconds:>7} {outcome.reason or said[:100]}"
