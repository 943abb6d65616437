"""The process that ends what a run leaves behind on one node (convrec.runs.guard has what it is for).

Twice a second it looks at /proc. It remembers the descendants of the members, and the shared memory they map. When a
member is gone, what is left of its descendants is killed. When the driver has gone or has called `end`, or no member
is left, all are killed, and whoever else has the run's folder in its environment; the shared memory is removed, then
the folder, and the guard ends.

Imports the standard library alone, and nothing of ours: it is run as a script, by its path.
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
# without members on a node without the driver: Ray's next worker may still import, on busy cores
NO_WORKER_SECONDS = 45.0
LOOKS_AT_SHM = 60
TRACKER_SECONDS = 3.0  # Python's resource trackers remove shared memory by themselves: let them
SHM = Path("/dev/shm")

Key = tuple[int, int]  # (pid, start time in clock ticks): a pid alone may be another process by now


def ended(folder: Path) -> Path:
    """What a run's folder is called while it is removed."""
    return folder.with_name(f"{folder.name}.ended")


def _read(pid: int, name: str) -> bytes:
    """/proc/PID/NAME; nothing of a process that has ended, or is somebody else's."""
    try:
        with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


def read_stat(pid: int) -> tuple[int, int] | None:
    """(parent, start time) of a process that is not a zombie; None when there is none."""
    if not (text := _read(pid, "stat")):
        return None
    fields = text[text.rindex(b")") + 2 :].split(maxsplit=20)
    return None if fields[0] in b"ZX" else (int(fields[1]), int(fields[19]))


def all_processes() -> dict[int, tuple[int, int]]:
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    found = {pid: read_stat(pid) for pid in pids}
    return {pid: stat for pid, stat in found.items() if stat}


def shared_memory() -> list[str]:
    return os.listdir(SHM) if SHM.is_dir() else []


def find_processes(folder: Path) -> set[int]:
    """Ids of this node's processes that have joined the run of this folder, or have it in their environment."""
    members = {int(path.name) for path in (folder / "members").glob("[0-9]*")}
    return {pid for pid in all_processes() if pid in members or _has_environment(pid, folder)}


def _has_environment(pid: int, folder: Path) -> bool:
    return f"{FOLDER_VARIABLE}={folder}\0".encode() in _read(pid, "environ")


def _mapped(pid: int) -> set[int]:
    """Inodes of /dev/shm that a process maps. Not names: a semaphore is mapped under one that it has for a moment."""
    return {int(line.split(maxsplit=5)[4]) for line in _read(pid, "maps").splitlines() if b"/dev/shm/" in line}


def _inode(name: str) -> int:
    try:
        return (SHM / name).stat().st_ino
    except OSError:
        return 0


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
        self.last_member_seen = time.monotonic()

    def members(self) -> set[Key]:
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
        """One look at /proc: learn, end what lost its member. Returns whether the run goes on."""
        members = self.members()
        processes = all_processes()
        alive = {(pid, start) for pid, (_, start) in processes.items()}
        # a member within another member's tree (a Ray worker under the driver) owns its own descendants
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
        """Whose a new segment is shows in the maps of processes; those of other people are soon looked at no more."""
        names = set(shared_memory()) - (self.others_shm or set()) - self.shm
        unknown = {_inode(name): name for name in names if self.looks_at.get(name, 0) < LOOKS_AT_SHM}
        self.looks_at = {name: self.looks_at.get(name, 0) + 1 for name in names}
        if unknown:
            for pid, _ in owners | set(self.owner_of):
                self.shm |= {unknown[inode] for inode in _mapped(pid) & unknown.keys()}

    def kill(self, keys: set[Key], trackers_too: bool = False) -> int:
        """SIGKILL; returns how many there were. Python's resource trackers end by themselves when their users have:
        they are waited for, but for the driver's own, which stays as long as the driver."""
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
        """End and remove all there is. A process may start another before it is ended: look until none is left."""
        begin = time.monotonic()
        ended_by_run = (self.folder / "end").exists()
        while (waited := time.monotonic() - begin) < 2 * TRACKER_SECONDS:
            self.poll()
            ours = set(self.owner_of) | self.members()  # without their driver, workers have nothing to do
            ours |= {(pid, start) for pid, (_, start) in all_processes().items() if _has_environment(pid, self.folder)}
            ours = {key for key in ours if key != self.driver and key[0] not in self.not_ours}
            if not self.kill(ours, trackers_too=waited > TRACKER_SECONDS):
                break
            time.sleep(0.05)
        for name in self.shm:
            with contextlib.suppress(OSError):
                (SHM / name).unlink()
        with contextlib.suppress(OSError):
            self.folder.rename(ended(self.folder))  # at once: members start another guard while it is there
        shutil.rmtree(ended(self.folder), ignore_errors=True)
        if self.message and not ended_by_run:
            with contextlib.suppress(OSError):  # the terminal may be gone as well
                os.write(2, f"\n{self.message}\n".encode())


def main() -> None:
    folder = Path(sys.argv[1])
    with contextlib.suppress(FileNotFoundError), open(folder / "guard.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # two processes joined at once
            return
        this_process = read_stat(os.getpid())
        assert this_process is not None
        (folder / ".guard").write_text(f"{os.getpid()} {this_process[1]}")
        os.replace(folder / ".guard", folder / "guard.pid")  # whoever reads it finds the old or the new, never a part
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
