"""What phases may do; a module of its own, so that their processes can import it."""

import os
import subprocess
import sys
import time
from typing import Any

from recipes.selftest.checks import Machine, require_at_most

Figures = dict[str, Any]


def fine(machine: Machine) -> Figures:
    return {"device": machine.device, "value": 1.5}


def slow(machine: Machine) -> Figures:
    time.sleep(2.5)
    return {}


def pid(machine: Machine) -> Figures:
    return {"pid": os.getpid()}


def wrong(machine: Machine) -> Figures:
    require_at_most("difference", float("nan"), 0.1)
    return {}


def hang(machine: Machine) -> Figures:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", str(machine.folder)])
    time.sleep(600)
    return {}


def dies(machine: Machine) -> Figures:
    print("last words", file=sys.stderr)
    os.abort()
