"""Run a command in a child process under a supervisor, so that it always stops in the same way on signals.

What a signal does to a Python process depends on the moment: handlers wait for calls into C to return, an `except`
somewhere may catch the KeyboardInterrupt, and Ray's C++ handler aborts on SIGTERM during `ray.init`. Therefore the
process that the user, a shell or a scheduler started forks at once and only waits for signals. The fork does the work,
in its own session: signals to a terminal's foreground group do not reach it or its children.

    first signal to a training run       it prints a line, saves at the end of the step, and ends
    another one, a second later          the fork gets a KeyboardInterrupt, then SIGKILL if it has not ended after some
                                         seconds; so does, at once, a command that has not started to train
    a third one                          SIGKILL
    SIGTERM with SAVE_ON_TERM=0          never counts as the first one: nothing is saved

This holds for SIGINT, SIGTERM and SIGHUP. SIGUSR1 always counts as a first signal, even if repeated. Afterwards the
exit status is 130, one line reports the stop, and temporary files and the lock of the run folder are removed. If this
process is killed (SIGKILL), the kernel kills the fork, and the guard of the run (convrec.runs.guard) everything else.
In a Ray job, the end of the shell that started this process counts as a SIGHUP; otherwise nobody would end the run, and
it would occupy the job's slots.

Linux only. Imports almost nothing before the fork, because a signal before it ends the process without a message.
"""

import contextlib
import ctypes
import json
import mmap
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

SECONDS = 15.0  # from KeyboardInterrupt to SIGKILL: Ray's shutdown takes 2 to 5 s, and trackers finish their uploads
SAVE_SECONDS = 900.0  # limit for the end of a step and its checkpoint
SAME_SIGNAL_SECONDS = 1.0  # `timeout` and some schedulers send a signal to the process and to its group
GUARD_SECONDS = 15.0
STOPPED = 130  # exit status
NO_PROGRESS = 75  # exit status of a run that hung: EX_TEMPFAIL in sysexits.h, try again
RESUMED_AFTER = "CONVREC_RESUMED_AFTER"  # the step after which WATCHDOG=resume started this run again
ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
WATCHED = ENDING | {signal.SIGUSR1, signal.SIGTSTP}
SAVE_VARIABLE = "SAVE_ON_TERM"
JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # Ray sets it for the driver of a job
PARENT_SECONDS = 0.5  # between two checks of the parent
SAVES = "saving at the end of this step; signal again to stop at once"
PARENT_IS_GONE = "the shell of this job has ended"

_notes: int | None = None  # the fork's end of a pipe to the supervisor, for JSON lines
_asked: mmap.mmap | None = None  # a byte that both processes share: whether a stop was requested


# ---- in the fork ----


def note(**what: str) -> None:
    """Send notes to the supervisor, if there is one. A note replaces the previous one with the same name.

    Args:
        what: notes by name. run: the locked run folder. temporary: the folder that the run's guard removes at the end.
            stop: the file that requests a checkpoint and the end, set from the first step on. stop_of_job: the same for
            `convrec submit`. said: the fork has printed that it stopped. memory: the memory record of the run
            (convrec.runs.memory), "" at its end. resumes: restart the command if it was `lost`, that is, it hung or one
            of its processes died.
    """
    if _notes is not None:
        os.write(_notes, json.dumps(what).encode() + b"\n")


def was_asked_to_stop() -> bool:
    """Return whether the supervisor is ending this process, so that later errors are not failures."""
    return _asked is not None and _asked[0] != 0


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends, also after exec.

    Args:
        parent: the process id of the parent.
    """
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _begin_fork(parent: int, number: int, ignored: set[signal.Signals]) -> None:
    global _notes
    _notes = number
    os.setsid()
    die_with_parent(parent)
    # The supervisor sends SIGINT; the others come from schedulers that signal every process of a job.
    for number in ENDING - (ignored - {signal.SIGINT}):
        signal.signal(number, signal.default_int_handler)
    signal.signal(signal.SIGUSR1, lambda number, frame: None)
    print_traceback = sys.excepthook

    def show_failure(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # During the import of C code, a KeyboardInterrupt becomes another error.
        if not issubclass(kind, KeyboardInterrupt) and not was_asked_to_stop():
            print_traceback(kind, error, trace)

    sys.excepthook = show_failure


# ---- the supervisor ----


def fork_under_supervisor(seconds: float = SECONDS) -> None:
    """Fork, and return only in the fork. This process exits with the fork's exit status, or with STOPPED.

    Call it in the first lines of a command, before threads start.

    Args:
        seconds: from KeyboardInterrupt to SIGKILL.
    """
    global _asked
    try:
        saves_on_term(os.environ)
    except ValueError as error:  # reported now, not at the first signal
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # some parents ignore it: then there is neither signal nor status
    ignored = {number for number in WATCHED if signal.getsignal(number) is signal.SIG_IGN}  # nohup, `command &`
    watched = (WATCHED - ignored) | {signal.SIGCHLD}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    read_end, write_end = os.pipe()
    _asked = mmap.mmap(-1, 1)
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        _begin_fork(parent, write_end, ignored)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask - ENDING)  # Ray starts jobs with SIGINT blocked
        return
    os.close(write_end)
    os.set_blocking(read_end, False)
    supervisor = Supervisor(child, read_end, watched, seconds)
    status = supervisor.wait()
    if supervisor.is_to_resume():
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    os._exit(status)


class Supervisor:
    """Wait for signals and for the end of the fork.

    Args:
        child: process id of the fork.
        notes: file descriptor of its notes.
        watched: signals to wait for, blocked in this process.
        seconds: from KeyboardInterrupt to SIGKILL.
    """

    def __init__(self, child: int, notes: int, watched: set[signal.Signals], seconds: float) -> None:
        self.child = child
        self.pipe = notes
        self.watched = watched
        self.seconds = seconds
        self.text = b""
        # What to do at the next signal, or after `deadline`.
        self.harder = [lambda: os.kill(child, signal.SIGINT), self.kill]
        self.deadline: float | None = None
        self.last_signal = -SAME_SIGNAL_SECONDS
        # Outside a job, the parent may end normally: a shell that started this with `&` may exit.
        self.parent: int | None = None
        if JOB_VARIABLE in os.environ:
            self.parent = os.getppid()
            with contextlib.suppress(PermissionError):  # if Ray started this without a shell, it leads a group already
                # Ray kills the shell's group as soon as the shell has ended, which would leave no time to save.
                os.setpgid(0, 0)

    def wait(self) -> int:
        """Wait until the fork has ended, and return the exit status."""
        while True:
            pid, status = os.waitpid(self.child, os.WNOHANG)
            if pid:
                return self.end(os.waitstatus_to_exitcode(status))
            received = signal.sigtimedwait(self.watched, self.seconds_to_wait())
            # CPython returns an invalid signal if this process was stopped for longer than the timeout.
            if received is not None and received.si_signo in self.watched:
                self.answer(signal.Signals(received.si_signo))
            if self.deadline is not None and time.monotonic() >= self.deadline:
                self.go_harder()
            if self.deadline is None and self.parent not in (None, os.getppid()):
                self.say(PARENT_IS_GONE)
                self.stop(signal.SIGHUP)

    def seconds_to_wait(self) -> float:
        """Return how long this process can wait for a signal before it has something else to do."""
        seconds = 3600.0 if self.parent is None else PARENT_SECONDS
        if self.deadline is None:
            return seconds
        return max(0.0, min(seconds, self.deadline - time.monotonic()))

    def answer(self, number: signal.Signals) -> None:
        """Handle a signal."""
        if number == signal.SIGTSTP:  # Ctrl-Z
            os.kill(self.child, signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            os.kill(self.child, signal.SIGCONT)
        elif number != signal.SIGCHLD:
            self.stop(number)

    def stop(self, number: signal.Signals) -> None:
        """Ask the run to save and end; end it at once if it was asked before, or has nothing to save."""
        now = time.monotonic()
        is_same = now - self.last_signal < SAME_SIGNAL_SECONDS
        self.last_signal = now
        if self.deadline is None:
            may_save = number != signal.SIGTERM or saves_on_term(os.environ)
            if not (may_save and self.save()):
                self.go_harder()
        elif not is_same and number != signal.SIGUSR1:
            self.go_harder()

    def save(self) -> bool:
        """Request a checkpoint at the end of the step, and print that.

        Returns:
            False if no step is being trained, if the request cannot be written, and if `convrec submit` has already
            requested it, so that this is the second request.
        """
        notes = self.notes()
        if "stop" not in notes or Path(notes["stop_of_job"]).exists():
            return False
        try:
            Path(notes["stop"]).touch()
        except OSError:
            return False
        self.deadline = time.monotonic() + SAVE_SECONDS
        self.say(SAVES)
        return True

    def say(self, text: str, may_cut_a_line: bool = False) -> None:
        """Write a line to the terminal, replacing a progress bar.

        Args:
            text: the line.
            may_cut_a_line: whether a killed process may have left an unfinished line in a file.
        """
        new_line = "\n" if may_cut_a_line else ""
        clear = "\r\x1b[K" if sys.stderr.isatty() else new_line
        with contextlib.suppress(OSError):  # the terminal may be gone
            os.write(2, f"{clear}{text}\n".encode())

    def go_harder(self) -> None:
        """Use the next harder way to end the fork."""
        assert _asked is not None
        _asked[0] = 1
        self.deadline = time.monotonic() + self.seconds
        self.harder.pop(0)()
        self.harder = self.harder or [self.kill]

    def kill(self) -> None:
        """Kill the fork."""
        from convrec.runs import guard

        if temporary := self.notes().get("temporary"):
            guard.request_end(Path(temporary))  # the guard need not explain this end
        os.kill(self.child, signal.SIGKILL)

    def notes(self) -> dict[str, str]:
        """Return the fork's notes by name."""
        with contextlib.suppress(BlockingIOError):
            while block := os.read(self.pipe, 65536):
                self.text += block
        notes: dict[str, str] = {}
        for line in self.text.splitlines():
            with contextlib.suppress(ValueError):  # killed while writing
                notes |= json.loads(line)
        return notes

    def end(self, code: int) -> int:
        """Wait for the guard to clean up after the fork, print messages, and return the exit status."""
        notes = self.notes()
        run_folder = Path(notes["run"]) if "run" in notes else None
        was_stopped = self.deadline is not None or code in (-number for number in ENDING)
        self._clean_up(notes, run_folder, was_killed=code < 0)
        if notes.get("memory") and not was_stopped:  # killed without a message
            from convrec.runs import memory

            memory.print_kill_reason(notes["memory"])
        saving_failed = code > 0 and code != STOPPED and not was_asked_to_stop()
        if not was_stopped or code in (0, 2) or saving_failed:
            return code if code >= 0 else 128 - code
        if "said" not in notes:
            self.say(format_stop_message(run_folder), may_cut_a_line=code < 0 and "temporary" in notes)
        return STOPPED

    def _clean_up(self, notes: Mapping[str, str], run_folder: Path | None, was_killed: bool) -> None:
        if temporary := notes.get("temporary"):
            from convrec.runs import guard

            guard.start_guard(Path(temporary))  # the guard may have been killed too
            guard.wait_until_gone(Path(temporary), GUARD_SECONDS)
        if was_killed and run_folder:
            from convrec.runs.folder import remove_stale_lock

            remove_stale_lock(run_folder)

    def is_to_resume(self) -> bool:
        """Return whether to restart the run: it was lost, and has made progress since the last restart."""
        notes = self.notes()
        if self.deadline is not None or not {"lost", "resumes", "run"} <= set(notes):
            return False
        from convrec.runs.folder import latest_step

        step = latest_step(Path(notes["run"]))
        before = int(os.environ.get(RESUMED_AFTER, "-1"))
        if step <= before:
            text = f"the run was lost again after step {before} without a new checkpoint, and is not restarted"
        else:
            text = f"WATCHDOG=resume: restarting after step {step}"
            os.environ[RESUMED_AFTER] = str(step)
        with contextlib.suppress(OSError):
            os.write(2, f"{text}\n".encode())
        return step > before


def saves_on_term(environment: Mapping[str, str]) -> bool:
    """Return whether the first SIGTERM requests a checkpoint, according to SAVE_ON_TERM.

    Raises:
        ValueError: the value is not 0 or 1.
    """
    value = environment.get(SAVE_VARIABLE, "").strip()
    if value not in ("", "0", "1"):
        raise ValueError(f"{SAVE_VARIABLE}={value}: expected 0 or 1")
    return value != "0"


def format_stop_message(run_folder: Path | None) -> str:
    """Return the message about a stop.

    Args:
        run_folder: the run's folder; None for a command without checkpoints.
    """
    if run_folder is None:
        return "stopped; run the same command again"
    from convrec.runs.folder import latest_step

    return f"stopped after step {latest_step(run_folder)}; the same command resumes"
