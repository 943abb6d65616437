"""A process that ends what a run leaves behind, whatever ended the run: kill -9, Ctrl-C, `ray stop --force`.

vLLM's engine and workers are no Ray processes: nothing ends them when the process that started them is killed, and they
keep their memory, their shared memory and their files in /tmp. So every node of a run has one guard, a plain process in
a session of its own, and one folder, /tmp/convrec-<id>, where the run's processes put everything temporary:

    members/<pid>   a process that called `join`: the driver, and every Ray worker of the run
    guard.pid       the guard's
    stacks/<pid>    where a member writes its stacks when it is asked to (convrec.runs.stacks)
    ...             TMPDIR of the run, and Ray's own folder where Ray was started by the driver

Twice a second the guard looks at /proc. It remembers the descendants of the members, and the shared memory they map.
When a member is gone, what is left of its descendants is killed. When the driver has gone or has called `end`, or no
member is left, all are killed, and whoever else has the run's folder in its environment; the shared memory is removed,
then the folder, and the guard ends.

Linux only. Imports the standard library alone: every process of a run reads it, and the guard runs it as a script.
"""

import contextlib
import faulthandler
import fcntl
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

FOLDER_VARIABLE = "CONVREC_RUN_TMP"
POLL_SECONDS = 0.5
NO_WORKER_SECONDS = 5.0  # on a node without the driver: Ray's first workers may end before the next ones start
END_SECONDS = 15.0  # that the driver waits for the guard
STARTING_SECONDS = 60.0  # what a worker may take until it joins: its imports, on busy cores
LOOKS_AT_SHM = 60
TRACKER_SECONDS = 3.0  # Python's resource trackers remove shared memory by themselves: let them
SHM = Path("/dev/shm")
STACKS = "stacks"
STACKS_SIGNAL = signal.SIGRTMIN + 3  # nothing else of a run uses it

Key = tuple[int, int]  # (pid, start time in clock ticks): a pid alone may be another process by now


# ---- in the run's processes ----


def new_folder() -> Path:
    """Make the folder of this run. Short: paths of Unix sockets end at 107 bytes, and Ray's are long."""
    folder = Path(tempfile.mkdtemp(prefix="convrec-", dir="/tmp"))
    (folder / "members").mkdir()
    return folder


def environment(folder: Path) -> dict[str, str]:
    """What the processes of a run need to find the folder; compile caches outlive the run elsewhere."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "convrec" / "torchinductor"
    return {
        FOLDER_VARIABLE: str(folder),
        "TMPDIR": str(folder),
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(cache)),
    }


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
    write_stacks_on_signal(folder)


def _enter(folder: Path, is_driver: bool, message: str, owns: bool = True) -> None:
    """owns: what this process starts and maps is the run's."""
    pid = os.getpid()
    processes = _processes()
    entry = {
        "start": processes[pid][1],
        "is_driver": is_driver,
        "owns": owns,
        "message": message,
        "not_ours": [child for child, (parent, _) in processes.items() if parent == pid],  # not started by the run
        "shm": _shared_memory(),
    }
    partial = folder / f".{pid}"
    partial.write_text(json.dumps(entry))
    partial.replace(folder / "members" / str(pid))
    if not _has_guard(folder):
        # by path and isolated: it must not depend on a working directory that goes away
        subprocess.Popen(
            [sys.executable, "-I", __file__, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )


def write_stacks_on_signal(folder: Path) -> None:
    """Have this process write the stacks of its threads to STACKS/<pid> in the folder when it gets STACKS_SIGNAL."""
    (folder / STACKS).mkdir(exist_ok=True)
    faulthandler.register(STACKS_SIGNAL, file=(folder / STACKS / str(os.getpid())).open("w"), all_threads=True)


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
        end(folder)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        tempfile.tempdir = None


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
    deadline = time.monotonic() + END_SECONDS
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return not folder.exists()


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


def _shared_memory() -> list[str]:
    return os.listdir(SHM) if SHM.is_dir() else []


def processes_of(folder: Path) -> set[int]:
    """Ids of this node's processes that have joined the run of this folder, or have it in their environment."""
    members = {int(path.name) for path in (folder / "members").glob("[0-9]*")}
    return {pid for pid in _processes() if pid in members or _has_environment(pid, folder)}


def state_of(pid: int) -> str:
    """The kernel's letter for a process: R, S, D, T, Z. Raises OSError when it has ended."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return text[text.rindex(")") + 2]


def _has_environment(pid: int, folder: Path) -> bool:
    try:
        return f"{FOLDER_VARIABLE}={folder}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def _has_guard(folder: Path) -> bool:
    try:
        pid, start = (int(word) for word in (folder / "guard.pid").read_text().split())
    except (FileNotFoundError, ValueError):
        return False
    found = _stat(pid)
    return found is not None and found[1] == start


# ---- the guard ----


def _stat(pid: int) -> tuple[int, int] | None:
    """(parent, start time) of a process that is not a zombie; None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read()
    except OSError:
        return None
    fields = text[text.rindex(b")") + 2 :].split(maxsplit=20)
    return None if fields[0] in b"ZX" else (int(fields[1]), int(fields[19]))


def _processes() -> dict[int, tuple[int, int]]:
    return {int(name): found for name in os.listdir("/proc") if name.isdigit() and (found := _stat(int(name)))}


def _mapped(pid: int) -> set[str]:
    """Names in /dev/shm that a process maps."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    return {line.split("/dev/shm/", 1)[1] for line in lines if "/dev/shm/" in line and not line.endswith("(deleted)")}


def _is_tracker(pid: int) -> bool:
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


class Guard:
    """The state of the loop: who belongs to whom, and which shared memory is the run's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.owner_of: dict[Key, Key] = {}  # descendant -> the member it descends from
        self.shm: set[str] = set()
        self.others_shm: set[str] | None = None  # there before the first member was
        self.looks_at: dict[str, int] = {}  # shared memory nobody of ours maps so far -> how often it was looked for
        self.driver: Key | None = None
        self.message = ""
        self.not_ours = {os.getpid()}
        self.owners: set[Key] = set()  # members whose descendants and shared memory are the run's
        self.seen: set[Key] = set()
        self.without_worker_since: float | None = None

    def members(self) -> set[Key]:
        members = set()
        for path in self.folder.glob("members/*"):
            entry = json.loads(path.read_text())
            key = (int(path.name), entry["start"])
            members.add(key)
            if key not in self.seen:
                self.seen.add(key)
                self.not_ours |= set(entry["not_ours"])
                if entry.get("owns", True):  # a process from before an update says nothing
                    self.owners.add(key)
                others = set(entry["shm"])
                self.others_shm = others if self.others_shm is None else self.others_shm & others
            if entry["is_driver"]:
                self.driver, self.message = key, entry["message"]
        return members

    def poll(self) -> bool:
        """One look at /proc: learn, end what lost its member. Returns whether the run goes on."""
        members = self.members()
        processes = _processes()
        alive = {(pid, start) for pid, (_, start) in processes.items()}
        children: dict[int, list[int]] = {}
        for pid, (parent, _) in processes.items():
            children.setdefault(parent, []).append(pid)
        self.owner_of = {key: owner for key, owner in self.owner_of.items() if key in alive and key not in members}
        # a member within another member's tree (a Ray worker under the driver) owns its own descendants
        owners = members & alive & self.owners
        stack = [(key[0], key) for key in owners] + [(key[0], owner) for key, owner in self.owner_of.items()]
        while stack:
            pid, owner = stack.pop()
            for child in children.get(pid, ()):
                key = (child, processes[child][1])
                if key not in members and key not in self.owner_of and child not in self.not_ours:
                    self.owner_of[key] = owner
                    stack.append((child, owner))
        self.learn_shared_memory(owners)
        for member in members - alive:
            self.kill({key for key, owner in self.owner_of.items() if owner == member})
            (self.folder / "members" / str(member[0])).unlink(missing_ok=True)
        if self.driver is not None:
            return self.driver in alive and not (self.folder / "end").exists()
        if members & alive or self.is_starting(processes):
            self.without_worker_since = None
        elif self.without_worker_since is None:
            self.without_worker_since = time.monotonic()
        return self.without_worker_since is None or time.monotonic() - self.without_worker_since < NO_WORKER_SECONDS

    def is_starting(self, processes: dict[int, tuple[int, int]]) -> bool:
        """Whether a young process of the run is neither a member yet nor started by one: a worker that still imports.

        Not an old one: what has escaped the members' trees must not keep the guard, which ends it.
        """
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        ticks = (uptime - STARTING_SECONDS) * os.sysconf("SC_CLK_TCK")
        return any(
            start > ticks
            and pid not in self.not_ours
            and (pid, start) not in self.owner_of
            and _has_environment(pid, self.folder)
            for pid, (_, start) in processes.items()
        )

    def learn_shared_memory(self, owners: set[Key]) -> None:
        """Whose a new segment is shows in the maps of processes; those of other people are soon looked at no more."""
        names = set(_shared_memory()) - (self.others_shm or set()) - self.shm
        unknown = {name for name in names if self.looks_at.get(name, 0) < LOOKS_AT_SHM}
        self.looks_at = {name: self.looks_at.get(name, 0) + 1 for name in names}
        if unknown:
            for pid, _ in owners | set(self.owner_of):
                self.shm |= _mapped(pid) & unknown

    def kill(self, keys: set[Key], trackers_too: bool = False) -> int:
        """SIGKILL; returns how many there were. Python's resource trackers end by themselves when their users have."""
        processes = _processes()
        driver_pid = self.driver[0] if self.driver else None
        number = 0
        for pid, start in keys:
            parent, actual_start = processes.get(pid, (0, 0))
            if actual_start != start or (_is_tracker(pid) and (parent == driver_pid or not trackers_too)):
                continue
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                number += 1
        return number

    def finish(self) -> None:
        """End and remove all there is. A process may start another before it is ended: look until none is left."""
        begin = time.monotonic()
        ended_by_run = (self.folder / "end").exists()
        while (waited := time.monotonic() - begin) < 2 * TRACKER_SECONDS:
            self.poll()
            ours = set(self.owner_of) | self.members()  # without their driver, workers have nothing to do
            ours |= {(pid, start) for pid, (_, start) in _processes().items() if _has_environment(pid, self.folder)}
            ours = {key for key in ours if key != self.driver and key[0] not in self.not_ours}
            if not self.kill(ours, trackers_too=waited > TRACKER_SECONDS) and not self._waits_for_trackers(ours):
                break
            time.sleep(0.05)
        for name in self.shm:
            with contextlib.suppress(OSError):
                (SHM / name).unlink()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.message and not ended_by_run:
            with contextlib.suppress(OSError):  # the terminal may be gone as well
                os.write(2, f"\n{self.message}\n".encode())

    def _waits_for_trackers(self, keys: set[Key]) -> bool:
        driver_pid = self.driver[0] if self.driver else None
        return any(
            (found := _stat(pid)) and found[1] == start and found[0] != driver_pid and _is_tracker(pid)
            for pid, start in keys
        )


def main() -> None:
    folder = Path(sys.argv[1])
    with contextlib.suppress(FileNotFoundError), open(folder / "guard.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # two processes joined at once
            return
        this_process = _stat(os.getpid())
        assert this_process is not None
        (folder / "guard.pid").write_text(f"{os.getpid()} {this_process[1]}")
        guard = Guard(folder)
        while guard.poll():
            time.sleep(POLL_SECONDS)
        guard.finish()


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if os.fork():
        os._exit(0)  # Ray ends a worker's children with the worker: the guard is nobody's child
    main()
