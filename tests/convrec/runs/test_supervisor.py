"""Stopping commands, with real processes and real signals."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
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
supervisor.fork_under_supervisor({seconds})
from pathlib import Path
from convrec.runs import guard
from convrec.runs.folder import hold
run = Path({run!r})
def ready():
    print(os.getpid(), flush=True)
def begun():  # for work that ends by itself: the parent still exists when the test looks for it
    print(os.getppid(), flush=True)
def checkpoint(step):
    (run / f"global_step_{{step}}").mkdir(exist_ok=True)
    (run / f"global_step_{{step}}" / "complete.json").touch()
    (run / "latest_checkpointed_iteration.txt").write_text(str(step))
"""
# A library's `except`, or a call into C that does not return.
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
    # as Ray's core does during `ray.init`
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
TRAINS = 'supervisor.note(stop=str(run / "stop"), stop_of_job=str(run / "stop.job"))'
SAVES = """
supervisor.note(run=str(run))
run.mkdir()
{trains}
ready()
while not (run / "stop").exists():
    time.sleep(0.02)
checkpoint(7)
sys.exit(130)
"""

SAVES_LINE = f"{supervisor.SAVES}\n"
STOPPED_LINE = "stopped; run the same command again"
SHELL = ("sh", "-c", '"$@"; true', "sh")  # with `true`, the shell stays and is the parent


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a command, and returns it and its fork once the fork is ready."""
    commands: list[subprocess.Popen] = []

    # A script's background jobs ignore Ctrl-C and nohup ignores SIGHUP, and children inherit that.
    def restore_signals() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    def start_command(
        work: str,
        seconds: float = 1,
        before: Callable[[], Any] = restore_signals,
        same: float = 0.2,
        shell: Sequence[str] = (),
        **variables: str,
    ) -> tuple[subprocess.Popen, psutil.Process]:
        script = BEGIN.format(root=str(ROOT), run=str(tmp_path / "run"), seconds=seconds, same=same) + work
        ours = {supervisor.SAVE_VARIABLE, supervisor.JOB_VARIABLE}
        environment = {name: value for name, value in os.environ.items() if name not in ours}
        command = subprocess.Popen(
            [*shell, sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment | variables,
            start_new_session=True,
            preexec_fn=before,
        )
        commands.append(command)
        assert command.stdout
        return command, psutil.Process(int(command.stdout.readline()))

    yield start_command
    for command in commands:
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
    message = "stopped after step 0; the same command resumes" if has_run else STOPPED_LINE
    assert error.splitlines()[has_run:] == [message]  # on its own line, below a progress bar
    assert error.endswith("\n")
    _, left = psutil.wait_procs(processes, timeout=60)
    assert not left
    assert not (tmp_path / "run" / "running").exists()
    if has_run:
        assert not Path((tmp_path / "run" / "temporary").read_text()).exists()


def test_the_process_group_may_get_the_signal_repeatedly(start: Start) -> None:
    work = "try:\n    ready(); time.sleep(60)\nfinally:\n    time.sleep(0.5); print('cleaned', flush=True)"
    command, _ = start(work, seconds=600, same=600)
    for _ in range(3):
        os.killpg(command.pid, signal.SIGTERM)
        time.sleep(0.02)
    out, error = command.communicate(timeout=120)
    assert (command.returncode, out, error) == (130, "cleaned\n", f"{STOPPED_LINE}\n")


def test_a_second_signal_ends_a_command_at_once(start: Start) -> None:
    command, _ = start(DEAF, seconds=600)
    command.send_signal(signal.SIGINT)
    assert command.stdout
    assert command.stdout.readline() == "heard\n"  # the supervisor has handled the first signal
    time.sleep(0.25)
    command.send_signal(signal.SIGINT)
    assert command.wait(120) == 130


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_the_first_signal_makes_a_training_run_save(start: Start, number: signal.Signals) -> None:
    command, _ = start(SAVES.format(trains=TRAINS))
    command.send_signal(number)
    _, error = command.communicate(timeout=120)
    assert command.returncode == 130
    assert error == f"{SAVES_LINE}stopped after step 7; the same command resumes\n"


def test_the_second_signal_ends_a_training_run_at_once(start: Start, tmp_path: Path) -> None:
    command, _ = start(SAVES.format(trains=TRAINS).replace("while not", "while True or not"), seconds=600)
    command.send_signal(signal.SIGINT)
    wait_for(tmp_path / "run" / "stop")
    time.sleep(0.25)
    command.send_signal(signal.SIGINT)
    _, error = command.communicate(timeout=120)
    assert command.returncode == 130
    assert error == f"{SAVES_LINE}stopped after step 0; the same command resumes\n"


def test_sigterm_does_not_save_with_save_on_term_0(start: Start, tmp_path: Path) -> None:
    command, _ = start(SAVES.format(trains=TRAINS), SAVE_ON_TERM="0")
    command.send_signal(signal.SIGTERM)
    _, error = command.communicate(timeout=120)
    assert error == "stopped after step 0; the same command resumes\n"
    assert not (tmp_path / "run" / "stop").exists()


def test_signal_after_a_job_stop_request_counts_as_the_second(start: Start, tmp_path: Path) -> None:
    """The second Ctrl-C of a submitted job is `ray job stop`, which kills three seconds after its SIGTERM."""
    command, _ = start(SAVES.format(trains=f'{TRAINS}; (run / "stop.job").touch()'))
    command.send_signal(signal.SIGTERM)
    _, error = command.communicate(timeout=120)
    assert error == "stopped after step 0; the same command resumes\n"


def test_run_saves_and_ends_when_its_job_shell_is_killed(start: Start) -> None:
    shell, _ = start(SAVES.format(trains=TRAINS), shell=SHELL, **{supervisor.JOB_VARIABLE: "{}"})
    os.killpg(shell.pid, signal.SIGKILL)  # as Ray does when the shell has ended
    _, error = shell.communicate(timeout=120)
    lines = [supervisor.PARENT_IS_GONE, supervisor.SAVES, "stopped after step 7; the same command resumes"]
    assert error.splitlines() == lines


def test_the_end_of_the_shell_is_not_a_second_signal(start: Start, tmp_path: Path) -> None:
    """A scheduler may signal every process of a job; the run then continues to save."""
    slow = SAVES.format(trains=TRAINS).replace(
        "checkpoint(7)", f"time.sleep({4 * supervisor.PARENT_SECONDS})\ncheckpoint(7)"
    )
    shell, fork = start(slow, shell=SHELL, **{supervisor.JOB_VARIABLE: "{}"})
    command = fork.parent()
    assert command
    command.send_signal(signal.SIGTERM)
    wait_for(tmp_path / "run" / "stop")
    shell.kill()
    _, error = shell.communicate(timeout=120)
    assert error == f"{SAVES_LINE}stopped after step 7; the same command resumes\n"


def test_a_run_outside_a_job_outlives_its_shell(start: Start) -> None:
    """As with `run_sft.sh &` in a script that ends."""
    shell, fork = start(SAVES.format(trains=TRAINS), shell=SHELL)
    command = fork.parent()
    assert command
    shell.kill()
    time.sleep(4 * supervisor.PARENT_SECONDS)
    assert fork.is_running()
    command.send_signal(signal.SIGUSR1)
    _, error = shell.communicate(timeout=120)
    assert error == f"{SAVES_LINE}stopped after step 7; the same command resumes\n"


def test_a_supervisor_stopped_beyond_its_timeout_continues(start: Start) -> None:
    """CPython's sigtimedwait then returns an invalid signal."""
    command, _ = start(DEAF)
    command.send_signal(signal.SIGINT)
    assert command.stdout
    assert command.stdout.readline() == "heard\n"
    command.send_signal(signal.SIGSTOP)
    time.sleep(1.2)
    command.send_signal(signal.SIGCONT)
    _, error = command.communicate(timeout=120)
    assert (command.returncode, error) == (130, f"{STOPPED_LINE}\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_run_that_has_not_started_to_train_ends_at_once(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    command, _ = start(SAVES.format(trains=""))
    command.send_signal(number)
    _, error = command.communicate(timeout=120)
    assert error == "stopped after step 0; the same command resumes\n"
    assert not (tmp_path / "run" / "stop").exists()


def test_run_that_never_finishes_its_step_is_ended(start: Start) -> None:
    work = SAVES.format(trains=TRAINS).replace("while not", "while True or not")
    command, _ = start(work.replace("supervisor.note(", "supervisor.note(said='no'); supervisor.note(", 1), same=0)
    command.send_signal(signal.SIGUSR1)
    time.sleep(0.4)
    assert command.poll() is None
    command.send_signal(signal.SIGTERM)
    assert command.wait(120) == 130


@pytest.mark.parametrize(
    "before",
    [
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}),  # as in Ray's jobs
        lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # as in a script's background job
        lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),  # as with a parent that waits for no child
    ],
)
def test_sigterm_interrupts_a_command_that_ignores_ctrl_c(start: Start, before: Callable[[], Any]) -> None:
    work = "try:\n    ready(); time.sleep(600)\nexcept KeyboardInterrupt:\n    print('cleaned', flush=True); raise"
    command, _ = start(work, seconds=600, before=before)
    command.send_signal(signal.SIGTERM)
    out, error = command.communicate(timeout=120)
    assert (command.returncode, out, error) == (130, "cleaned\n", f"{STOPPED_LINE}\n")


def test_the_exit_status_is_that_of_the_fork(start: Start) -> None:
    for work, status in (("begun()", 0), ("begun(); sys.exit(2)", 2), ("begun(); raise ValueError('x')", 1)):
        assert start(work)[0].wait(120) == status
    command, fork = start("ready(); time.sleep(60)")
    fork.kill()
    assert command.wait(120) == 128 + signal.SIGKILL
    without_sigchld = start("begun()", before=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))[0]
    assert without_sigchld.wait(120) == 0


@pytest.mark.parametrize(
    ("status", "message"), [(1, ""), (75, ""), (0, ""), (130, "stopped after step 7; the same command resumes\n")]
)
def test_run_failing_while_asked_to_save_keeps_its_exit_status(start: Start, status: int, message: str) -> None:
    saves = SAVES.format(trains=TRAINS).replace("exit(130)", f"exit({status})")
    command, _ = start(saves)
    command.send_signal(signal.SIGUSR1)
    _, error = command.communicate(timeout=120)
    assert (command.returncode, error) == (status, f"{SAVES_LINE}{message}")


def test_save_on_term_is_0_or_1() -> None:
    assert supervisor.saves_on_term({})
    assert supervisor.saves_on_term({"SAVE_ON_TERM": " 1 "})
    assert not supervisor.saves_on_term({"SAVE_ON_TERM": " 0 "})
    code = "from convrec.runs import supervisor; supervisor.fork_under_supervisor()"
    environment = os.environ | {"SAVE_ON_TERM": "yes", "PYTHONPATH": str(ROOT)}
    process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (2, "error: SAVE_ON_TERM=yes: expected 0 or 1\n")


def test_the_fork_ends_with_a_killed_supervisor(start: Start) -> None:
    command, fork = start("ready(); time.sleep(60)")
    command.kill()
    fork.wait(60)


def test_run_killed_along_with_its_guard_is_cleaned_up(start: Start, tmp_path: Path) -> None:
    command, fork = start(WORK["holding a run folder, with children"])
    temporary = Path((tmp_path / "run" / "temporary").read_text())
    children = fork.children(recursive=True)
    guard = psutil.Process(int((temporary / "guard.pid").read_text().split()[0]))
    fork.suspend()  # it would start another guard
    guard.kill()
    guard.wait(60)
    fork.kill()
    assert command.wait(60) == 137
    _, left = psutil.wait_procs(children, timeout=60)
    assert not left
    assert not temporary.exists()


def test_a_lost_run_is_restarted_as_long_as_it_makes_progress(start: Start, tmp_path: Path) -> None:
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
        "WATCHDOG=resume: restarting after step 4",
        "WATCHDOG=resume: restarting after step 6",
        "the run was lost again after step 6 without a new checkpoint, and is not restarted",
    ]
