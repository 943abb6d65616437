"""Find out whether a process of a run was killed for memory, and how much memory the run used and had.

The kernel's OOM killer sends SIGKILL without a message, but it counts its kills: per cgroup (memory.events in cgroup
v2, memory.oom_control in v1), and for the whole machine in /proc/vmstat. Killers in user space (systemd-oomd, earlyoom)
do not count; before they act, processes wait for memory, which /proc/pressure/memory adds up. The counters are read
when the run starts and when one of its processes has died. In between, a thread of the driver adds up the memory of the
run's processes on this node. If the driver itself was killed, its supervisor reports it.
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
SHARE_OF_A_CORE = 0.02  # maximum cost of sampling: the kernel walks the page tables of every process
GROWTH = 1.05  # a new maximum is reported to the supervisor if it exceeds the last one by this factor
STALLED_SECONDS = 10.0  # of waiting for memory since the start; above that, a killed process is attributed to memory
NO_LIMIT = 2**60  # bytes; v1 reports a number of this size if there is no limit
CGROUPS = "sys/fs/cgroup"
# "Memory on the node (IP: 10.0.0.1, ID: ab12) was 30.11GB used / 31.50GB limit (0.956)"
_RAY = re.compile(r"Memory on the node \([^)]*\) was ([\d.]+) ?GB used / ([\d.]+) ?GB limit")


@dataclass(frozen=True)
class Counters:
    """The kernel's counters since the start of the machine or the cgroup.

    Attributes:
        cgroup_kills: processes in this cgroup that were killed for memory; None without such a counter.
        machine_kills: the same for the machine; None without such a counter.
        stalled_seconds: time in which all processes of the machine waited for memory; 0 without such a counter.
    """

    cgroup_kills: int | None
    machine_kills: int | None
    stalled_seconds: float


@dataclass(frozen=True)
class Limit:
    """A memory limit.

    Attributes:
        bytes: the limit.
        source: where it was read, in words.
    """

    bytes: int
    source: str


def read_counters(root: Path = Path("/")) -> Counters:
    """Read the counters of this process's cgroup and of the machine.

    Args:
        root: root of the file system.
    """
    return Counters(
        cgroup_kills=_read_cgroup_kills(root),
        machine_kills=_read_field(root / "proc/vmstat", "oom_kill"),
        stalled_seconds=_read_stalled_seconds(root),
    )


def read_limit(root: Path = Path("/")) -> Limit | None:
    """Return the smallest limit of this process's cgroup, its parents and the machine; None if none is known."""
    limits = []
    total_kib = _read_field(root / "proc/meminfo", "MemTotal:")
    if total_kib is not None:
        limits.append(Limit(total_kib * 1024, "the memory of this machine"))
    for folder in cgroup_folders(root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(folder / name).strip()
            if text.isdigit() and int(text) < NO_LIMIT:
                limits.append(Limit(int(text), f"the limit in /{(folder / name).relative_to(root)}"))
    return min(limits, key=lambda limit: limit.bytes, default=None)


def measure_used_bytes(folder: Path) -> int:
    """Return the memory of the processes on this node that belong to the run with this temporary folder.

    Shared memory counts once (PSS): the processes of a run are forked from one that has imported torch and vLLM.
    """
    return sum(_read_process_bytes(Path("/proc", str(pid))) for pid in find_processes(folder))


@dataclass(frozen=True)
class Record:
    """The memory record of a run, as its supervisor receives it.

    Attributes:
        before: the counters when the run started.
        most_bytes: the maximum memory of its processes in all samples; 0: no sample yet.
        advice: what to do about a run that needs too much memory.
    """

    before: Counters
    most_bytes: int
    advice: str

    def explain(self, root: Path = Path("/"), *, certain_only: bool = False) -> str:
        """Return a message if a process of the run was killed for memory since the run started, else "".

        Args:
            root: root of the file system.
            certain_only: whether the kernel must have counted a kill in the run's own cgroup.
        """
        now = read_counters(root)
        reason = _find_certain_reason(self.before, now)
        if not reason and not certain_only:
            reason = _find_probable_reason(self.before, now)
        if not reason:
            return ""
        limit = read_limit(root)
        usage = f": the run used up to {self.most_bytes / GIB:.1f} GiB" if self.most_bytes else ""
        available = f"; {limit.bytes / GIB:.1f} GiB is {limit.source}" if limit else ""
        return f"{reason}{usage}{available}. {self.advice}"


class Watch:
    """Sample the memory of a run's processes on this node in a thread.

    Args:
        folder: the run's temporary folder.
        advice: as in `Record`.
        tell: sends the record to the supervisor, which passes it to `print_kill_reason` if this process is killed.
    """

    def __init__(self, folder: Path, advice: str, tell: Callable[[str], None]) -> None:
        self.folder = folder
        self.tell = tell
        self.record = Record(read_counters(), 0, advice)
        self.reported_bytes = 0
        self.stopped = threading.Event()

    def run(self) -> None:
        """Sample until the run ends."""
        self.report()
        pause = SAMPLE_SECONDS
        while not self.stopped.wait(pause):
            begin = time.monotonic()
            used_bytes = measure_used_bytes(self.folder)
            pause = max(SAMPLE_SECONDS, (time.monotonic() - begin) / SHARE_OF_A_CORE)
            if used_bytes > self.record.most_bytes:
                self.record = Record(self.record.before, used_bytes, self.record.advice)
            if used_bytes > GROWTH * self.reported_bytes:
                self.report()

    def report(self) -> None:
        """Send the record to the supervisor."""
        self.reported_bytes = self.record.most_bytes
        self.tell(json.dumps(asdict(self.record)))


_watch: Watch | None = None  # for the run that this process drives


@contextlib.contextmanager
def watched(folder: Path, advice: str, tell: Callable[[str], None]) -> Iterator[None]:
    """Watch the memory of a run during the block.

    One run at a time: `explain` answers for the newest one.

    Args:
        folder: the run's temporary folder.
        advice: what to do about a run that needs too much memory.
        tell: sends a record to the supervisor (see `Watch`), called in another thread; "" at the end of the block, also
            after an error.
    """
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
    """Return `Record.explain` for the run that this process drives, "" if it drives none."""
    return _watch.record.explain(certain_only=certain_only) if _watch else ""


def print_kill_reason(record: str) -> None:
    """Print `Record.explain` for a killed run. Called by the supervisor.

    Args:
        record: the last message of `Watch`.
    """
    fields = json.loads(record)
    text = Record(Counters(**fields["before"]), fields["most_bytes"], fields["advice"]).explain()
    if text:
        with contextlib.suppress(OSError):  # the terminal may be gone
            os.write(2, f"{text}\n".encode())


def explain_ray_kill(error: BaseException) -> str:
    """Return a message if Ray's memory monitor killed the process that the error is about, else ""."""
    match = _RAY.search(str(error))
    if not match:
        return ""
    used, limit = match.groups()
    return f"killed by Ray's memory monitor: {used} GB of the node's {limit} GB were in use"


# ---- parts


def _find_certain_reason(before: Counters, now: Counters) -> str:
    if before.cgroup_kills is None or now.cgroup_kills is None or now.cgroup_kills <= before.cgroup_kills:
        return ""
    processes = _format_processes(now.cgroup_kills - before.cgroup_kills)
    return f"Out of memory: the kernel's OOM killer killed {processes} in this run's cgroup"


def _find_probable_reason(before: Counters, now: Counters) -> str:
    counts_elsewhere = before.cgroup_kills is None and before.machine_kills is not None
    if counts_elsewhere and (now.machine_kills or 0) > (before.machine_kills or 0):
        processes = _format_processes((now.machine_kills or 0) - (before.machine_kills or 0))
        return f"Out of memory (probably): the kernel's OOM killer killed {processes} on this machine"
    stalled = now.stalled_seconds - before.stalled_seconds
    if stalled > STALLED_SECONDS:
        return f"Out of memory (probably): all processes on this machine waited {stalled:.0f} s for memory"
    return ""


def _format_processes(number: int) -> str:
    return "a process" if number == 1 else f"{number} processes"


def cgroup_folders(root: Path) -> list[Path]:
    """Return the folders of this process's cgroups that may limit memory, each followed by its parents."""
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
            if not own.is_dir():  # in a container, the mount is its own cgroup
                own = mount
            folders += [own, *(parent for parent in own.parents if parent.is_relative_to(mount))]
    return folders


def _read_cgroup_kills(root: Path) -> int | None:
    """Return the counter of the nearest cgroup that has one; in v2 it includes the cgroups below."""
    for folder in cgroup_folders(root):
        for name in ("memory.events", "memory.oom_control"):
            kills = _read_field(folder / name, "oom_kill")
            if kills is not None:
                return kills
    return None


def _read_stalled_seconds(root: Path) -> float:
    match = re.search(r"^full .*total=(\d+)", _read(root / "proc/pressure/memory"), re.MULTILINE)
    return int(match[1]) / 1e6 if match else 0.0


def _read_process_bytes(process: Path) -> int:
    """Return a process's memory, 0 if it has ended or belongs to another user."""
    rollup = _read(process / "smaps_rollup")
    return 1024 * sum(_parse_number(rollup, name) or 0 for name in ("Pss:", "SwapPss:"))


def _read_field(file: Path, name: str) -> int | None:
    return _parse_number(_read(file), name)


def _parse_number(text: str, name: str) -> int | None:
    """Return the number after a name at the beginning of a line, None if there is none."""
    match = re.search(rf"^{re.escape(name)}\s+(\d+)", text, re.MULTILINE)
    return int(match[1]) if match else None


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
