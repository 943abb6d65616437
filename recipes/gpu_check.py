"""Does everything that a run needs of GPUs work on this machine? A table, and JSON to attach to an issue.

Without a GPU the parts run that a CPU can run, and the table says what was left out. docs/how-to/check-gpus.md
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
from recipes.launch.environment import process_environment, set_up_process
from recipes.options.gpu_check import GpuCheckOptions
from recipes.selftest.checks import Machine
from recipes.selftest.phases import PHASES
from recipes.selftest.runner import Outcome, Phase, run

SECONDS = 600.0  # of all phases together


def check(phases: Sequence[Phase], machine: Machine, seconds: float, file: Path) -> int:
    """Run the phases, a line each. The file is written anew after each, so that an interrupted check leaves one too.
    The exit status."""
    what = {phase.name: phase.what for phase in phases}
    outcomes = list[Outcome]()
    start = time.time()
    where = f"{machine.gpus} GPU{'s' * (machine.gpus > 1)}" if machine.gpus else "no GPU: what a CPU can run"
    print(f"{len(phases)} phases, {where}")
    print(f"{'phase':16} {'':7} {'seconds':>7}", flush=True)
    with closing(run(phases, machine, seconds)) as running:
        for outcome in running:
            outcomes.append(outcome)
            print(line(outcome), flush=True)
            for text in outcome.log:
                print(f"      | {text}", file=sys.stderr)
            found = {
                "ok": all(one.status != "fail" for one in outcomes),
                "finished": len(outcomes) == len(phases),
                "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(start)),
                "seconds": round(time.time() - start, 1),
                "gpus": machine.gpus,
                "left_out": {one.phase: one.reason for one in outcomes if one.status == "skipped"},
                "phases": [{"what": what[one.phase], **asdict(one)} for one in outcomes],
            }
            write_json(file, found)
    counts = [f"{sum(o.status == status for o in outcomes)} {status}" for status in ("pass", "fail", "skipped")]
    print(f"{', '.join(counts)}; {time.time() - start:.0f} s; {file}")
    return int(any(outcome.status == "fail" for outcome in outcomes))


def line(outcome: Outcome) -> str:
    """Name, status, seconds, and the numbers in short, or why there are none."""
    numbers = [(key, value) for key, value in outcome.figures.items() if isinstance(value, int | float | str)]
    said = ", ".join(f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in numbers)
    seconds = f"{outcome.seconds:.1f}" if outcome.seconds else ""
    return f"{outcome.phase:16} {outcome.status:7} {seconds:>7} {outcome.reason or said[:100]}"


@command(GpuCheckOptions)
def main(options: GpuCheckOptions) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the phases' processes are ended too
    set_up_process()
    count = usable_gpus()
    phases = [phase for phase in PHASES if not options.only or phase.name in options.only]
    with guard.guarded_children() as folder:
        os.environ.update(process_environment(count > 0) | guard.environment(folder))  # of the phases' processes
        os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker")  # who is killed leaves it tqdm's lock
        return check(phases, Machine(folder, count), SECONDS, options.json)
