"""Stands for Python where Ray and multiprocessing start the processes of a run: convrec.cpu.fork_server says why.

The server writes this file, made executable, into the run's folder, beside its socket. The standard library alone, and
little of it: every process of the run waits for these imports.
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
LENGTH = 4
ENDED = 4
HANDED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def forked_arguments() -> list[str] | None:
    """What the server can run; None for anything else. A worker of Ray gets the variables of its environment first."""
    arguments = sys.argv[1:]
    if "--multiprocessing-fork" in arguments and "-c" in arguments:
        return arguments[arguments.index("-c") :]
    if not arguments or os.path.basename(arguments[0]) != "default_worker.py":
        return None
    context = {}
    kept = []
    for argument in arguments:  # as Ray's setup_worker.py, which imports all of Ray for it
        name, _, value = argument.partition("=")
        if name == "--serialized-runtime-env-context":
            context = json.loads(value or "{}")
        elif name != "--language":
            kept.append(argument)
        elif value != "PYTHON":
            return None
    variables = context.pop("env_vars", {})
    python = context.pop("py_executable", sys.executable)
    if any(context.values()) or python != sys.executable:
        return None
    for name, value in variables.items():
        os.environ[name] = re.sub(r"\$\{[A-Z0-9_]+\}", "", os.path.expandvars(value))
    return kept


def run_without_server() -> NoReturn:
    arguments = sys.argv[1:]
    if arguments and os.path.basename(arguments[0]) == "default_worker.py":
        arguments.insert(0, os.path.join(os.path.dirname(arguments[0]), "setup_worker.py"))
    os.execv(sys.executable, [sys.executable, *arguments])


def open_descriptors(server: socket.socket) -> Iterator[int]:
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            if fd != server.fileno() and os.fstat(fd):
                yield fd
        except OSError:  # that of the listing
            pass


def ask(server: socket.socket, arguments: list[str]) -> None:
    fds = list(open_descriptors(server))
    wanted = {
        "arguments": arguments,
        "fds": fds,
        "cwd": os.getcwd(),
        "environment": dict(os.environ),
        "ignored": [number for number in HANDED_ON if signal.getsignal(number) == signal.SIG_IGN],
        "blocked": list(signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON)),  # until `wait` hands them on
    }
    message = json.dumps(wanted).encode()
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
    server.sendmsg([len(message).to_bytes(LENGTH, "big")], [rights])
    server.sendall(message)


def wait(server: socket.socket) -> NoReturn:
    """Hand signals on until the process has ended, then end as it did."""
    server.setblocking(False)
    signal.set_wakeup_fd(server.fileno())
    for number in [one for one in HANDED_ON if signal.getsignal(one) != signal.SIG_IGN]:
        signal.signal(number, lambda *_: None)
    server.setblocking(True)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDED_ON)
    status = int.from_bytes(server.recv(ENDED, socket.MSG_WAITALL) or b"\1", "big", signed=True)
    if status < 0:
        if -status in HANDED_ON:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def main() -> None:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        server.connect(os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), SOCKET))
    except OSError:
        run_without_server()
    arguments = forked_arguments()
    if arguments is None:
        run_without_server()
    ask(server, arguments)
    wait(server)


if __name__ == "__main__":
    main()
