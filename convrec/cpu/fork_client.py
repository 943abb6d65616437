"""A replacement of Python with which Ray and multiprocessing start the processes of a run; see convrec.cpu.fork_server.

The server writes this file as an executable into the run's folder, next to its socket. It imports only a little of the
standard library, because every process of the run waits for these imports.
"""

from __future__ import annotations

import array
import json
import os
import re
import signal
import socket
import sys

TYPE_CHECKING = False  # the module typing is not imported
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NoReturn

SOCKET = "fork.sock"
LENGTH_BYTES = 4
STATUS_BYTES = 4
FORWARDED_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def read_fork_arguments() -> list[str] | None:
    """Return the arguments of a process that the server can fork; None for any other process.

    For a worker of Ray this also sets the variables of its runtime environment.
    """
    arguments = sys.argv[1:]
    if "--multiprocessing-fork" in arguments and "-c" in arguments:
        return arguments[arguments.index("-c") :]
    if not arguments or os.path.basename(arguments[0]) != "default_worker.py":
        return None
    context = {}
    worker_arguments = []
    for argument in arguments:  # as in Ray's setup_worker.py, which imports all of Ray for this
        name, _, value = argument.partition("=")
        if name == "--serialized-runtime-env-context":
            context = json.loads(value or "{}")
        elif name != "--language":
            worker_arguments.append(argument)
        elif value != "PYTHON":
            return None
    variables = context.pop("env_vars", {})
    python = context.pop("py_executable", sys.executable)
    if any(context.values()) or python != sys.executable:
        return None
    for name, value in variables.items():
        os.environ[name] = re.sub(r"\$\{[A-Z0-9_]+\}", "", os.path.expandvars(value))
    return worker_arguments


def exec_python() -> NoReturn:
    """Replace this process by Python with the same arguments."""
    arguments = sys.argv[1:]
    if arguments and os.path.basename(arguments[0]) == "default_worker.py":
        arguments.insert(0, os.path.join(os.path.dirname(arguments[0]), "setup_worker.py"))
    os.execv(sys.executable, [sys.executable, *arguments])


def iter_descriptors(server: socket.socket) -> Iterator[int]:
    """Yield the open file descriptors of this process, except for that of the server."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            if fd != server.fileno() and os.fstat(fd):
                yield fd
        except OSError:  # the descriptor of the listing itself
            pass


def send_request(server: socket.socket, arguments: list[str]) -> None:
    """Send the server this process's arguments, environment, signal masks and descriptors.

    Args:
        server: a connected UNIX socket.
        arguments: of Python, beginning with a file or `-c`.
    """
    fds = list(iter_descriptors(server))
    request = {
        "arguments": arguments,
        "fds": fds,
        "cwd": os.getcwd(),
        "environment": dict(os.environ),
        "ignored": [number for number in FORWARDED_SIGNALS if signal.getsignal(number) == signal.SIG_IGN],
        "blocked": list(signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED_SIGNALS)),  # until they can be forwarded
    }
    message = json.dumps(request).encode()
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
    server.sendmsg([len(message).to_bytes(LENGTH_BYTES, "big")], [rights])
    server.sendall(message)


def wait_for_process(server: socket.socket) -> NoReturn:
    """Forward signals until the process has ended, then end with the same status."""
    server.setblocking(False)
    signal.set_wakeup_fd(server.fileno())
    for number in FORWARDED_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    server.setblocking(True)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED_SIGNALS)
    status = int.from_bytes(server.recv(STATUS_BYTES, socket.MSG_WAITALL) or b"\1", "big", signed=True)
    if status < 0:
        if -status in FORWARDED_SIGNALS:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def main() -> None:
    """Let the server fork this process, or become Python if it cannot."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        server.connect(os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), SOCKET))
    except OSError:
        exec_python()
    arguments = read_fork_arguments()
    if arguments is None:
        exec_python()
    send_request(server, arguments)
    wait_for_process(server)


if __name__ == "__main__":
    main()
