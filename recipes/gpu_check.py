"""Check everything that a run needs from this machine's GPUs; prints a table, writes JSON to attach to an issue.

Without a GPU, only the phases that a CPU can run are checked; the table lists the others as skipped.
docs/how-to/check-gpus.md
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from convrec.base.files import write_json
from convrec.base.gpus import usable_gpus
from convrec.base.options import command
from convrec.runs import guard
from recipes.launch.environment import make_process_environment, set_up_process
from recipes.options.gpu_check import GpuCheckOptions
from recipes.selftest.checks import Machine
from recipes.selftest.phases import PHASES
from recipes.selftest.runner import Outcome, Phase, run

SECONDS = 600.0  # for all phases together


def check(phases: Sequence[Phase], machine: Machine, seconds: float, file: Path) -> int:
    """Run phases, and print one line per phase.

    Args:
        phases: to run.
        machine: folder for their files, and number of GPUs.
        seconds: limit for all phases together.
        file: JSON file of the results, rewritten after each phase in case the check is interrupted.

    Returns:
        The exit status, 1 if a phase failed.
    """
    descriptions = {phase.name: phase.what for phase in phases}
    outcomes = list[Outcome]()
    start = time.time()
    where = f"{machine.gpus} GPU{'s' * (machine.gpus > 1)}" if machine.gpus else "no GPU: only phases for a CPU"
    print(f"{len(phases)} phases, {where}")
    print(f"{'phase':16} {'':7} {'seconds':>7}", flush=True)
    with closing(run(phases, machine, seconds)) as running:
        for outcome in running:
            outcomes.append(outcome)
            print(format_outcome(outcome), flush=True)
            for text in outcome.log:
                print(f"      | {text}", file=sys.stderr)
            results = {
                "ok": all(outcome.status != "fail" for outcome in outcomes),
                "finished": len(outcomes) == len(phases),
                "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(start)),
                "seconds": round(time.time() - start, 1),
                "gpus": machine.gpus,
                "left_out": {outcome.phase: outcome.reason for outcome in outcomes if outcome.status == "skipped"},
                "phases": [{"what": descriptions[outcome.phase], **asdict(outcome)} for outcome in outcomes],
            }
            write_json(file, results)
    counts = [
        f"{sum(outcome.status == status for outcome in outcomes)} {status}" for status in ("pass", "fail", "skipped")
    ]
    print(f"{', '.join(counts)}; {time.time() - start:.0f} s; {file}")
    return int(any(outcome.status == "fail" for outcome in outcomes))


def format_outcome(outcome: Outcome) -> str:
    """Format a phase's outcome: name, status, seconds, and its figures or the reason why there are none."""
    numbers = [(key, value) for key, value in outcome.figures.items() if isinstance(value, int | float | str)]
    figures = ", ".join(
        f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in numbers
    )
    seconds = f"{outcome.seconds:.1f}" if outcome.seconds else ""
    return f"{outcome.phase:16} {outcome.status:7} {seconds:>7} {outcome.reason or figures[:100]}"


@command(GpuCheckOptions)
def main(options: GpuCheckOptions) -> int:
    """Run the phases that options choose; return the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # exits normally, which also ends the phases' processes
    set_up_process()
    count = usable_gpus()
    phases = [phase for phase in PHASES if not options.only or phase.name in options.only]
    with guard.guard_children() as folder:
        os.environ.update(make_process_environment(count > 0) | guard.environment(folder))  # for the phases' processes
        os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker")  # a killed process leaks tqdm's lock
        return check(phases, Machine(folder, count), SECONDS, options.json)
