"""Does everything that a run needs of GPUs work on this machine? A table, and JSON to attach to an issue.

Without a GPU the parts run that a CPU can run, and the table says what was left out. docs/how-to/gpu.md
"""

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

from convrec.gpus import usable_gpus
from convrec.runs import guard
from recipes.launch.environment import keep_to_loopback, process_environment, set_thread_policy
from recipes.selftest.checks import Machine
from recipes.selftest.phases import PHASES
from recipes.selftest.report import check

SECONDS = 600.0  # of all phases together


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="convrec gpu-check", description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=Path("gpu_check.json"), help="the file to write")
    names = [phase.name for phase in PHASES]
    parser.add_argument("--only", nargs="+", metavar="PHASE", choices=names, help="these phases alone (all)")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the phases' processes are ended too
    set_thread_policy()
    keep_to_loopback()
    count = usable_gpus()
    phases = [phase for phase in PHASES if not options.only or phase.name in options.only]
    with tempfile.TemporaryDirectory(prefix="convrec-gpu-check-") as folder:
        os.environ.update(process_environment(count > 0) | {guard.FOLDER_VARIABLE: folder})  # of the phases' processes
        os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker")  # who is killed leaves it tqdm's lock
        return check(phases, Machine(Path(folder), count), SECONDS, options.json)
