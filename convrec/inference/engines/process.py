"""The parent's side of a replica: a child process that answers one task after another (`child`)."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from convrec.base.shipped import python_path

# What a child sends: (kind, value). An error's is the exception, None for one that its log has.
ANSWER = "answer"
PROGRESS = "progress"
ERROR = "error"
LINES_SHOWN = 15
# Settings -> what answers a task, and tells the number of what was finished since the last time. Of a module: it is
# imported in the child.
Load = Callable[[Any], Callable[[Any, Callable[[int], None]], Any]]


class Died(Exception):
    """A replica's process is gone without an answer: killed, or out of memory."""

    def __init__(self, reason: str, log: str = "") -> None:
        """log: where it ended."""
        super().__init__(reason, log)  # as it travels between processes
        self.reason = reason

    def __str__(self) -> str:
        return "".join(self.args)


class Process:
    """A replica: the child process and the pipe to it. Whatever happens to this process, the child ends with it.

    The thread that makes it must live as long: Linux kills the child when that thread ends.
    """

    def __init__(self, load: Load, settings: Any, log: Path, environment: Mapping[str, str]) -> None:
        """load: what the child calls once, with `settings`. log: gets its output. environment: the child's, beside
        this process's."""
        self._log = log
        self._connection, theirs = multiprocessing.Pipe()
        command = [sys.executable, "-m", "convrec.inference.engines.child", str(theirs.fileno()), str(os.getpid())]
        with theirs, log.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                pass_fds=[theirs.fileno()],
                env={"VLLM_NO_USAGE_STATS": "1", **os.environ, "PYTHONPATH": python_path(), **environment},
                process_group=0,  # vLLM's workers of several GPUs are in it
            )
        with contextlib.suppress(OSError):  # gone already: `reply` says so
            self._connection.send((load, settings))

    def ask(self, task: Any, progress: Callable[[int], None]) -> Any:
        """The answer to a task; progress gets the number of what was finished since the last time.

        Raises Died; UserError for what the child finds wrong with what it was given; RuntimeError for what it raises.
        """
        with contextlib.suppress(OSError):  # gone: so says what comes next
            self._connection.send(task)
        try:
            while (message := self._connection.recv())[0] == PROGRESS:
                progress(message[1])
        except (EOFError, OSError):
            raise Died(*self._failure()) from None
        kind, value = message
        if kind == ERROR:
            raise value or RuntimeError("a replica failed: " + "".join(self._failure()))
        return value

    def end(self) -> None:
        """Kill it, from any thread: an `ask` that waits raises Died. Twice is no error."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _failure(self) -> tuple[str, str]:
        """(how it ended, the end of its log)"""
        code = self._process.wait()
        tail = self._log.read_text(errors="replace").strip().splitlines()[-LINES_SHOWN:]
        return f"exit status {code}", "\n".join([f"; the end of {self._log}:", *tail])
