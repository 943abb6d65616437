"""The parent's side of a replica: a child process that answers one task after another (see `child`)."""

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

# Messages from a child: (kind, value). The value of an error is the exception, or None if the error is in the log.
ANSWER = "answer"
PROGRESS = "progress"
ERROR = "error"
MAX_LOG_LINES = 15  # in an error message
# Called with the settings, it returns a function that answers a task and reports how many units were finished since its
# last report. It must be a module's function, which the child can import.
Load = Callable[[Any], Callable[[Any, Callable[[int], None]], Any]]


class Died(Exception):
    """A replica's process is gone without an answer: killed, or out of memory.

    Args:
        reason: how the process ended.
        log: the end of its log.
    """

    def __init__(self, reason: str, log: str = "") -> None:
        super().__init__(reason, log)  # all arguments, so that the exception can be pickled
        self.reason = reason

    def __str__(self) -> str:
        return "".join(self.args)


class Process:
    """A replica: the child process and the pipe to it. The child ends with this process, whatever happens.

    The thread that creates it must live as long: Linux kills the child when that thread ends.
    """

    def __init__(self, load: Load, settings: Any, log: Path, environment: Mapping[str, str]) -> None:
        """Start the child.

        Args:
            load: called once by the child with `settings`.
            settings: argument of load.
            log: gets the child's output.
            environment: environment variables of the child, in addition to this process's.
        """
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
                process_group=0,  # vLLM's workers on several GPUs join it
            )
        with contextlib.suppress(OSError):  # the child is gone: `ask` will report it
            self._connection.send((load, settings))

    def ask(self, task: Any, progress: Callable[[int], None]) -> Any:
        """Return the answer to a task.

        Args:
            task: any picklable value.
            progress: gets the number of units finished since the last call.

        Raises:
            Died: the child is gone.
            UserError: the child found an error in its input.
            RuntimeError: the child raised any other error.
        """
        with contextlib.suppress(OSError):  # the child is gone: the next statement reports it
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
        """Kill the child, from any thread; a waiting `ask` raises Died. Idempotent."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _failure(self) -> tuple[str, str]:
        """Return how the child ended, and the end of its log."""
        code = self._process.wait()
        tail = self._log.read_text(errors="replace").strip().splitlines()[-MAX_LOG_LINES:]
        return f"exit status {code}", "\n".join([f"; the end of {self._log}:", *tail])
