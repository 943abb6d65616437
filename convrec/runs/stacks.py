"""What every process of a run does on this node: its state and the stacks of its threads, as text.

Each process writes its own (faulthandler), which one that is stopped or hangs in the kernel cannot: that it is so is
said of it instead. A thread of it does so when it sees that it is asked: with Python's lock, since writing the stacks
of threads that run can end a process. Where that lock is held, a signal has the main thread's written. Imports the
standard library alone, until it looks at a process.
"""

import contextlib
import faulthandler
import os
import signal
import time
from pathlib import Path

from convrec.runs import guard_process

LOOK_SECONDS = 2.0  # whether it is asked
SIGNAL_SECONDS = 0.5  # for those that have not written by then
STACKS = "stacks"
ASKED = "asked"
STACKS_SIGNAL = signal.SIGRTMIN + 3  # nothing else of a run uses it
STOPPED = {"stopped": "is stopped", "tracing-stop": "is stopped by a debugger"}  # by psutil's words for a state
STATES = STOPPED | {"disk-sleep": "waits for a disk or a network file system"}


def write_on_signal(folder: Path) -> None:
    """Have this process write the stack of its main thread to STACKS/<pid> in the folder when it gets STACKS_SIGNAL."""
    (folder / STACKS).mkdir(exist_ok=True)
    faulthandler.register(STACKS_SIGNAL, file=(folder / STACKS / str(os.getpid())).open("a"), all_threads=False)


def write_if_asked(folder: Path, answered: str) -> str:
    """Write the stacks of all threads of this process, if `dump_stacks` has asked since. Returns what to give next."""
    try:
        asked = (folder / STACKS / ASKED).read_text()
        if asked not in ("", answered):  # "": whoever asks has not written it yet
            with (folder / STACKS / str(os.getpid())).open("a") as file:
                faulthandler.dump_traceback(file, all_threads=True)
    except OSError:  # nobody has asked, or the run ends
        return answered
    return asked


def dump_stacks(folder: str, node: str) -> tuple[str, list[str]]:
    """(the stacks of all processes in Python that belong to the run with this temporary folder, and of others, Ray's
    raylet, that are stopped; those that cannot run and why)."""
    pids = sorted(guard_process.find_processes(Path(folder)))
    places = {pid: Path(folder) / STACKS / str(pid) for pid in pids}
    files = {pid: file for pid, file in places.items() if file.exists()}
    for file in files.values():
        os.truncate(file, 0)
    if files:
        (Path(folder) / STACKS / ASKED).write_text(str(time.monotonic_ns()))
        time.sleep(LOOK_SECONDS + SIGNAL_SECONDS)
    for pid, file in files.items():  # of others the signal would be the end
        if not file.stat().st_size:
            with contextlib.suppress(OSError):  # it has ended
                os.kill(pid, STACKS_SIGNAL)
    time.sleep(SIGNAL_SECONDS)
    stacks = [_describe_process(pid, Path(folder), node) for pid in pids]
    found = [stack for stack in stacks if stack]
    return "\n".join(text for text, _ in found), [blamed for _, blamed in found if blamed]


def _describe_process(pid: int, folder: Path, node: str) -> tuple[str, str] | None:
    """(its stacks for the log, what is said of it where it cannot run or ""); None for one of no interest."""
    import psutil  # here: every process of a run reads this module

    try:
        process = psutil.Process(pid)
        program = process.exe()
        name = " ".join(process.cmdline())[:80]
        state = process.status()
    except psutil.Error:  # it has ended
        return None
    if not Path(program).name.startswith("python") and state not in STOPPED:
        return None
    file = folder / STACKS / str(pid)
    text = file.read_text(errors="replace").strip() if file.exists() else ""
    trouble = STATES.get(state)
    described = f"--- process {pid} on {node}, {name}{f': {trouble}' if trouble else ''}\n{text or 'no stacks of it'}"
    return described, f"process {pid} on {node} ({name}) {trouble}" if trouble else ""
