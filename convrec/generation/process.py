"""The parent's side of a replica: a child process that answers one task after another (convrec.generation.child)."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from convrec.errors import UserError

# What a child, or an actor with a child, sends: (kind, value).
ANSWER, PROGRESS, ERROR, FAILED, DIED = "answer", "progress", "error", "failed", "died"
LINES_SHOWN = 15


class Died(Exception):
    """A replica's process is gone without an answer: killed, out of memory, or its node is lost."""

    def __init__(self, reason: str, log: str = "") -> None:
        """log: where it ended."""
        super().__init__(f"{reason}{log}")
        self.reason, self.log = reason, log


class Replica(Protocol):
    def ask(self, task: Any, progress: Callable[[int], None]) -> Any:
        """The answer to a task; progress gets the number of what was finished since the last time.

        Raises Died; UserError for what the child finds wrong with what it was given; RuntimeError for what it raises.
        """

    def end(self) -> None:
        """Kill it, from any thread: an `ask` that waits raises Died. Twice is no error."""


class Process:
    """A Replica on this node. Whatever happens to this process, the child ends with it.

    The thread that makes it must live as long: Linux kills the child when that thread ends.
    """

    def __init__(self, target: str, settings: Any, environment: Mapping[str, str], log: Path) -> None:
        """target: "module:function", of which the child calls function(settings) once. log: gets its output."""
        self._log = log
        self._connection, theirs = multiprocessing.Pipe()
        command = [sys.executable, "-m", "convrec.generation.child", str(theirs.fileno()), str(os.getpid())]
        with theirs, log.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                pass_fds=[theirs.fileno()],
                env={**_environment(), **environment},
                process_group=0,  # vLLM's workers of several GPUs are in it
            )
        with contextlib.suppress(OSError):  # gone already: `ask` says so
            self._connection.send((target, settings))

    def ask(self, task: Any, progress: Callable[[int], None]) -> Any:
        with contextlib.suppress(OSError):  # gone: so says what comes next
            self._connection.send(task)
        while (message := self._receive())[0] == PROGRESS:
            progress(message[1])
        if message[0] == FAILED:
            message = FAILED, "vLLM generation failed: " + "".join(self._failure())
        return read_reply(message)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _receive(self) -> tuple[str, Any]:
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            raise Died(*self._failure()) from None

    def _failure(self) -> tuple[str, str]:
        """(how it ended, the end of its log)"""
        code = self._process.wait()
        tail = self._log.read_text(errors="replace").strip().splitlines()[-LINES_SHOWN:]
        return f"exit status {code}", "\n".join([f"; the end of {self._log}:", *tail])


def read_reply(message: tuple[str, Any]) -> Any:
    """The answer in a last message; raises what it stands for."""
    kind, value = message
    if kind == DIED:
        raise Died(*value)
    if kind == ERROR:
        raise UserError(value)
    if kind == FAILED:
        raise RuntimeError(value)
    return value


def _environment() -> dict[str, str]:
    environment = {"VLLM_NO_USAGE_STATS": "1", **os.environ}
    root = str(Path(__file__).resolve().parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
    return environment
