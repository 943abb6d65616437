"""Messages about runs whose processes were killed for memory, from the kernel's files and with real processes.

The counters are in a simulated file system, except for one test in which the kernel kills.
"""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from convrec.runs import guard, memory
from tests.cgroups import cgroup_of_test

ROOT = Path(__file__).resolve().parents[3]
MIB = 2**20
V1 = "9:cpu:/\n4:memory:/slurm/job_7\n0::/\n"
V2 = "0::/user.slice/run.scope\n"
HYBRID = "4:memory:/docker/ab12\n0::/docker/ab12\n"


class Kernel:
    """The kernel's files in a folder."""

    def __init__(self, root: Path, own_cgroup: str) -> None:
        self.root = root
        self.write("proc/self/cgroup", own_cgroup)
        self.write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:  1000 kB\n")
        self.write("proc/vmstat", "nr_free_pages 12\noom_kill 2\n")
        self.stall(0)

    def write(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def stall(self, seconds: int) -> None:
        some = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={2_000_000 * seconds}"
        full = f"full avg10=0.00 avg60=0.00 avg300=0.00 total={1_000_000 * seconds}"
        self.write("proc/pressure/memory", f"{some}\n{full}\n")

    def record(self, most_bytes: int = 0) -> memory.Record:
        return memory.Record(memory.read_counters(self.root), most_bytes, "Lower X")


def test_oom_kill_in_cgroup_v2_reports_usage_and_limit(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, V2)
    own = "sys/fs/cgroup/user.slice/run.scope"
    kernel.write(f"{own}/memory.events", "low 0\nhigh 0\nmax 55\noom 0\noom_kill 3\noom_group_kill 0\n")
    kernel.write(f"{own}/memory.max", "max\n")
    kernel.write("sys/fs/cgroup/user.slice/memory.max", f"{4 * 2**30}\n")
    record = kernel.record(most_bytes=7 * 2**29)
    assert record.explain(tmp_path) == ""
    kernel.write(f"{own}/memory.events", "low 0\nhigh 0\nmax 99\noom 2\noom_kill 5\noom_group_kill 0\n")
    assert record.explain(tmp_path) == (
        "Out of memory: the kernel's OOM killer killed 2 processes in this run's cgroup: the run used up to 3.5 GiB; "
        "4.0 GiB is the limit in /sys/fs/cgroup/user.slice/memory.max. Lower X"
    )


@pytest.mark.parametrize(
    ("cgroup", "folder"),
    [
        (V1, "sys/fs/cgroup/memory/slurm/job_7"),
        (HYBRID, "sys/fs/cgroup/memory/docker/ab12"),
        (HYBRID, "sys/fs/cgroup/memory"),  # a container sees its own cgroup as the root
        (V2, "sys/fs/cgroup"),
    ],
)
def test_a_kill_is_found_where_the_cgroup_is_mounted(tmp_path: Path, cgroup: str, folder: str) -> None:
    kernel = Kernel(tmp_path, cgroup)
    kernel.write(f"{folder}/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
    kernel.write(f"{folder}/memory.limit_in_bytes", f"{2**30}\n")
    record = kernel.record()
    kernel.write(f"{folder}/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    message = record.explain(tmp_path)
    assert "killed a process in this run's cgroup; 1.0 GiB is " in message


def test_oom_kills_elsewhere_are_ignored_if_the_cgroup_counts(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, V2)
    kernel.write("sys/fs/cgroup/memory.events", "oom_kill 0\n")
    record = kernel.record()
    kernel.write("proc/vmstat", "oom_kill 9\n")
    assert record.explain(tmp_path) == ""


def test_machine_oom_kill_is_tentatively_attributed_to_the_run(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, V2)
    record = kernel.record()
    kernel.write("proc/vmstat", "oom_kill 3\n")
    assert record.explain(tmp_path) == (
        "Out of memory (probably): the kernel's OOM killer killed a process on this machine; 16.0 GiB is the memory "
        "of this machine. Lower X"
    )
    assert record.explain(tmp_path, certain_only=True) == ""


@pytest.mark.parametrize(("seconds", "is_reported"), [(3, False), (25, True)])
def test_uncounted_oom_kill_shows_in_the_memory_pressure(tmp_path: Path, seconds: int, is_reported: bool) -> None:
    kernel = Kernel(tmp_path, V2)
    record = kernel.record()
    kernel.stall(seconds)
    message = record.explain(tmp_path)
    assert ("all processes on this machine waited 25 s for memory" in message) == is_reported
    assert bool(message) == is_reported


def test_a_kernel_without_counters_gives_no_message(tmp_path: Path) -> None:
    counters = memory.read_counters(tmp_path)
    assert counters == memory.Counters(None, None, 0.0)
    assert memory.read_limit(tmp_path) is None
    assert memory.Record(counters, MIB, "Lower X").explain(tmp_path) == ""


def test_the_counters_of_this_machine_are_read() -> None:
    limit = memory.read_limit()
    assert limit
    assert 2**28 < limit.bytes <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.fixture
def run_folder() -> Iterator[Path]:
    """Return the temporary folder of a run, which processes join by their environment."""
    folder = guard.make_run_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def test_memory_that_forked_processes_share_counts_once(run_folder: Path) -> None:
    work = f"""
        import os, time
        content = os.urandom({200 * MIB})
        for _ in range(2):
            if os.fork() == 0:
                own = os.urandom({50 * MIB})
                print("ready", flush=True)
                time.sleep(60)
        time.sleep(60)
    """
    environment = {**os.environ, guard.FOLDER_VARIABLE: str(run_folder)}
    command = [sys.executable, "-c", textwrap.dedent(work)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout
            assert [process.stdout.readline(), process.stdout.readline()] == [b"ready\n"] * 2
            used_bytes = memory.measure_used_bytes(run_folder)
        finally:
            os.killpg(process.pid, 9)
    assert 300 * MIB < used_bytes < 380 * MIB  # 200 + 2 x 50, and Python itself; not 3 x 200


DRIVER = """
import os, signal, sys, time
sys.path.insert(0, {root!r})
from convrec.runs import supervisor
supervisor.fork_under_supervisor()
from pathlib import Path
from convrec.runs import memory
memory.SAMPLE_SECONDS = 0.1
{prepare}
with memory.watched(Path({folder!r}), "Lower X", lambda text: supervisor.note(memory=text)):
    content = os.urandom(100 * 2**20)
    while memory._watch.reported_bytes < 100 * 2**20:
        time.sleep(0.05)
    {end}
"""
LOWER_COUNTERS = "memory.read_counters = lambda: memory.Counters(-1, -1, 0.0)  # when the run started"


@pytest.mark.parametrize(("end", "is_killed"), [("os.kill(os.getpid(), signal.SIGKILL)", True), ("pass", False)])
def test_supervisor_reports_a_driver_killed_for_memory(run_folder: Path, end: str, is_killed: bool) -> None:
    environment = {**os.environ, guard.FOLDER_VARIABLE: str(run_folder)}
    work = DRIVER.format(root=str(ROOT), folder=str(run_folder), prepare=LOWER_COUNTERS, end=end)
    process = subprocess.run(
        [sys.executable, "-c", work], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert process.returncode == (137 if is_killed else 0), process.stderr
    assert ("Out of memory" in process.stderr) == is_killed
    if is_killed:
        assert "the run used up to 0." in process.stderr
        assert process.stderr.endswith("Lower X\n")


def test_supervisor_reports_a_driver_killed_by_the_kernel(run_folder: Path) -> None:
    """The driver is the largest process in a cgroup that has no room for another 400 MiB."""
    work = DRIVER.format(root=str(ROOT), folder=str(run_folder), prepare="", end=f"os.urandom({400 * MIB})")
    environment = {**os.environ, guard.FOLDER_VARIABLE: str(run_folder)}
    with cgroup_of_test() as cgroup:
        cgroup.limit.write_text(str(300 * MIB))
        command = ["sh", "-c", f'{cgroup.enter} && exec "$@"', "sh", sys.executable, "-c", work]
        process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert cgroup.count_kills() == 1
    assert process.returncode == 137, process.stderr
    message = re.fullmatch(
        r"Out of memory: the kernel's OOM killer killed a process in this run's cgroup: the run used up to 0\.[123] "
        r"GiB; 0\.3 GiB is the limit in (.*)\. Lower X\n",
        process.stderr,
    )
    assert message, process.stderr
    assert message[1] == str(cgroup.limit)


def test_the_supervisor_gets_few_messages_while_memory_grows(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads its pipe only at the end, and a full pipe (64 KiB) would block the thread."""
    messages: list[str] = []
    samples = iter(range(10 * MIB, 2**40, 2**30))
    monkeypatch.setattr(memory, "measure_used_bytes", lambda folder: next(samples))
    monkeypatch.setattr(memory, "SAMPLE_SECONDS", 0.0)
    watch = memory.Watch(run_folder, "Lower X", messages.append)
    monkeypatch.setattr(watch, "stopped", Stopper(1000))
    watch.run()
    assert watch.record.most_bytes > 900 * 2**30
    assert sum(map(len, messages)) < 2**16 / 2


class Stopper:
    """An event that is set after a number of waits."""

    def __init__(self, waits: int) -> None:
        self.waits = waits

    def wait(self, seconds: float) -> bool:
        self.waits -= 1
        return self.waits < 0


def test_the_message_of_rays_monitor_is_parsed() -> None:
    text = (
        "1 worker(s) were killed due to the node running low on memory.\n"
        "Memory on the node (IP: 10.0.0.3, ID: ab12) was 30.11GB used / 31.50GB limit (0.956); OOM kill reason: ..."
    )
    assert memory.explain_ray_kill(RuntimeError(text)) == (
        "killed by Ray's memory monitor: 30.11 GB of the node's 31.50 GB were in use"
    )
    assert memory.explain_ray_kill(RuntimeError("The actor died")) == ""
