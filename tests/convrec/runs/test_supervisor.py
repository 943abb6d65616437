"""Commands that are asked to stop, as real processes that get real signals."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from convrec.runs import supervisor

Start = Callable[..., tuple[subprocess.Popen, psutil.Process]]
ROOT = Path(__file__).resolve().parents[3]
BEGIN = """
import os, signal, subprocess, sys, time
sys.path.insert(0, {root!r})
from convrec.runs import supervisor
supervisor.SAME_SIGNAL_SECONDS = {same}
supervisor.begin({seconds})
from pathlib import Path
from convrec.runs import guard
from convrec.runs.folder import hold
run = Path({run!r})
def ready():
    print(os.getpid(), flush=True)
def begun():  # of work that ends by itself: its parent is still there when it is looked for
    print(os.getppid(), flush=True)
def checkpoint(step):
    (run / f"global_step_{{step}}").mkdir(exist_ok=True)
    (run / f"global_step_{{step}}" / "complete.json").touch()
    (run / "latest_checkpointed_iteration.txt").write_text(str(step))
"""
# an `except` of a library, or a call into C that does not come back
DEAF = r"signal.signal(signal.SIGINT, lambda *_: os.write(1, b'heard\n')); ready(); time.sleep(600)"
WORK = {
    "in Python": "ready(); time.sleep(60)",
    "in an import of C code": """
ready()
try:
    time.sleep(60)
except KeyboardInterrupt:
    raise ImportError("PyCapsule_Import could not import module") from None
""",
    "deaf to interrupts": DEAF,
    # what Ray's core does while `ray.init` runs
    "with another handler of SIGTERM": "signal.signal(signal.SIGTERM, lambda *_: os.abort()); ready(); time.sleep(60)",
    "holding a run folder, with children": """
with hold(run), guard.guarded("gone") as temporary:
    supervisor.note(run=str(run), temporary=str(temporary))
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    signal.signal(signal.SIGINT, lambda number, frame: None)
    (run / "temporary").write_text(str(temporary))
    while not (temporary / "guard.pid").exists():
        time.sleep(0.05)
    time.sleep(1)
    ready()
    while True:
        time.sleep(60)
""",
}
SAVES = """
supervisor.note(run=str(run), stop=str(run / "stop"), metrics=str(run / "metrics"))
run.mkdir()
{first_step}
ready()
while not (run / "stop").exists():
    time.sleep(0.02)
checkpoint(7)
sys.exit(130)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a command; returns it and its fork once that is ready."""
    started: list[subprocess.Popen] = []

    # a background job of a script has Ctrl-C ignored, and would hand that on
    def default() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def begin(
        work: str, seconds: float = 1, before: Callable[[], Any] = default, same: float = 0.2, **variables: str
    ) -> tuple[subprocess.Popen, psutil.Process]:
        script = BEGIN.format(root=str(ROOT), run=str(tmp_path / "run"), seconds=seconds, same=same) + work
        ours = {supervisor.SAVE_VARIABLE, *supervisor.SCHEDULERS}
        environment = {name: value for name, value in os.environ.items() if name not in ours}
        command = subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment | variables,
            start_new_session=True,
            preexec_fn=before,
        )
        started.append(command)
        assert command.stdout
        return command, psutil.Process(int(command.stdout.readline()))

    yield begin
    for command in started:
        command.kill()
        command.communicate()


@pytest.mark.parametrize(
    ("work", "number"),
    [
        ("in Python", signal.SIGTERM),
        ("in Python", signal.SIGINT),
        ("in Python", signal.SIGUSR1),
        ("in an import of C code", signal.SIGTERM),
        ("deaf to interrupts", signal.SIGTERM),
        ("with another handler of SIGTERM", signal.SIGTERM),
        ("holding a run folder, with children", signal.SIGTERM),
    ],
)
def test_a_signal_ends_everything_with_one_line(
    start: Start, tmp_path: Path, work: str, number: signal.Signals
) -> None:
    command, fork = start(WORK[work])
    processes = [fork, *fork.children(recursive=True)]
    command.send_signal(number)
    _, error = command.communicate(timeout=120)
    assert command.returncode == 130, error
    has_run = (tmp_path / "run").exists()
    done = "stopped after step 0; the same command resumes" if has_run else "stopped; the same command does it again"
    assert error.splitlines()[has_run:] == [done]  # on a line of its own, below a progress bar
    assert error.endswith("\n")
    _, left = psutil.wait_procs(processes, timeout=60)
    assert not left
    assert not (tmp_path / "run" / "running").exists()
    if has_run:
        assert not Path((tmp_path / "run" / "temporary").read_text()).exists()


def test_the_whole_group_may_get_the_signal_and_more_than_once(start: Start) -> None:
    work = "try:\n    ready(); time.sleep(60)\nfinally:\n    time.sleep(0.5); print('cleaned', flush=True)"
    command, _ = start(work, seconds=600, same=600)
    for _ in range(3):
        os.killpg(command.pid, signal.SIGTERM)
        time.sleep(0.02)
    out, error = command.communicate(timeout=120)
    assert (command.returncode, out, error) == (130, "cleaned\n", "stopped; the same command does it again\n")


def test_a_second_signal_ends_it_at_once(start: Start) -> None:
    command, _ = start(DEAF, seconds=600)
    command.send_signal(signal.SIGINT)
    assert command.stdout
    assert command.stdout.readline() == "heard\n"  # the supervisor has taken the first one
    time.sleep(0.25)
    command.send_signal(signal.SIGINT)
    assert command.wait(120) == 130


@pytest.mark.parametrize(
    ("number", "variables"),
    [(signal.SIGUSR1, {}), (signal.SIGTERM, {"SAVE_ON_TERM": "1"}), (signal.SIGTERM, {"SLURM_JOB_ID": "5"})],
)
def test_what_has_trained_a_step_is_asked_to_save(
    start: Start, number: signal.Signals, variables: dict[str, str]
) -> None:
    command, _ = start(SAVES.format(first_step='(run / "metrics").write_text("x")'), **variables)
    command.send_signal(number)
    _, error = command.communicate(timeout=120)
    assert command.returncode == 130
    assert error == "stopped after step 7; the same command resumes\n"


def test_a_supervisor_that_stands_still_over_its_limit_goes_on(start: Start) -> None:
    """CPython's sigtimedwait then gives a signal that there is not."""
    command, _ = start(DEAF)
    command.send_signal(signal.SIGINT)
    assert command.stdout
    assert command.stdout.readline() == "heard\n"
    command.send_signal(signal.SIGSTOP)
    time.sleep(1.2)
    command.send_signal(signal.SIGCONT)
    _, error = command.communicate(timeout=120)
    assert (command.returncode, error) == (130, "stopped; the same command does it again\n")


def test_what_has_not_trained_a_step_or_need_not_save_ends_at_once(start: Start, tmp_path: Path) -> None:
    command, _ = start(SAVES.format(first_step=""))
    command.send_signal(signal.SIGUSR1)
    _, error = command.communicate(timeout=120)
    assert error == "stopped after step 0; the same command resumes\n"
    assert not (tmp_path / "run" / "stop").exists()


def test_a_run_that_does_not_come_to_the_end_of_its_step_is_ended(start: Start) -> None:
    work = SAVES.format(first_step='(run / "metrics").write_text("x")').replace("while not", "while True or not")
    command, _ = start(work.replace("supervisor.note(", "supervisor.note(said='no'); supervisor.note(", 1), same=0)
    command.send_signal(signal.SIGUSR1)
    time.sleep(0.4)
    assert command.poll() is None
    command.send_signal(signal.SIGTERM)
    assert command.wait(120) == 130


@pytest.mark.parametrize(
    "before",
    [
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}),  # Ray's jobs
        lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # a background job of a script
        lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),  # a parent that waits for no child
    ],
)
def test_sigterm_interrupts_what_was_started_deaf_to_ctrl_c(start: Start, before: Callable[[], Any]) -> None:
    work = "try:\n    ready(); time.sleep(600)\nexcept KeyboardInterrupt:\n    print('cleaned', flush=True); raise"
    command, _ = start(work, seconds=600, before=before)
    command.send_signal(signal.SIGTERM)
    out, error = command.communicate(timeout=120)
    assert (command.returncode, out, error) == (130, "cleaned\n", "stopped; the same command does it again\n")


def test_its_exit_status_is_the_commands(start: Start) -> None:
    for work, status in (("begun()", 0), ("begun(); sys.exit(2)", 2), ("begun(); raise ValueError('x')", 1)):
        assert start(work)[0].wait(120) == status
    command, fork = start("ready(); time.sleep(60)")
    fork.kill()
    assert command.wait(120) == 128 + signal.SIGKILL
    deaf_to_children = start("begun()", before=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))[0]
    assert deaf_to_children.wait(120) == 0


@pytest.mark.parametrize(("status", "said"), [(1, ""), (75, ""), (0, ""), (130, "stopped after step 7; ")])
def test_a_run_that_was_asked_to_save_has_its_own_status_where_it_fails(start: Start, status: int, said: str) -> None:
    saves = SAVES.format(first_step='(run / "metrics").write_text("x")').replace("exit(130)", f"exit({status})")
    command, _ = start(saves)
    command.send_signal(signal.SIGUSR1)
    _, error = command.communicate(timeout=120)
    assert (command.returncode, error[: len(said) or None]) == (status, said)


def test_a_switch_is_0_or_1() -> None:
    assert supervisor.saves_on_term({"SAVE_ON_TERM": " 1 "})
    assert not supervisor.saves_on_term({"SAVE_ON_TERM": "0", "SLURM_JOB_ID": "1"})
    code = "from convrec.runs import supervisor; supervisor.begin()"
    environment = os.environ | {"SAVE_ON_TERM": "yes", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "error: SAVE_ON_TERM=yes: expected 0 or 1\n")


def test_the_fork_ends_with_a_killed_supervisor(start: Start) -> None:
    command, fork = start("ready(); time.sleep(60)")
    command.kill()
    fork.wait(60)


def test_a_run_that_is_killed_with_its_guard_is_cleaned_up_all_the_same(start: Start, tmp_path: Path) -> None:
    command, fork = start(WORK["holding a run folder, with children"])
    temporary = Path((tmp_path / "run" / "temporary").read_text())
    children = fork.children(recursive=True)
    guards = psutil.Process(int((temporary / "guard.pid").read_text().split()[0]))
    fork.suspend()  # it would start another guard
    guards.kill()
    guards.wait(60)
    fork.kill()
    assert command.wait(60) == 137
    _, left = psutil.wait_procs(children, timeout=60)
    assert not left
    assert not temporary.exists()


def test_a_lost_run_is_started_again_as_long_as_it_gets_further(start: Start, tmp_path: Path) -> None:
    command, _ = start(
        """
supervisor.note(run=str(run), resumes="yes")
run.mkdir(exist_ok=True)
with (run / "starts").open("a") as starts:
    starts.write("x")
step = (4, 6, 6)[(run / "starts").stat().st_size - 1]
checkpoint(step)
begun()
supervisor.note(lost="yes")
sys.exit(supervisor.NO_PROGRESS)
"""
    )
    _, error = command.communicate(timeout=120)
    assert command.returncode == 75
    assert error.splitlines() == [
        "WATCHDOG=resume: starting again after step 4",
        "WATCHDOG=resume: starting again after step 6",
        "lost again after step 6, without a checkpoint in between: not started again",
    ]
