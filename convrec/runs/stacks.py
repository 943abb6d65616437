"""Dump what every process of a run does on this node: its state and the stacks of its threads, as text.

Each process writes its own stacks (faulthandler); for a process that is stopped or hangs in the kernel, its state is
reported instead. A thread of the process writes them on request, holding Python's lock, because writing the stacks of
running threads can crash a process. If another thread holds the lock, a signal writes the stack of the main thread.
Imports only the standard library until it inspects a process.
"""

import contextlib
import faulthandler
import os
import signal
import time
from pathlib import Path

from convrec.runs import guard_process

LOOK_SECONDS = 2.0  # between two looks for a request
SIGNAL_SECONDS = 0.5  # additional wait before processes that have not answered get the signal
STACKS = "stacks"
ASKED = "asked"
STACKS_SIGNAL = signal.SIGRTMIN + 3  # nothing else in a run uses it
STOPPED = {"stopped": "is stopped", "tracing-stop": "is stopped by a debugger"}  # by psutil's name of the state
STATES = STOPPED | {"disk-sleep": "waits for a disk or a network file system"}


def write_on_signal(folder: Path) -> None:
    """Let STACKS_SIGNAL write the stack of this process's main thread to STACKS/<pid> in the folder."""
    (folder / STACKS).mkdir(exist_ok=True)
    faulthandler.register(STACKS_SIGNAL, file=(folder / STACKS / str(os.getpid())).open("a"), all_threads=False)


def write_if_requested(folder: Path, answered: str) -> str:
    """Write the stacks of all threads of this process if `dump_stacks` has requested them.

    Args:
        folder: the temporary folder of the run.
        answered: the last request that was answered, "" at first.

    Returns:
        The `answered` of the next call.
    """
    try:
        request = (folder / STACKS / ASKED).read_text()
        if request not in ("", answered):  # "": the request is still being written
            with (folder / STACKS / str(os.getpid())).open("a") as file:
                faulthandler.dump_traceback(file, all_threads=True)
    except OSError:  # there is no request, or the run is ending
        return answered
    return request


def dump_stacks(folder: str, node: str) -> tuple[str, list[str]]:
    """Collect the stacks of a run's Python processes, and the state of other processes if they are stopped.

    Args:
        folder: the temporary folder of the run.
        node: what messages call this node.

    Returns:
        The stacks as text, and a line for each process that cannot run, such as a stopped raylet.
    """
    pids = sorted(guard_process.find_processes(Path(folder)))
    paths = {pid: Path(folder) / STACKS / str(pid) for pid in pids}
    files = {pid: path for pid, path in paths.items() if path.exists()}
    for file in files.values():
        os.truncate(file, 0)
    if files:
        (Path(folder) / STACKS / ASKED).write_text(str(time.monotonic_ns()))
        time.sleep(LOOK_SECONDS + SIGNAL_SECONDS)
    for pid, file in files.items():  # the signal would kill other processes
        if not file.stat().st_size:
            with contextlib.suppress(OSError):  # it has ended
                os.kill(pid, STACKS_SIGNAL)
    time.sleep(SIGNAL_SECONDS)
    descriptions = [_describe_process(pid, Path(folder), node) for pid in pids]
    relevant = [description for description in descriptions if description]
    return "\n".join(text for text, _ in relevant), [problem for _, problem in relevant if problem]


def _describe_process(pid: int, folder: Path, node: str) -> tuple[str, str] | None:
    """Return (stacks for the log, why it cannot run or ""), None for a process of no interest."""
    import psutil  # imported here because every process of a run reads this module

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
    problem = STATES.get(state)
    heading = f"--- process {pid} on {node}, {name}{f': {problem}' if problem else ''}"
    return f"{heading}\n{text or 'no stacks'}", f"process {pid} on {node} ({name}) {problem}" if problem else ""
