"""Whether a process of a run was killed for memory, and how much the run needed and had.

The kernel's OOM killer sends SIGKILL and leaves no word, but it counts: in the cgroup of the process that it has killed
(memory.events of cgroup v2, memory.oom_control of v1), and of the whole machine in /proc/vmstat. A killer in user space
(systemd-oomd, earlyoom) counts nowhere; before it acts processes wait for memory, which /proc/pressure/memory adds up.
The counters are read when the run starts and when a process of it is gone. In between a thread of the driver adds up
the memory of the run's processes on this node. Where the driver itself was killed, its supervisor says so.
"""

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from convrec.runs.guard_process import find_processes

GIB = 2**30
SAMPLE_SECONDS = 3.0
SHARE_OF_A_CORE = 0.02  # that looking may take: the kernel walks the page tables of every process
GROWTH = 1.05  # the supervisor hears of a new maximum when it exceeds the last one by this factor
STALLED_SECONDS = 10.0  # of waiting for memory since the start from which a killed process is put down to it
NO_LIMIT = 2**60  # bytes; v1 writes a number of this size where there is no limit
CGROUPS = "sys/fs/cgroup"
# "Memory on the node (IP: 10.0.0.1, ID: ab12) was 30.11GB used / 31.50GB limit (0.956)"
_RAY = re.compile(r"Memory on the node \([^)]*\) was ([\d.]+) ?GB used / ([\d.]+) ?GB limit")


@dataclass(frozen=True)
class Counters:
    """What the kernel has counted since the machine or the cgroup started.

    Attributes:
        cgroup_kills: processes of this cgroup killed for memory; None where it has no such counter.
        machine_kills: the same of the machine; None where the kernel does not say.
        stalled_seconds: in which every process waited for memory; of the machine. 0 where the kernel does not say.
    """

    cgroup_kills: int | None
    machine_kills: int | None
    stalled_seconds: float


@dataclass(frozen=True)
class Limit:
    """The memory that the processes of this cgroup may use, in bytes, and what sets the limit."""

    bytes: int
    source: str


def read_counters(root: Path = Path("/")) -> Counters:
    """Read the counters of this process's cgroup and of the machine. root: of the file system."""
    return Counters(_cgroup_kills(root), _field(root / "proc/vmstat", "oom_kill"), _stalled_seconds(root))


def read_limit(root: Path = Path("/")) -> Limit | None:
    """Return the smallest limit of this process's cgroup, those above it and the machine; None where none is known."""
    limits = []
    total_kib = _field(root / "proc/meminfo", "MemTotal:")
    if total_kib is not None:
        limits.append(Limit(total_kib * 1024, "the memory of this machine"))
    for folder in cgroup_folders(root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(folder / name).strip()
            if text.isdigit() and int(text) < NO_LIMIT:
                limits.append(Limit(int(text), f"the limit in /{(folder / name).relative_to(root)}"))
    return min(limits, key=lambda limit: limit.bytes, default=None)


def used_bytes(folder: Path) -> int:
    """Return the memory of this node's processes of the run with this temporary folder.

    What processes share counts once (PSS): those of a run are forked from one that has imported torch and vLLM.
    """
    return sum(_process_bytes(Path("/proc", str(pid))) for pid in find_processes(folder))


@dataclass(frozen=True)
class Record:
    """What is known of a run's memory, as its supervisor hears it.

    Attributes:
        before: the counters when the run started.
        most_bytes: the most memory that its processes were seen to use at once; 0: nobody has looked yet.
        advice: what to do about a run that needs too much memory.
    """

    before: Counters
    most_bytes: int
    advice: str

    def explain(self, root: Path = Path("/"), *, certain_only: bool = False) -> str:
        """Return a sentence where a process of the run was killed for memory since the run started, else "".

        Args:
            root: of the file system.
            certain_only: the kernel must have counted a kill in the run's own cgroup.
        """
        now = read_counters(root)
        reason = _certain_reason(self.before, now)
        if not reason and not certain_only:
            reason = _probable_reason(self.before, now)
        if not reason:
            return ""
        limit = read_limit(root)
        needed = f": the run was seen to use up to {self.most_bytes / GIB:.1f} GiB" if self.most_bytes else ""
        there = f"; {limit.bytes / GIB:.1f} GiB is {limit.source}" if limit else ""
        return f"{reason}{needed}{there}. {self.advice}"


class Watch:
    """Adds up the memory of a run's processes on this node from time to time, in a thread.

    Args:
        folder: the run's temporary folder.
        advice: as in `Record`.
        tell: tells the supervisor, which is there when this process is killed, what `say_of_killed` reads.
    """

    def __init__(self, folder: Path, advice: str, tell: Callable[[str], None]) -> None:
        self.folder = folder
        self.tell = tell
        self.record = Record(read_counters(), 0, advice)
        self.told_bytes = 0
        self.stopped = threading.Event()

    def run(self) -> None:
        """Look until the run ends."""
        self.report()
        pause = SAMPLE_SECONDS
        while not self.stopped.wait(pause):
            begin = time.monotonic()
            used = used_bytes(self.folder)
            pause = max(SAMPLE_SECONDS, (time.monotonic() - begin) / SHARE_OF_A_CORE)
            if used > self.record.most_bytes:
                self.record = Record(self.record.before, used, self.record.advice)
            if used > GROWTH * self.told_bytes:
                self.report()

    def report(self) -> None:
        """Tell what is known by now."""
        self.told_bytes = self.record.most_bytes
        self.tell(json.dumps(asdict(self.record)))


_watch: Watch | None = None  # of the run that this process drives


@contextlib.contextmanager
def watched(folder: Path, advice: str, tell: Callable[[str], None]) -> Iterator[None]:
    """Watch the memory of a run; the arguments are those of `Watch`. At the end, whatever it is, it tells ""."""
    global _watch
    watch = _watch = Watch(folder, advice, tell)
    threading.Thread(target=watch.run, daemon=True, name="memory").start()
    try:
        yield
    finally:
        watch.stopped.set()
        _watch = None
        tell("")


def explain(*, certain_only: bool) -> str:
    """`Record.explain` of the run that this process drives; "" where it drives none."""
    return _watch.record.explain(certain_only=certain_only) if _watch else ""


def say_of_killed(noted: str) -> None:
    """For the supervisor of a run that is gone: write on the terminal what `Record.explain` says.

    Args:
        noted: what `Watch` has told last.
    """
    fields = json.loads(noted)
    text = Record(Counters(**fields["before"]), fields["most_bytes"], fields["advice"]).explain()
    if text:
        with contextlib.suppress(OSError):  # the terminal may be gone as well
            os.write(2, f"{text}\n".encode())


def explain_ray_kill(error: BaseException) -> str:
    """Return why Ray's memory monitor has killed the process that the error is about; "" where it has not."""
    found = _RAY.search(str(error))
    if not found:
        return ""
    used, limit = found.groups()
    return f"killed by Ray's memory monitor: {used} GB of the node's {limit} GB were in use"


# ---- parts


def _certain_reason(before: Counters, now: Counters) -> str:
    if before.cgroup_kills is None or now.cgroup_kills is None or now.cgroup_kills <= before.cgroup_kills:
        return ""
    taken = _processes(now.cgroup_kills - before.cgroup_kills)
    return f"Out of memory: the kernel's OOM killer has taken {taken} of this run's cgroup"


def _probable_reason(before: Counters, now: Counters) -> str:
    counts_elsewhere = before.cgroup_kills is None and before.machine_kills is not None
    if counts_elsewhere and (now.machine_kills or 0) > (before.machine_kills or 0):
        taken = _processes((now.machine_kills or 0) - (before.machine_kills or 0))
        return f"Out of memory, probably: the kernel's OOM killer has taken {taken} of this machine"
    stalled = now.stalled_seconds - before.stalled_seconds
    if stalled > STALLED_SECONDS:
        return f"Out of memory, probably: all processes of this machine waited {stalled:.0f} s for memory"
    return ""


def _processes(number: int) -> str:
    return "a process" if number == 1 else f"{number} processes"


def cgroup_folders(root: Path) -> list[Path]:
    """Return the folders of this process's cgroups that may limit memory, each followed by those above it."""
    folders: list[Path] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mounts = [root / CGROUPS, root / CGROUPS / "unified"]
        elif "memory" in controllers.split(","):
            mounts = [root / CGROUPS / "memory"]
        else:
            continue
        for mount in mounts:
            own = mount / path.lstrip("/")
            if not own.is_dir():  # in a container the mount is its own cgroup
                own = mount
            folders += [own, *(above for above in own.parents if above.is_relative_to(mount))]
    return folders


def _cgroup_kills(root: Path) -> int | None:
    """The counter of the nearest cgroup that has one; in v2 it counts the cgroups below as well."""
    for folder in cgroup_folders(root):
        for name in ("memory.events", "memory.oom_control"):
            kills = _field(folder / name, "oom_kill")
            if kills is not None:
                return kills
    return None


def _stalled_seconds(root: Path) -> float:
    found = re.search(r"^full .*total=(\d+)", _read(root / "proc/pressure/memory"), re.MULTILINE)
    return int(found[1]) / 1e6 if found else 0.0


def _process_bytes(process: Path) -> int:
    """0 for a process that has ended, or is another user's."""
    rollup = _read(process / "smaps_rollup")
    return 1024 * sum(_number(rollup, name) or 0 for name in ("Pss:", "SwapPss:"))


def _field(file: Path, name: str) -> int | None:
    return _number(_read(file), name)


def _number(text: str, name: str) -> int | None:
    """The number after a name at the beginning of a line; None where there is none."""
    found = re.search(rf"^{re.escape(name)}\s+(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else None


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
