"""A process that ends what a run leaves behind, whatever ended the run: kill -9, Ctrl-C, `ray stop --force`.

vLLM's engine and workers are no Ray processes: nothing ends them when the process that started them is killed, and they
keep their memory, their shared memory and their files in /tmp. So every node of a run has one guard, a plain process in
a session of its own, and one folder, /tmp/convrec-<id>, where the run's processes put everything temporary:

    members/<pid>   a process that called `join`: the driver, and every Ray worker of the run
    guard.pid       the guard's
    stacks/<pid>    where a member writes its stacks when it is asked to (convrec.runs.stacks)
    ...             TMPDIR of the run, and Ray's own folder where Ray was started by the driver

What the guard does: convrec.runs.guard_process. This is what the run's processes call. Linux only. Imports the standard
library alone: every process of a run reads it.
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
from convrec.runs.guard_process import FOLDER_VARIABLE, all_processes, read_stat, shared_memory

END_SECONDS = 15.0  # that the driver waits for the guard
COMPILED = "TORCHINDUCTOR_CACHE_DIR"


def new_folder() -> Path:
    """Make the folder of this run. Short: paths of Unix sockets end at 107 bytes, and Ray's are long."""
    folder = Path(tempfile.mkdtemp(prefix="convrec-", dir="/tmp"))
    (folder / "members").mkdir()
    return folder


def environment(folder: Path) -> dict[str, str]:
    """What the processes of a run need to find the folder; compile caches outlive the run elsewhere."""
    return {FOLDER_VARIABLE: str(folder), "TMPDIR": str(folder), COMPILED: compile_cache()}


def in_run_folder(address: str) -> str:
    """The socket by which weights reach vLLM, which verl puts into the temporary folder, in the run's folder.

    It is called after the Ray job, and two local Rays on one machine both have job 01000000: one run would receive
    the other's weights.
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    return f"ipc://{folder}/{os.path.basename(address)}" if folder else address


def compile_cache() -> str:
    """Where torch keeps what it compiles. Its default is a folder in /tmp that an import makes and nobody removes.

    Importing torch would fail where the user's cache cannot be written: then it is a folder of this user alone in /tmp.
    """
    if given := os.environ.get(COMPILED):
        return given
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "convrec" / "torchinductor"
    nearest = next(folder for folder in (cache, *cache.absolute().parents) if folder.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return str(cache)
    own = Path(f"/tmp/convrec-cache-{os.geteuid()}")
    # Where /tmp was cleaned during a run, torch makes the folder again with the permissions of the umask.
    if _is_writable_by_us_alone(own):
        own.chmod(0o700)
    _make_private(own)
    return str(own)


def _is_writable_by_us_alone(folder: Path) -> bool:
    """Whether this is a folder of this user, no link, into which nobody else could put anything."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def join(is_driver: bool = False, message: str = "") -> None:
    """Put this process under the guard of its run on this node, starting the guard if need be.

    Without `FOLDER_VARIABLE` in the environment it does nothing. Ray calls it in every worker (setup hook).

    Args:
        is_driver: the run ends with this process.
        message: what the guard tells the terminal when the driver dies without having called `end`.
    """
    name = os.environ.get(FOLDER_VARIABLE)
    if not name:
        return
    folder = Path(name)
    _make_private(folder)
    (folder / "members").mkdir(exist_ok=True)
    tempfile.tempdir = None  # it may have been chosen before the folder existed on this node
    _enter(folder, is_driver, message)
    stacks.write_on_signal(folder)


def _enter(folder: Path, is_driver: bool, message: str, owns: bool = True) -> None:
    """owns: what this process starts and maps is the run's."""
    pid = os.getpid()
    processes = all_processes()
    entry = {
        "start": processes[pid][1],
        "is_driver": is_driver,
        "owns": owns,
        "message": message,
        "not_ours": [child for child, (parent, _) in processes.items() if parent == pid],  # not started by the run
        "shm": shared_memory(),
    }
    partial = folder / f".{pid}"
    partial.write_text(json.dumps(entry))
    partial.replace(folder / "members" / str(pid))
    terminal = os.dup(2)  # stderr may soon be a log, and what a guard says is for the terminal
    start_guard(folder, terminal)
    threading.Thread(target=_keep_guard, args=[folder, terminal], daemon=True).start()


def _keep_guard(folder: Path, terminal: int) -> None:
    """A guard that was killed is started again; what it had learned shows in /proc and in the folder. And whoever asks
    for the stacks of this process gets them."""
    answered = ""
    while folder.exists():
        start_guard(folder, terminal)
        answered = stacks.write_if_asked(folder, answered)
        time.sleep(stacks.LOOK_SECONDS)


def start_guard(folder: Path, terminal: int = 2) -> None:
    """Where there is none, and something to guard. terminal: a file descriptor of what it tells."""
    if folder.exists() and not _has_guard(folder):
        # by path and isolated: it must not depend on a working directory that goes away
        subprocess.Popen(
            [sys.executable, "-I", guard_process.__file__, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=terminal,
            start_new_session=True,
            cwd="/",
        )


def _make_private(folder: Path) -> None:
    """Make the folder for this user alone, or find it so: on other nodes of a cluster somebody may know its name.

    Raises RuntimeError for a link, another user's folder, and one that others may enter.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise RuntimeError(
            f"{folder} on {socket.gethostname()} is not a folder of this user alone (user {found.st_uid}, mode "
            f"{stat.filemode(found.st_mode)}): nothing is put there. Remove it; the next start takes another name"
        )


@contextlib.contextmanager
def guarded(message: str) -> Iterator[Path]:
    """Make this process the driver of a run; on leaving, all it has started is ended. Yields the run's folder."""
    folder = new_folder()
    before = {name: os.environ.get(name) for name in environment(folder)}
    os.environ.update(environment(folder))
    try:
        join(is_driver=True, message=message)
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
def guarded_children() -> Iterator[Path]:
    """A folder for processes that get `environment(folder)` and call `join`: these, and what they start, are ended when
    the block ends, or this process does. It may be a user's own: what else it starts, maps and sets is left alone."""
    folder = new_folder()
    _enter(folder, is_driver=True, message="", owns=False)
    try:
        yield folder
    finally:
        end(folder)


def end(folder: Path) -> bool:
    """The driver has finished: have everything it started ended and removed. Returns whether the guard is done."""
    begin_end(folder)
    return wait_until_gone(folder, END_SECONDS)


def wait_until_gone(folder: Path, seconds: float) -> bool:
    """Until the guard has removed the folder, so many seconds at most. Returns whether it has."""
    deadline = time.monotonic() + seconds
    names = (folder, guard_process.ended(folder))
    while (is_there := any(name.exists() for name in names)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_there


def begin_end(folder: Path) -> None:
    """Have the guard end and remove everything, and say nothing."""
    with contextlib.suppress(FileNotFoundError):
        (folder / "end").touch()


def explain(message: str) -> None:
    """Have the guard say this, and not what `join` was given, when this driver ends without having called `end`."""
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
    found = read_stat(pid)
    return found is not None and found[1] == start
