"""Start a guard that cleans up after a run, however the run ended: kill -9, Ctrl-C, `ray stop --force`.

vLLM's engine and workers are not Ray processes: nothing ends them when the process that started them is killed, and
they keep their memory, their shared memory and their files in /tmp. Every node of a run therefore has one guard, a
plain process in its own session, and one folder, /tmp/convrec-<id>, for all temporary files of the run's processes:

    members/<pid>   a process that called `register_process`: the driver, and every Ray worker of the run
    guard.pid       the guard's process id
    stacks/<pid>    a member's stacks, written on request (convrec.runs.stacks)
    ...             TMPDIR of the run, and Ray's own folder if the driver started Ray

convrec.runs.guard_process is the guard; the run's processes call this module. Linux only. It imports only the standard
library, because every process of a run imports it.
"""

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from convrec.runs import guard_process, stacks
from convrec.runs.guard_process import FOLDER_VARIABLE, list_processes, list_shared_memory, read_stat

END_SECONDS = 15.0  # the driver waits this long for the guard
COMPILED = "TORCHINDUCTOR_CACHE_DIR"


def make_run_folder() -> Path:
    """Make the temporary folder of this run. Its path is short: Unix sockets allow 107 bytes, and Ray's are long."""
    folder = Path(tempfile.mkdtemp(prefix="convrec-", dir="/tmp"))
    (folder / "members").mkdir()
    return folder


def environment(folder: Path) -> dict[str, str]:
    """Return the variables by which a run's processes find the folder; compile caches are elsewhere and stay."""
    return {FOLDER_VARIABLE: str(folder), "TMPDIR": str(folder), COMPILED: compile_cache()}


def move_socket_to_run_folder(address: str) -> str:
    """Move the address of the socket that sends weights to vLLM from the temporary folder to the run's folder.

    verl names it after the Ray job, and two local Ray instances on one machine both have job 01000000: one run would
    receive the other's weights.
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    return f"ipc://{folder}/{os.path.basename(address)}" if folder else address


def compile_cache() -> str:
    """Return the folder for code that torch compiles.

    torch's default is a folder in /tmp that importing it creates and nobody removes. If the user's cache is not
    writable, importing torch would fail, so this is then a private folder in /tmp.
    """
    configured = os.environ.get(COMPILED)
    if configured:
        return configured
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "convrec" / "torchinductor"
    nearest = next(folder for folder in (cache, *cache.absolute().parents) if folder.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return str(cache)
    private = Path(f"/tmp/convrec-cache-{os.geteuid()}")
    # If /tmp was cleaned during a run, torch has created the folder again with the permissions of the umask.
    if _is_writable_only_by_us(private):
        private.chmod(0o700)
    _make_private(private)
    return str(private)


def _is_writable_only_by_us(folder: Path) -> bool:
    """Return whether this is a real folder of this user to which nobody else can write."""
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def register_process(is_driver: bool = False, message: str = "") -> None:
    """Register this process with the guard of its run on this node, starting the guard if necessary.

    Does nothing without `FOLDER_VARIABLE` in the environment. Ray calls it in every worker (setup hook).

    Args:
        is_driver: whether the run ends with this process.
        message: printed by the guard if the driver dies without calling `end`.
    """
    name = os.environ.get(FOLDER_VARIABLE)
    if not name:
        return
    folder = Path(name)
    _make_private(folder)
    (folder / "members").mkdir(exist_ok=True)
    tempfile.tempdir = None  # Python may have chosen it before the folder existed on this node
    _register(folder, is_driver, message)
    stacks.write_on_signal(folder)


def _register(folder: Path, is_driver: bool, message: str, owns: bool = True) -> None:
    """Register this process; owns: whether the processes that it starts and the memory that it maps are the run's."""
    pid = os.getpid()
    processes = list_processes()
    entry = {
        "start": processes[pid][1],
        "is_driver": is_driver,
        "owns": owns,
        "message": message,
        "not_ours": [child for child, (parent, _) in processes.items() if parent == pid],  # not started by the run
        "shm": list_shared_memory(),
    }
    partial = folder / f".{pid}"
    partial.write_text(json.dumps(entry))
    partial.replace(folder / "members" / str(pid))
    terminal = os.dup(2)  # stderr may soon be a log, but the guard's message is for the terminal
    start_guard(folder, terminal)
    threading.Thread(target=_keep_guard, args=[folder, terminal], daemon=True).start()


def _keep_guard(folder: Path, terminal: int) -> None:
    """Restart the guard if it was killed, and write the stacks of this process on request.

    The new guard recovers the state of the old one from /proc and the folder.
    """
    answered = ""
    while folder.exists():
        start_guard(folder, terminal)
        answered = stacks.write_if_requested(folder, answered)
        time.sleep(stacks.LOOK_SECONDS)


def start_guard(folder: Path, terminal: int = 2) -> None:
    """Start a guard in another process if the folder exists and has none.

    Args:
        folder: the run's temporary folder.
        terminal: the file descriptor for the guard's message; 2 is stderr.
    """
    if folder.exists() and not _has_guard(folder):
        # By path and isolated, because the working directory may be removed.
        subprocess.Popen(
            [sys.executable, "-I", guard_process.__file__, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=terminal,
            start_new_session=True,
            cwd="/",
        )


def _make_private(folder: Path) -> None:
    """Make a private folder, or check that it is one: on other nodes of a cluster, somebody may know its name.

    Raises:
        RuntimeError: it is a link, another user's folder, or one that others may enter.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise RuntimeError(
            f"{folder} on {socket.gethostname()} is not a private folder of this user (user {status.st_uid}, mode "
            f"{stat.filemode(status.st_mode)}) and is not used. Remove it; the next start chooses another name"
        )


@contextlib.contextmanager
def guarded(message: str) -> Iterator[Path]:
    """Make this process the driver of a run, and end everything that it started at the end of the block.

    Yields:
        The temporary folder of the run.
    """
    folder = make_run_folder()
    before = {name: os.environ.get(name) for name in environment(folder)}
    os.environ.update(environment(folder))
    try:
        register_process(is_driver=True, message=message)
        yield folder
    finally:
        with _ignored_child_exits():
            end(folder)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        tempfile.tempdir = None


@contextlib.contextmanager
def _ignored_child_exits() -> Iterator[None]:
    """Take no notice of children that end: torch raises an error wherever the process is when a loader's process dies.

    Only a main thread can change what a signal does, and only there does torch's handler run.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, handler or signal.SIG_DFL)  # None: set by C code


@contextlib.contextmanager
def guard_children() -> Iterator[Path]:
    """End registered child processes, and everything that they start, with the block or with this process.

    A child gets `environment(folder)` and calls `register_process`. Anything else that this process starts, maps or
    sets is left alone, because it may be the user's own process.

    Yields:
        The temporary folder for the children.
    """
    folder = make_run_folder()
    _register(folder, is_driver=True, message="", owns=False)
    try:
        yield folder
    finally:
        end(folder)


def end(folder: Path) -> bool:
    """Let the guard end and remove everything that the driver started.

    Args:
        folder: the run's temporary folder.

    Returns:
        Whether the guard has finished within END_SECONDS.
    """
    request_end(folder)
    return wait_until_gone(folder, END_SECONDS)


def wait_until_gone(folder: Path, seconds: float) -> bool:
    """Wait until the guard has removed the folder.

    Args:
        folder: the run's temporary folder.
        seconds: the longest wait.

    Returns:
        Whether the folder is gone.
    """
    deadline = time.monotonic() + seconds
    paths = (folder, guard_process.make_ended_path(folder))
    while (exists := any(path.exists() for path in paths)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not exists


def request_end(folder: Path) -> None:
    """Ask the guard to end and remove everything without printing its message."""
    with contextlib.suppress(FileNotFoundError):
        (folder / "end").touch()


def set_exit_message(message: str) -> None:
    """Replace the message that the guard prints if this driver ends without calling `end`."""
    name = os.environ.get(FOLDER_VARIABLE)
    member = Path(name or "", "members", str(os.getpid()))
    if not name or not member.exists():
        return
    partial = member.parent.parent / f".{member.name}"
    partial.write_text(json.dumps(json.loads(member.read_text()) | {"message": message}))
    partial.replace(member)


def _has_guard(folder: Path) -> bool:
    try:
        pid, start = (int(word) for word in (folder / "guard.pid").read_text().split())
    except (FileNotFoundError, ValueError):
        return False
    process = read_stat(pid)
    return process is not None and process[1] == start
