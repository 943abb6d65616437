"""The process that cleans up after a run on one node; convrec.runs.guard explains its purpose.

Twice a second it reads /proc, and remembers the members' descendants and the shared memory that they map. When a member
has ended, its remaining descendants are killed. When the driver has ended or has called `end`, or no member is left,
all of them are killed, and every other process that has the run's folder in its environment; then the shared memory and
the folder are removed, and the guard ends.

It imports only the standard library and none of our modules, because it is run as a script, by its path.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

FOLDER_VARIABLE = "CONVREC_RUN_TMP"
POLL_SECONDS = 0.5
# On a node without the driver, the guard waits this long without members: Ray's next worker may still be importing.
NO_WORKER_SECONDS = 45.0
LOOKS_AT_SHM = 60
TRACKER_SECONDS = 3.0  # time for Python's resource trackers to remove shared memory themselves
SHM = Path("/dev/shm")

Key = tuple[int, int]  # (pid, start time in clock ticks): a pid alone may be another process by now


def make_ended_path(folder: Path) -> Path:
    """Return the path of a run's folder while it is being removed."""
    return folder.with_name(f"{folder.name}.ended")


def _read(pid: int, name: str) -> bytes:
    """Return the content of /proc/PID/NAME, b"" if the process has ended or belongs to another user."""
    try:
        with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


def read_stat(pid: int) -> tuple[int, int] | None:
    """Return (parent, start time) of a process, None if it does not exist or is a zombie."""
    if not (text := _read(pid, "stat")):
        return None
    fields = text[text.rindex(b")") + 2 :].split(maxsplit=20)
    return None if fields[0] in b"ZX" else (int(fields[1]), int(fields[19]))


def list_processes() -> dict[int, tuple[int, int]]:
    """Return (parent, start time) of every process, by pid."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    stats = {pid: read_stat(pid) for pid in pids}
    return {pid: stat for pid, stat in stats.items() if stat}


def list_shared_memory() -> list[str]:
    """Return the names in /dev/shm."""
    return os.listdir(SHM) if SHM.is_dir() else []


def find_processes(folder: Path) -> set[int]:
    """Return the ids of this node's processes that belong to the run with this temporary folder."""
    members = {int(path.name) for path in (folder / "members").glob("[0-9]*")}
    return {pid for pid in list_processes() if pid in members or _has_environment(pid, folder)}


def _has_environment(pid: int, folder: Path) -> bool:
    return f"{FOLDER_VARIABLE}={folder}\0".encode() in _read(pid, "environ")


def _find_mapped_inodes(pid: int) -> set[int]:
    """Return the inodes in /dev/shm that a process maps; names may be those of a moment, as for semaphores."""
    return {int(line.split(maxsplit=5)[4]) for line in _read(pid, "maps").splitlines() if b"/dev/shm/" in line}


def _get_inode(name: str) -> int:
    try:
        return (SHM / name).stat().st_ino
    except OSError:
        return 0


class Guard:
    """The state of the loop: which processes and which shared memory belong to the run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.owner_of: dict[Key, Key] = {}  # descendant -> the member it descends from
        self.shm: set[str] = set()
        self.others_shm: set[str] | None = None  # existed before the first member
        self.looks_at: dict[str, int] = {}  # shared memory that the run has not mapped so far -> number of checks
        self.driver: Key | None = None
        self.message = ""
        self.not_ours = {os.getpid()}
        self.owners: set[Key] = set()  # members whose descendants and shared memory are the run's
        self.seen: set[Key] = set()
        self.last_member_seen = time.monotonic()

    def members(self) -> set[Key]:
        """Read the registered processes."""
        members = set()
        for path in self.folder.glob("members/*"):
            entry = json.loads(path.read_text())
            key = (int(path.name), entry["start"])
            members.add(key)
            if key not in self.seen:
                self.seen.add(key)
                self.not_ours |= set(entry["not_ours"])
                if entry["owns"]:
                    self.owners.add(key)
                others = set(entry["shm"])
                self.others_shm = others if self.others_shm is None else self.others_shm & others
            if entry["is_driver"]:
                self.driver = key
                self.message = entry["message"]
        return members

    def poll(self) -> bool:
        """Read /proc once, and kill descendants whose member has ended.

        Returns:
            Whether the run continues.
        """
        members = self.members()
        processes = list_processes()
        alive = {(pid, start) for pid, (_, start) in processes.items()}
        # A member below another member (a Ray worker below the driver) owns its own descendants.
        owners = members & alive & self.owners
        self.owner_of = {key: owner for key, owner in self.owner_of.items() if key in alive and key not in members}
        self.learn_descendants(members, owners, processes)
        self.learn_shared_memory(owners)
        for member in members - alive:
            self.kill({key for key, owner in self.owner_of.items() if owner == member})
            (self.folder / "members" / str(member[0])).unlink(missing_ok=True)
        if self.driver is not None:
            return self.driver in alive and not (self.folder / "end").exists()
        if members & alive:
            self.last_member_seen = time.monotonic()
        return time.monotonic() - self.last_member_seen < NO_WORKER_SECONDS

    def learn_descendants(self, members: set[Key], owners: set[Key], processes: dict[int, tuple[int, int]]) -> None:
        """Assign new descendants to their members.

        Args:
            members: all registered processes, which are never assigned to another member.
            owners: the live members whose descendants are the run's.
            processes: id -> (parent, start time) of all processes on this node.
        """
        children: dict[int, list[int]] = {}
        for pid, (parent, _) in processes.items():
            children.setdefault(parent, []).append(pid)
        stack = [(key[0], key) for key in owners] + [(key[0], owner) for key, owner in self.owner_of.items()]
        while stack:
            pid, owner = stack.pop()
            for child in children.get(pid, ()):
                key = (child, processes[child][1])
                if key not in members and key not in self.owner_of and child not in self.not_ours:
                    self.owner_of[key] = owner
                    stack.append((child, owner))

    def learn_shared_memory(self, owners: set[Key]) -> None:
        """Find new segments that the run's processes map; other people's are ignored after LOOKS_AT_SHM checks."""
        names = set(list_shared_memory()) - (self.others_shm or set()) - self.shm
        unknown = {_get_inode(name): name for name in names if self.looks_at.get(name, 0) < LOOKS_AT_SHM}
        self.looks_at = {name: self.looks_at.get(name, 0) + 1 for name in names}
        if unknown:
            for pid, _ in owners | set(self.owner_of):
                self.shm |= {unknown[inode] for inode in _find_mapped_inodes(pid) & unknown.keys()}

    def kill(self, keys: set[Key], trackers_too: bool = False) -> int:
        """Send SIGKILL, and return how many processes there were.

        Python's resource trackers end after their users and are only counted, except for the driver's own, which lives
        as long as the driver.

        Args:
            keys: the processes.
            trackers_too: whether to kill resource trackers as well.
        """
        driver_pid = self.driver[0] if self.driver else None
        number = 0
        for pid, start in keys:
            parent, actual_start = read_stat(pid) or (0, 0)
            is_tracker = b"multiprocessing.resource_tracker" in _read(pid, "cmdline")
            if actual_start != start or (is_tracker and parent == driver_pid):
                continue
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if trackers_too or not is_tracker:
                    os.kill(pid, signal.SIGKILL)
                number += 1
        return number

    def finish(self) -> None:
        """Kill all processes of the run and remove its files, repeatedly, because a process may start another one."""
        begin = time.monotonic()
        was_requested = (self.folder / "end").exists()
        while (seconds := time.monotonic() - begin) < 2 * TRACKER_SECONDS:
            self.poll()
            ours = set(self.owner_of) | self.members()  # without their driver, workers have nothing to do
            ours |= {(pid, start) for pid, (_, start) in list_processes().items() if _has_environment(pid, self.folder)}
            ours = {key for key in ours if key != self.driver and key[0] not in self.not_ours}
            if not self.kill(ours, trackers_too=seconds > TRACKER_SECONDS):
                break
            time.sleep(0.05)
        for name in self.shm:
            with contextlib.suppress(OSError):
                (SHM / name).unlink()
        with contextlib.suppress(OSError):
            self.folder.rename(make_ended_path(self.folder))  # atomic: while it exists, members start another guard
        shutil.rmtree(make_ended_path(self.folder), ignore_errors=True)
        if self.message and not was_requested:
            with contextlib.suppress(OSError):  # the terminal may be gone
                os.write(2, f"\n{self.message}\n".encode())


def main() -> None:
    folder = Path(sys.argv[1])
    with contextlib.suppress(FileNotFoundError), open(folder / "guard.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # two processes joined at the same time
            return
        this_process = read_stat(os.getpid())
        assert this_process is not None
        (folder / ".guard").write_text(f"{os.getpid()} {this_process[1]}")
        os.replace(folder / ".guard", folder / "guard.pid")  # atomic: readers see the old or the new content
        guard = Guard(folder)
        while guard.poll():
            time.sleep(POLL_SECONDS)
        guard.finish()


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if os.fork():
        os._exit(0)  # Ray kills a worker's children with the worker, so the guard must not be a child
    main()
