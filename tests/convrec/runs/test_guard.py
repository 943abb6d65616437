"""The guard with real processes, killed in the ways in which runs are killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from multiprocessing import shared_memory
from pathlib import Path

import psutil
import pytest

from convrec.runs import guard, guard_process

ROOT = Path(__file__).resolve().parents[3]

JOIN = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from convrec.runs import guard; guard.register_process()"
# The driver starts a child in its own session, as Ray does. The child starts a grandchild that nothing ends, like
# vLLM's engine, and has shared memory and a file in TMPDIR.
CHILD = """
import os, subprocess, sys, tempfile, time
from multiprocessing import shared_memory, resource_tracker
{join}
memory = shared_memory.SharedMemory(create=True, size=4096)
resource_tracker.unregister(memory._name, "shared_memory")
tempfile.mkstemp()
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(os.getpid(), grandchild.pid, memory.name, flush=True)
time.sleep(600)
"""
DRIVER = """
import os, subprocess, sys, time
sys.path.insert(0, {root!r})
from convrec.runs import guard
folder = guard.make_run_folder()
os.environ.update(guard.environment(folder))
guard.register_process(is_driver=True, message="the driver died")
child = subprocess.Popen([sys.executable, "-c", {child!r}], start_new_session=True)
print(folder, flush=True)
{then}
"""


class Run:
    def __init__(self, then: str = "time.sleep(600)", join: str = "") -> None:
        child = CHILD.format(join=join)
        script = textwrap.dedent(DRIVER.format(root=str(ROOT), child=child, then=then))
        self.driver = subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A script's background jobs ignore Ctrl-C, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert self.driver.stdout
        lines = sorted((self.driver.stdout.readline() for _ in range(2)), key=lambda line: not line.startswith("/"))
        self.folder = Path(lines[0].strip())
        child_pid, grandchild_pid, self.shm = lines[1].split()
        self.child = psutil.Process(int(child_pid))
        self.grandchild = psutil.Process(int(grandchild_pid))
        self.wait(lambda: (self.folder / "guard.pid").exists() and len(list(self.folder.glob("tmp*"))) > 0)
        self.guard = psutil.Process(int((self.folder / "guard.pid").read_text().split()[0]))
        self.wait_for_poll()

    def wait_for_poll(self) -> None:
        """Wait for a complete poll of the guard, at whose end it removes members that have ended, such as 0."""
        shm = guard_process.list_shared_memory()
        entry = {"start": 1, "is_driver": False, "owns": False, "message": "", "not_ours": [], "shm": shm}
        (self.folder / ".0").write_text(json.dumps(entry))
        (self.folder / ".0").replace(self.folder / "members" / "0")
        self.wait(lambda: not (self.folder / "members" / "0").exists())

    def wait(self, condition: Callable[[], bool], seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def is_gone(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        return True

    def assert_nothing_is_left(self) -> None:
        self.wait(lambda: all(self.is_gone(p) for p in (self.child, self.grandchild, self.guard)))
        assert not self.folder.exists()
        assert not (guard_process.SHM / self.shm).exists()


Start = Callable[..., Run]


@pytest.fixture
def start() -> Iterator[Start]:
    runs: list[Run] = []

    def begin(**options: str) -> Run:
        runs.append(Run(**options))
        return runs[-1]

    yield begin
    for run in runs:
        for process in (run.driver, run.child, run.grandchild, run.guard):
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                process.kill()
        run.driver.communicate()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_driver_is_cleaned_up_and_reported_on_terminal(start: Start, number: signal.Signals) -> None:
    run = start()
    assert (guard_process.SHM / run.shm).exists()
    # The guard must not be a child, because Ray kills a worker's children with the worker.
    run.wait(lambda: run.guard not in psutil.Process(run.driver.pid).children(recursive=True))
    run.driver.send_signal(number)
    run.assert_nothing_is_left()
    assert "the driver died" in run.driver.communicate()[1]


STDERR_TO_A_LOG = "os.dup2(os.open(os.devnull, os.O_WRONLY), 2); time.sleep(600)"


@pytest.mark.parametrize("options", [{}, {"join": JOIN}, {"then": STDERR_TO_A_LOG}])
def test_killed_guard_is_restarted_and_still_cleans_up(start: Start, options: dict[str, str]) -> None:
    """It also still prints to the terminal after the driver has redirected stderr to a log."""
    run = start(**options)
    first = run.guard
    first.kill()
    run.wait(lambda: int((run.folder / "guard.pid").read_text().split()[0]) != first.pid)
    run.guard = psutil.Process(int((run.folder / "guard.pid").read_text().split()[0]))
    run.wait_for_poll()
    run.driver.kill()
    run.assert_nothing_is_left()
    assert "the driver died" in run.driver.communicate()[1]


def test_a_semaphore_of_a_killed_process_is_removed(start: Start) -> None:
    """Such as joblib's in vLLM's engine. The C library maps it under a temporary name."""
    name = f"/convrec-test-{os.getpid()}"
    run = start(then=f"import ctypes; ctypes.CDLL(None).sem_open({name.encode()!r}, 64, 384, 1); time.sleep(600)")
    file = guard_process.SHM / f"sem.{name[1:]}"
    run.wait(file.exists)
    run.wait_for_poll()
    run.driver.kill()
    run.assert_nothing_is_left()
    assert not file.exists()


def test_end_silently_ends_everything_but_the_driver(start: Start) -> None:
    wait = "while not (folder / 'go').exists(): time.sleep(0.02)"
    run = start(then=f"{wait}\nprint('ended:', guard.end(folder), flush=True); time.sleep(600)")
    (run.folder / "go").touch()
    assert run.driver.stdout
    assert run.driver.stdout.readline() == "ended: True\n"
    run.assert_nothing_is_left()
    assert run.driver.poll() is None
    run.driver.kill()
    assert run.driver.communicate()[1] == ""


def test_orphans_of_a_killed_worker_are_ended_during_the_run(start: Start) -> None:
    run = start(join=JOIN)
    run.child.kill()
    run.wait(lambda: run.is_gone(run.grandchild))
    assert run.driver.poll() is None
    assert run.folder.exists()
    assert not run.is_gone(run.guard)
    run.driver.kill()
    run.assert_nothing_is_left()


def test_driverless_node_is_cleaned_long_after_its_last_worker(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    stat = guard_process.read_stat(os.getpid())
    assert stat
    (folder / "guard.pid").write_text(f"{os.getpid()} {stat[1]}")  # this process is the guard
    guard_state = guard_process.Guard(folder)
    wait = "print(flush=True); import time; time.sleep(600)"
    environment = {**os.environ, **guard.environment(folder)}
    worker, late = (
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)
        for code in (f"{JOIN}; {wait}", wait)
    )
    try:
        for process in (worker, late):
            assert process.stdout
            process.stdout.readline()
        guard_state.last_member_seen -= guard_process.NO_WORKER_SECONDS
        assert guard_state.poll()  # a member exists now
        worker.kill()
        worker.wait()
        assert guard_state.poll()  # Ray's next worker may be starting or still importing
        guard_state.last_member_seen -= guard_process.NO_WORKER_SECONDS
        assert not guard_state.poll()
        assert late.poll() is None
        guard_state.finish()
        assert late.wait(60) == -signal.SIGKILL
        assert not folder.exists()
    finally:
        worker.kill()
        late.kill()


def test_ending_the_processes_of_a_data_loader_is_no_error() -> None:
    script = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from convrec.runs import guard
from torch.utils.data import DataLoader
with guard.guarded("it ended without a word"):
    rows = iter(DataLoader(range(8), num_workers=2, persistent_workers=True))
    print(int(next(rows)), flush=True)
print("ended", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.stdout.split(), done.returncode) == (["0", "ended"], 0), done.stderr


def test_older_children_and_foreign_shared_memory_are_spared() -> None:
    memory = shared_memory.SharedMemory(create=True, size=4096)
    script = f"""
import os, subprocess, sys, time
sys.path.insert(0, {str(ROOT)!r})
from convrec.runs import guard
before = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
before_tmp = os.environ.get("TMPDIR")
with guard.guarded("") as folder:
    assert os.environ["TMPDIR"] == str(folder)
    time.sleep(2)
assert os.environ.get("TMPDIR") == before_tmp
assert not folder.exists()
print(before.poll())
before.kill()
"""
    try:
        process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
        assert process.stdout == "None\n"
        assert (guard_process.SHM / memory.name).exists()
    finally:
        memory.close()
        memory.unlink()


def test_closing_a_model_ends_its_replica_and_nothing_else() -> None:
    """With two models open in a user's own process, closing one ends only its replica."""
    wait = [sys.executable, "-c", "import time; time.sleep(600)"]
    replica = f"{JOIN}; import subprocess, time; print(subprocess.Popen({wait!r}).pid, flush=True); time.sleep(600)"
    script = f"""
import os, subprocess, sys, tempfile, time
from multiprocessing import shared_memory
sys.path.insert(0, {str(ROOT)!r})
import psutil
from convrec.runs import guard, guard_process
environment, tempfile.tempdir = dict(os.environ), "/tmp"
def replica(folder):
    started = subprocess.Popen([sys.executable, "-c", {replica!r}], env=environment | guard.environment(folder),
                               stdout=subprocess.PIPE, text=True)
    return [psutil.Process(started.pid), psutil.Process(int(started.stdout.readline()))]
first, second = guard.guard_children(), guard.guard_children()
of_first, of_second = replica(first.__enter__()), replica(second.__enter__())
own = [subprocess.Popen({wait!r}, start_new_session=apart) for apart in (False, True)]
memory, (_, file) = shared_memory.SharedMemory(create=True, size=4096), tempfile.mkstemp()
time.sleep({3 * guard_process.POLL_SECONDS})
first.__exit__(None, None, None)
psutil.wait_procs(of_first, timeout=60)
assert [p.is_running() for p in of_first] == [False, False]
assert [p.is_running() for p in of_second] == [True, True]
second.__exit__(None, None, None)
psutil.wait_procs(of_second, timeout=60)
assert [p.is_running() for p in of_second] == [False, False]
assert [p.poll() for p in own] == [None, None]
assert os.path.exists(file) and (guard_process.SHM / memory.name).exists()
assert dict(os.environ) == environment and tempfile.tempdir == "/tmp"
for process in own:
    process.kill()
memory.close(); memory.unlink(); os.remove(file)
print("well")
"""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (process.stdout, process.returncode) == ("well\n", 0), process.stderr


def test_without_a_run_join_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(guard.FOLDER_VARIABLE, raising=False)
    guard.register_process()


@pytest.mark.parametrize("fault", ["a link", "others may enter", "another user's"])
def test_join_refuses_a_folder_not_private_to_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """A node without the driver creates the folder under a name that is in its processes' environment."""
    target = tmp_path / "target"
    folder = tmp_path / "convrec-x"
    target.mkdir(mode=0o700)
    if fault == "a link":
        folder.symlink_to(target)
    else:
        folder.mkdir(mode=0o700)
        if fault == "others may enter":
            folder.chmod(0o755)
        elif os.geteuid() == 0:
            os.chown(folder, 12345, 12345)
        else:
            pytest.skip("only root can make another user's folder")
    monkeypatch.setenv(guard.FOLDER_VARIABLE, str(folder))
    with pytest.raises(RuntimeError, match="is not a private folder of this user"):
        guard.register_process()
    assert not [*target.iterdir(), *(folder.iterdir() if fault != "a link" else ())]


def test_compiled_code_goes_into_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(guard.COMPILED, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "not-yet"))
    assert guard.compile_cache() == str(tmp_path / "not-yet" / "convrec" / "torchinductor")
    assert not list(tmp_path.iterdir())


def test_unwritable_cache_falls_back_to_a_private_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing torch creates the folder, and would fail."""
    monkeypatch.delenv(guard.COMPILED, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/home")
    folder = Path(guard.compile_cache())
    assert folder.parent == Path("/tmp")
    assert (folder.stat().st_uid, folder.stat().st_mode & 0o777) == (os.geteuid(), 0o700)
    folder.chmod(0o755)  # as torch creates it if /tmp was cleaned during a run
    assert guard.compile_cache() == str(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
