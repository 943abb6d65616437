"""What every process of a run does on this node: its state and the stacks of its threads, as text.

py-spy, which Ray brings, reads them from outside, where the kernel lets it; else the process writes its own
(faulthandler), which one that is stopped or hangs in the kernel cannot. Imports the standard library alone.
"""

import faulthandler
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from convrec.runs import guard_process

SPY_SECONDS = 20.0
SELF_SECONDS = 2.0
THREADS = 4
STACKS = "stacks"
STACKS_SIGNAL = signal.SIGRTMIN + 3  # nothing else of a run uses it
STATES = {"T": "is stopped", "t": "is stopped by a debugger", "D": "waits for a disk or a network file system"}


def write_on_signal(folder: Path) -> None:
    """Have this process write the stacks of its threads to STACKS/<pid> in the folder when it gets STACKS_SIGNAL."""
    (folder / STACKS).mkdir(exist_ok=True)
    faulthandler.register(STACKS_SIGNAL, file=(folder / STACKS / str(os.getpid())).open("w"), all_threads=True)


def state_of(pid: int) -> str:
    """The kernel's letter for a process: R, S, D, T, Z. Raises OSError when it has ended."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return text[text.rindex(")") + 2]


def of_this_node(folder: str, node: str) -> tuple[str, list[str]]:
    """(the stacks of all processes in Python that belong to the run with this temporary folder, and of others, Ray's
    raylet, that are stopped; those that cannot run and why)."""
    pids = sorted(guard_process.processes_of(Path(folder)))
    with ThreadPoolExecutor(THREADS) as threads:
        found = [stack for stack in threads.map(lambda pid: _of_process(pid, Path(folder), node), pids) if stack]
    return "\n".join(text for text, _ in found), [blamed for _, blamed in found if blamed]


def _of_process(pid: int, folder: Path, node: str) -> tuple[str, str] | None:
    """(its stacks for the log, what is said of it where it cannot run or ""); None for one of no interest."""
    try:
        program = Path(os.readlink(f"/proc/{pid}/exe")).name
        name = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:80]
        state = state_of(pid)
    except OSError:  # it has ended
        return None
    if not program.startswith("python") and state not in "Tt":
        return None
    text = _by_py_spy(pid) or _by_itself(pid, folder) or "its stacks cannot be read"
    trouble = STATES.get(state)
    described = f"--- process {pid} on {node}, {name}{f': {trouble}' if trouble else ''}\n{text.strip()}"
    return described, f"process {pid} on {node} ({name}) {trouble}" if trouble else ""


def _by_py_spy(pid: int) -> str:
    beside = Path(sys.executable).with_name("py-spy")
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if program is None:
        return ""
    try:
        # not blocking: a process that is stopped already could not be stopped for it
        command = [program, "dump", "--nonblocking", "--pid", str(pid)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SPY_SECONDS, check=False)
    except (subprocess.TimeoutExpired, OSError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _by_itself(pid: int, folder: Path) -> str:
    file = folder / STACKS / str(pid)
    if not file.exists():
        return ""
    try:
        os.kill(pid, STACKS_SIGNAL)
        time.sleep(SELF_SECONDS)
        return file.read_text(errors="replace")
    except OSError:
        return ""
