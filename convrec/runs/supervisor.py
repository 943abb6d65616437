"""A command in a process of its own, watched by one that does nothing else: asked to stop, it ends the same way always.

What a signal does to a Python process depends on the moment: its handlers wait for a call into C to return, an
`except` somewhere may take the KeyboardInterrupt, and Ray's C++ handler aborts on SIGTERM while `ray.init` runs. So the
process that the user, a shell or a scheduler knows forks at once and only waits for signals. The fork does the work, in
a session of its own: signals to a terminal's foreground group do not reach it or its children.

    the first one of a run that trains   it saves at the end of its step and ends then, which one line says at once
    another one, a second later          the fork gets a KeyboardInterrupt, and SIGKILL when it has not ended after
                                         some seconds; so does at once what trains nothing, or has not begun to
    one more                             SIGKILL
    SIGTERM with SAVE_ON_TERM=0          is never the first one: nothing is saved

They are SIGINT, SIGTERM and SIGHUP. SIGUSR1 is a first one, however often it comes. The exit status is then 130, one
line says so, temporary files and the lock of the run folder are gone. When this process is killed (SIGKILL), the kernel
kills the fork, and the guard of the run (convrec.runs.guard) the rest. In a Ray job, the end of the shell that started
this process is a SIGHUP: nobody would end what goes on without it, and it would hold the job's slots.

Linux only. Imports next to nothing before the fork: a signal that comes earlier ends the process without a word.
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

SECONDS = 15.0  # from KeyboardInterrupt to SIGKILL: Ray's shutdown takes 2 to 5 s, trackers upload what is left
SAVE_SECONDS = 900.0  # that the end of a step and its checkpoint may take
SAME_SIGNAL_SECONDS = 1.0  # `timeout` and some schedulers send a signal to the process and to its group
GUARD_SECONDS = 15.0
STOPPED = 130  # exit status
NO_PROGRESS = 75  # exit status of a run that hung: EX_TEMPFAIL of sysexits.h, try again
RESUMED_AFTER = "CONVREC_RESUMED_AFTER"  # the step after which WATCHDOG=resume has started this run
ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
WATCHED = ENDING | {signal.SIGUSR1, signal.SIGTSTP}
SAVE_VARIABLE = "SAVE_ON_TERM"
JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # Ray sets it for the driver of a job
PARENT_SECONDS = 0.5  # from one look at the parent to the next
SAVES = "saves at the end of this step; again to stop at once"
PARENT_IS_GONE = "the shell of this job is gone"

_notes: int | None = None  # the fork's end of a pipe: what the supervisor must know of it, JSON lines
_asked: mmap.mmap | None = None  # a byte that both see: whether a stop was asked for


# ---- in the fork ----


def note(**what: str) -> None:
    """Tell the supervisor, if there is one. Each overwrites the former of that name.

    run: the run folder, locked. temporary: the folder that the run's guard removes at the end. stop: the file that asks
    for a checkpoint and an end, from the first step on. stop_of_job: the one by which `convrec submit` asks. said: the
    fork has said that it stopped. memory: what is known of the run's memory (convrec.runs.memory), "" when it has
    ended. resumes: the command is to be started again when it was `lost`: hung, or a process of it has died.
    """
    if _notes is not None:
        os.write(_notes, json.dumps(what).encode() + b"\n")


def was_asked_to_stop() -> bool:
    """Whether the supervisor of this process was told to end it: what fails from then on is no failure."""
    return _asked is not None and _asked[0] != 0


def die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent`, which started it, has ended; it is kept by exec."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _begin_fork(parent: int, number: int, ignored: set[signal.Signals]) -> None:
    global _notes
    _notes = number
    os.setsid()
    die_with(parent)
    # SIGINT is the supervisor's; the others come from schedulers that signal every process of a job
    for stop in ENDING - (ignored - {signal.SIGINT}):
        signal.signal(stop, signal.default_int_handler)
    signal.signal(signal.SIGUSR1, lambda number, frame: None)
    show = sys.excepthook

    def show_failure(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # in the middle of an import of C code a KeyboardInterrupt becomes another error
        if not issubclass(kind, KeyboardInterrupt) and not was_asked_to_stop():
            show(kind, error, trace)

    sys.excepthook = show_failure


# ---- the supervisor ----


def begin(seconds: float = SECONDS) -> None:
    """Fork. Returns in the fork alone; this process ends with the fork's exit status, or with STOPPED.

    For the first lines of a command, before threads start. seconds: from KeyboardInterrupt to SIGKILL.
    """
    global _asked
    try:
        saves_on_term(os.environ)
    except ValueError as error:  # now, not when the signal comes
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, as by some parents: no signal and no status of the fork
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
    """Waits for signals and for the end of the fork.

    Args:
        child: process id of the fork.
        notes: file descriptor of what it tells.
        watched: signals to wait for, blocked in this process.
        seconds: from KeyboardInterrupt to SIGKILL.
    """

    def __init__(self, child: int, notes: int, watched: set[signal.Signals], seconds: float) -> None:
        self.child = child
        self.pipe = notes
        self.watched = watched
        self.seconds = seconds
        self.text = b""
        # what to do at the next signal, or after `deadline`
        self.harder = [lambda: os.kill(child, signal.SIGINT), self.kill]
        self.deadline: float | None = None
        self.last_signal = -SAME_SIGNAL_SECONDS
        # without a job the end of the parent says nothing: a shell that has started this with `&` may be left
        self.parent: int | None = None
        if JOB_VARIABLE in os.environ:
            self.parent = os.getppid()
            with contextlib.suppress(PermissionError):  # where Ray has started this without a shell, it leads already
                # Ray kills the shell's group as soon as the shell is gone: there would be no time to save
                os.setpgid(0, 0)

    def wait(self) -> int:
        """Until the fork has ended. Returns the exit status."""
        while True:
            pid, status = os.waitpid(self.child, os.WNOHANG)
            if pid:
                return self.end(os.waitstatus_to_exitcode(status))
            received = signal.sigtimedwait(self.watched, self.seconds_to_wait())
            # CPython gives a signal that there is not when this process was stopped beyond the time to wait
            if received is not None and received.si_signo in self.watched:
                self.answer(signal.Signals(received.si_signo))
            if self.deadline is not None and time.monotonic() >= self.deadline:
                self.go_harder()
            if self.deadline is None and self.parent not in (None, os.getppid()):
                self.say(PARENT_IS_GONE)
                self.stop(signal.SIGHUP)

    def seconds_to_wait(self) -> float:
        """Return how long nothing but a signal can give this process something to do."""
        seconds = 3600.0 if self.parent is None else PARENT_SECONDS
        if self.deadline is None:
            return seconds
        return max(0.0, min(seconds, self.deadline - time.monotonic()))

    def answer(self, number: signal.Signals) -> None:
        """Do what a signal asks for."""
        if number == signal.SIGTSTP:  # Ctrl-Z
            os.kill(self.child, signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            os.kill(self.child, signal.SIGCONT)
        elif number != signal.SIGCHLD:
            self.stop(number)

    def stop(self, number: signal.Signals) -> None:
        """Ask the run to save and to end; end it where it was asked before, or has nothing to save."""
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
        """Ask for a checkpoint at the end of the step, and say so.

        Returns:
            False where no step is trained, where the run cannot be asked, and where `convrec submit` has asked it
            before: then this is the second time.
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
        """Write a line to the terminal, in the place of a progress bar.

        Args:
            text: the line.
            may_cut_a_line: whether something was killed that may have been writing a line to a file.
        """
        new_line = "\n" if may_cut_a_line else ""
        clear = "\r\x1b[K" if sys.stderr.isatty() else new_line
        with contextlib.suppress(OSError):  # the terminal may be gone
            os.write(2, f"{clear}{text}\n".encode())

    def go_harder(self) -> None:
        assert _asked is not None
        _asked[0] = 1
        self.deadline = time.monotonic() + self.seconds
        self.harder.pop(0)()
        self.harder = self.harder or [self.kill]

    def kill(self) -> None:
        from convrec.runs import guard

        if temporary := self.notes().get("temporary"):
            guard.begin_end(Path(temporary))  # it has nothing to explain
        os.kill(self.child, signal.SIGKILL)

    def notes(self) -> dict[str, str]:
        with contextlib.suppress(BlockingIOError):
            while block := os.read(self.pipe, 65536):
                self.text += block
        noted: dict[str, str] = {}
        for line in self.text.splitlines():
            with contextlib.suppress(ValueError):  # killed while it wrote
                noted |= json.loads(line)
        return noted

    def end(self, code: int) -> int:
        """The fork has ended: wait for what the guard removes, and say what is to be said. Returns the exit status."""
        notes = self.notes()
        was_told = self.deadline is not None or code in (-number for number in ENDING)
        if temporary := notes.get("temporary"):
            from convrec.runs import guard

            guard.start_guard(Path(temporary))  # it may have been killed, too
            guard.wait_until_gone(Path(temporary), GUARD_SECONDS)
        run_folder = Path(notes["run"]) if "run" in notes else None
        if code < 0 and run_folder:
            from convrec.runs.folder import remove_stale_lock

            remove_stale_lock(run_folder)
        if notes.get("memory") and not was_told:  # it was killed, and has said nothing
            from convrec.runs import memory

            memory.say_of_killed(notes["memory"])
        only_asked_to_save = was_told and code > 0 and not was_asked_to_stop()
        if not was_told or code in (0, 2) or (only_asked_to_save and code != STOPPED):  # its checkpoint failed, say
            return code if code >= 0 else 128 - code
        if "said" not in notes:
            self.say(stop_line(run_folder), may_cut_a_line=code < 0 and "temporary" in notes)
        return STOPPED

    def is_to_resume(self) -> bool:
        """Whether the run is started again: it was lost, and has got further than when that was done before."""
        notes = self.notes()
        if self.deadline is not None or not {"lost", "resumes", "run"} <= set(notes):
            return False
        from convrec.runs.folder import latest_step

        step = latest_step(Path(notes["run"]))
        before = int(os.environ.get(RESUMED_AFTER, "-1"))
        if step <= before:
            text = f"lost again after step {before}, without a checkpoint in between: not started again"
        else:
            text = f"WATCHDOG=resume: starting again after step {step}"
            os.environ[RESUMED_AFTER] = str(step)
        with contextlib.suppress(OSError):
            os.write(2, f"{text}\n".encode())
        return step > before


def saves_on_term(environment: Mapping[str, str]) -> bool:
    """Whether the first SIGTERM asks for a checkpoint, as SAVE_ON_TERM says.

    Raises ValueError for another value than 0 and 1.
    """
    value = environment.get(SAVE_VARIABLE, "").strip()
    if value not in ("", "0", "1"):
        raise ValueError(f"{SAVE_VARIABLE}={value}: expected 0 or 1")
    return value != "0"


def stop_line(run_folder: Path | None) -> str:
    """What is said of a stop. None: of what has no checkpoints."""
    if run_folder is None:
        return "stopped; the same command does it again"
    from convrec.runs.folder import latest_step

    return f"stopped after step {latest_step(run_folder)}; the same command resumes"
