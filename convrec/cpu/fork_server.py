"""Start the Python processes of a run by forking one process that has already imported their packages.

Imports of torch, verl and vLLM take 5 to 12 s of CPU in each process of a run. The server imports them once, and forks
for each client. A client is an executable file that Ray and multiprocessing start in place of Python:

    raylet, or a process that spawns --> client ARGUMENTS --(argv, environment, descriptors)--> server --fork--> process

The client waits for its process, forwards signals to it, and ends with its status. If the client or the server is
killed, the process is killed too. Without a server the client becomes Python itself. This works on Linux hosts without
a GPU only: a fork of a process that has used CUDA cannot use CUDA.
"""

import array
import contextlib
import gc
import importlib
import json
import multiprocessing
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from convrec.cpu import fork_client

CLIENT = "python"


def start(folder: Path, modules: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a server for this process and the processes that it starts.

    Args:
        folder: CLIENT and the socket are written into it; its path is short, because a socket's path has a limit.
        modules: modules that the server imports.
        environment: variables of the server, in addition to those of this process.
    """
    client = folder / CLIENT
    client.write_text(f"#!{sys.executable} -IS\n{Path(fork_client.__file__).read_text()}")
    client.chmod(0o700)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with listening:
        listening.bind(str(folder / fork_client.SOCKET))
        listening.listen(128)
        return subprocess.Popen(
            [sys.executable, "-P", "-m", __spec__.name, str(listening.fileno()), str(client), *modules],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # for the imports; a forked process has the descriptors of its client
            pass_fds=[listening.fileno()],
            env={**os.environ, **environment},
        )


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return the client's request, and its descriptors with their numbers in this process."""
    fds = array.array("i")
    head, ancillary, _, _ = connection.recvmsg(fork_client.LENGTH_BYTES, socket.CMSG_LEN(253 * fds.itemsize))
    for _, _, data in ancillary:
        fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return json.loads(connection.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)), list(fds)


def serve(listening: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for each client. Only a forked process returns, with its client's request and descriptors."""
    clients: dict[int, socket.socket] = {}  # id of a forked process -> connection to its client
    poller = select.poll()
    wake = os.pipe()
    for fd in wake:
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake[1])
    signal.signal(signal.SIGCHLD, lambda *_: None)
    poller.register(listening, select.POLLIN)
    poller.register(wake[0], select.POLLIN)
    while True:
        for fd, _ in poller.poll():
            if fd == listening.fileno():
                connection, _ = listening.accept()
                try:
                    request, fds = _receive(connection)
                except (OSError, ValueError):  # the client was killed while it sent the request
                    connection.close()
                    continue
                if (pid := os.fork()) == 0:
                    for server_socket in [listening, connection, *clients.values()]:
                        server_socket.close()
                    signal.set_wakeup_fd(-1)
                    return request, fds
                for client_fd in fds:
                    os.close(client_fd)
                clients[pid] = connection
                poller.register(connection, select.POLLIN | select.POLLRDHUP)
            elif fd == wake[0]:
                os.read(fd, 4096)
                _report_statuses(clients, poller)
            else:
                _forward_signals(fd, clients, poller)


def _report_statuses(clients: dict[int, socket.socket], poller: select.poll) -> None:
    """Send the exit statuses of ended processes to their clients."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            connection = clients.pop(pid, None)
            if connection is None:
                continue
            poller.unregister(connection)
            exit_code = os.waitstatus_to_exitcode(status)
            with contextlib.suppress(OSError):
                connection.sendall(exit_code.to_bytes(fork_client.STATUS_BYTES, "big", signed=True))
            connection.close()


def _forward_signals(fd: int, clients: dict[int, socket.socket], poller: select.poll) -> None:
    """Send a client's signals to its process, or SIGKILL if the client is gone."""
    matches = ((pid, connection) for pid, connection in clients.items() if connection.fileno() == fd)
    pid, connection = next(matches, (0, None))
    if connection is None:  # its process has ended in the meantime
        return
    numbers = b""
    with contextlib.suppress(OSError):
        numbers = connection.recv(64)
    if not numbers:
        poller.unregister(connection)
        clients.pop(pid).close()
    for number in numbers or [signal.SIGKILL]:
        os.kill(pid, number)


def run_request(request: dict[str, Any], fds: Sequence[int]) -> None:
    """Run the client's program in this forked process, with the client's environment, signals and descriptors.

    This replaces the process's working directory, environment and `__main__`.

    Args:
        request: the client's message (`fork_client.send_request`).
        fds: the descriptors received with it, in the order of request["fds"], whose numbers they get.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    _add_paths(os.environ.get("PYTHONPATH", ""))
    _renumber_descriptors(dict(zip(fds, request["fds"], strict=True)))
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # Python seeds its own generator after a fork
    if "torch" in sys.modules:
        sys.modules["torch"].seed()
    program, *arguments = request["arguments"]
    if program == "-c":
        code = arguments.pop(0)
        sys.modules["__main__"] = types.ModuleType("__main__")
        sys.argv = [program, *arguments]
        exec(code, sys.modules["__main__"].__dict__)
    else:
        sys.argv = [program, *arguments]
        runpy.run_path(program, run_name="__main__")


def _add_paths(python_path: str) -> None:
    """Insert the folders of PYTHONPATH that the server did not have into sys.path, in their order."""
    index = 0
    for path in filter(None, python_path.split(os.pathsep)):
        if path not in sys.path:
            sys.path.insert(index, path)
        index = sys.path.index(path) + 1


def _renumber_descriptors(numbers: dict[int, int]) -> None:
    """Give descriptors the numbers that they had in the client, and close all others above 2.

    numbers: number in this process -> number in the client.
    """
    first_free = max([*numbers, *numbers.values()]) + 1
    copies = {os.dup2(here, first_free + i): there for i, (here, there) in enumerate(numbers.items())}
    for copy, there in copies.items():
        os.dup2(copy, there, inheritable=True)
    open_fds = sorted({0, 1, 2, *numbers.values()})
    for low, high in zip(open_fds, [*open_fds[1:], os.sysconf("SC_OPEN_MAX")], strict=True):
        os.closerange(low + 1, high)


def main(fd: int, client: str, modules: Sequence[str]) -> None:
    """Import the modules, then fork for the clients.

    Args:
        fd: descriptor of the listening socket.
        client: path of the client, with which forked processes start others.
        modules: modules to import.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started the server
    for module in modules:
        importlib.import_module(module)
    if "ray._raylet" in sys.modules:
        # Ray's copy has already found the memory of the process title, and moved what another copy would search for.
        title = sys.modules["ray._raylet"].setproctitle
        sys.modules["setproctitle"] = cast(types.ModuleType, types.SimpleNamespace(setproctitle=title))
    multiprocessing.set_executable(client)  # processes that a forked process spawns are forked too
    gc.collect()
    gc.freeze()  # a collection would write to pages that all processes share
    run_request(*serve(socket.socket(fileno=fd)))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
