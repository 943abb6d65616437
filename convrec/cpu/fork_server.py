"""Python processes of a run that start by a fork: one process imports what a dozen of them would import one by one.

Imports of torch, verl and vLLM take 5 to 12 s of CPU in each process of a run. The server imports them once, then forks
for whoever asks. Who asks is `client`, an executable file that stands for Python where Ray and multiprocessing start
their processes:

    raylet, or a process that spawns --> client ARGUMENTS --(argv, environment, descriptors)--> server --fork--> process

The client waits for its process, hands signals on and ends with its status. When either is killed, so is the process.
Without a server the client becomes Python itself. Linux, and a host without a GPU: a fork of a process that has used
CUDA cannot use it.
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
    """Start a server that imports `modules`, for this process and what it starts.

    folder: where CLIENT and the socket are written; short, as the paths of sockets are.
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
            stderr=subprocess.DEVNULL,  # of imports: what is forked has its client's
            pass_fds=[listening.fileno()],
            env={**os.environ, **environment},
        )


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The client's message, and its descriptors as they are numbered here."""
    fds = array.array("i")
    head, ancillary, _, _ = connection.recvmsg(fork_client.LENGTH, socket.CMSG_LEN(253 * fds.itemsize))
    for _, _, data in ancillary:
        fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return json.loads(connection.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)), list(fds)


def serve(listening: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for each client. Returns in the forked process alone: what it is to be, and its descriptors."""
    clients: dict[int, socket.socket] = {}  # of the processes, by their ids
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
                    wanted, fds = _receive(connection)
                except (OSError, ValueError):  # it was killed while it asked
                    connection.close()
                    continue
                if (pid := os.fork()) == 0:
                    for other in [listening, connection, *clients.values()]:
                        other.close()
                    signal.set_wakeup_fd(-1)
                    return wanted, fds
                for each in fds:
                    os.close(each)
                clients[pid] = connection
                poller.register(connection, select.POLLIN | select.POLLRDHUP)
            elif fd == wake[0]:
                os.read(fd, 4096)
                _report_ends(clients, poller)
            else:
                _hand_on(fd, clients, poller)


def _report_ends(clients: dict[int, socket.socket], poller: select.poll) -> None:
    """Tell the clients of the processes that have ended how they did."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            connection = clients.pop(ended[0], None)
            if connection is None:
                continue
            poller.unregister(connection)
            with contextlib.suppress(OSError):
                connection.sendall(os.waitstatus_to_exitcode(ended[1]).to_bytes(fork_client.ENDED, "big", signed=True))
            connection.close()


def _hand_on(fd: int, clients: dict[int, socket.socket], poller: select.poll) -> None:
    """A signal that the client has got, to its process: SIGKILL where the client itself is gone."""
    pid, connection = next(((pid, one) for pid, one in clients.items() if one.fileno() == fd), (0, None))
    if connection is None:  # its process ended in the meantime
        return
    numbers = b""
    with contextlib.suppress(OSError):
        numbers = connection.recv(64)
    if not numbers:
        poller.unregister(connection)
        clients.pop(pid).close()
    for number in numbers or [signal.SIGKILL]:
        os.kill(pid, number)


def become(wanted: dict[str, Any], fds: Sequence[int]) -> None:
    """Make this forked process what the client was started as, and run it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in wanted["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, wanted["blocked"])
    os.setsid()
    os.chdir(wanted["cwd"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    _add_paths(os.environ.get("PYTHONPATH", ""))
    _place(dict(zip(fds, wanted["fds"], strict=True)))
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # Python's own generator does so by itself
    if "torch" in sys.modules:
        sys.modules["torch"].seed()
    what, *arguments = wanted["arguments"]
    if what == "-c":
        code = arguments.pop(0)
        sys.modules["__main__"] = types.ModuleType("__main__")
        sys.argv = [what, *arguments]
        exec(code, sys.modules["__main__"].__dict__)
    else:
        sys.argv = [what, *arguments]
        runpy.run_path(what, run_name="__main__")


def _add_paths(given: str) -> None:
    """PYTHONPATH of this process, which may have folders that the server's had not: each behind the one before it."""
    place = 0
    for path in filter(None, given.split(os.pathsep)):
        if path not in sys.path:
            sys.path.insert(place, path)
        place = sys.path.index(path) + 1


def _place(numbers: dict[int, int]) -> None:
    """Give descriptors their numbers: {as it is here: as it was in the client}. All others above 2 are closed."""
    highest = max([*numbers, *numbers.values()]) + 1
    moved = {os.dup2(here, highest + i): there for i, (here, there) in enumerate(numbers.items())}
    for above, there in moved.items():
        os.dup2(above, there, inheritable=True)
    kept = sorted({0, 1, 2, *numbers.values()})
    for low, high in zip(kept, [*kept[1:], os.sysconf("SC_OPEN_MAX")], strict=True):
        os.closerange(low + 1, high)


def main(fd: int, client: str, modules: Sequence[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started it
    for module in modules:
        importlib.import_module(module)
    if "ray._raylet" in sys.modules:  # which has found where titles lie, and moved what others would find it by
        title = sys.modules["ray._raylet"].setproctitle
        sys.modules["setproctitle"] = cast(types.ModuleType, types.SimpleNamespace(setproctitle=title))
    multiprocessing.set_executable(client)  # of all that is forked: what it spawns is forked, too
    gc.collect()
    gc.freeze()  # a collection would write to pages that all share
    become(*serve(socket.socket(fileno=fd)))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
