"""Exceptions that tell users what to do (fix the input, or resume), and one-line descriptions of other errors."""

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib.util import find_spec
from typing import ParamSpec

Arguments = ParamSpec("Arguments")


class UserError(ValueError):
    """Bad input: the message names the file, row or variable and says how to fix it.

    Entry points print the message and the code without a traceback and exit with status 2.

    Args:
        code: what kind of error it is, as `area.kind-of-error` in lower case. It stays when the sentence changes, so
            scripts and tests rely on it. docs/reference/errors.md lists every code.
        message: the sentence for the user.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return self.message

    def as_line(self) -> str:
        """Return the line that a command prints: the message, then the code in brackets."""
        return f"error: {self.message} [{self.code}]"


class ProcessLost(RuntimeError):
    """A process or a node of the run died; the same command resumes."""


class NoProgress(ProcessLost):
    """A phase of the run has taken far longer than usual; the same command resumes."""


def exit_on_user_error(main: Callable[Arguments, int]) -> Callable[Arguments, int]:
    """Wrap a command so that a UserError becomes one line on stderr and exit status 2."""

    @wraps(main)
    def command(*arguments: Arguments.args, **named: Arguments.kwargs) -> int:
        try:
            return main(*arguments, **named)
        except UserError as error:
            print(error.as_line(), file=sys.stderr)
            return 2

    return command


def need_packages(*names: str) -> None:
    """Exit if a package is missing: this is then another environment.

    Args:
        *names: names under which the packages are imported; they are looked up, not imported.

    Raises:
        SystemExit: a package is missing; the status is 2, and stderr has the way to install it.
    """
    if missing := [name for name in names if find_spec(name) is None]:
        print(
            f"error: {sys.executable} has no {', '.join(missing)}: this is not the project's environment. `make setup` "
            "creates one in .venv; for GPUs, see docs/how-to/install.md; the scripts use PYTHON=... if it is set",
            file=sys.stderr,
        )
        raise SystemExit(2)


@contextmanager
def exit_on_unwritable_output() -> Iterator[None]:
    """Exit if stdout cannot be written: the disk is full, or the pipe is closed.

    Raises:
        SystemExit: the block could not write to stdout; the status is 1. Any other OSError passes through.
    """
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:  # closed by the shell: >&-
                sys.stdout.flush()
    except OSError as error:
        if error.filename is not None or _can_write_output():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python would flush stdout again at exit
        print(f"error: stdout: {error.strerror}: the output is truncated", file=sys.stderr)
        sys.exit(1)


def _can_write_output() -> bool:
    try:
        os.write(1, b"\n")
    except OSError:
        return False
    return True


def is_lost_process(error: BaseException) -> bool:
    """Return whether Ray or vLLM raised an error because a process died, not because its start failed.

    The classes are compared by name, because importing either library takes seconds.
    """
    cause = getattr(error, "cause", None) or error
    is_gone = {"RayActorError", "EngineDeadError"} & {base.__name__ for base in type(cause).__mro__}
    return bool(is_gone) and not getattr(cause, "actor_init_failed", False)


def one_line(error: BaseException) -> str:
    """Describe the innermost cause of an error in one line.

    Ray wraps a worker's error in its own, with the traceback as its message.
    """
    cause = getattr(error, "cause", None) or error
    names = {base.__name__ for base in type(cause).__mro__}
    if "EngineDeadError" in names:
        return "vLLM's engine is gone (killed, or out of memory)"
    if is_lost_process(cause):
        match = re.search(r"class_name: \S*?(\w+)$", str(cause), re.MULTILINE)
        return f"a process of the run{f', {match[1]},' if match else ''} is gone (killed, or out of memory)"
    lines = str(cause).strip().splitlines()
    # An out-of-memory error has a first line with the figures, then pages of advice.
    line = lines and (lines[0] if "OutOfMemoryError" in names else lines[-1])
    if not line:
        return type(cause).__name__
    is_whole = "RayActorError" in names or type(cause) in (RuntimeError, ProcessLost, NoProgress)
    return line if is_whole else f"{type(cause).__name__}: {line}"
