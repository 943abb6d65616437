"""A command as the only one of its PID, network, mount and IPC namespaces: what it leaves is all that is there.

It has an empty /dev/shm, a /tmp in which only the test's folder is, the loopback, and an address that others could
reach. As a script this is the first process of the namespaces: it starts the command, waits for its end and writes to a
file what is left of processes, in /tmp and in /dev/shm, and what has listened beyond the loopback.
"""

import contextlib
import ipaddress
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

POLL_SECONDS = 0.2
LISTENS = "0A"  # a socket's state in /proc/net/tcp
ENTER = """set -e
ip link set lo up
ip link add node0 type veth peer name node1; ip address add 10.99.0.2/24 dev node0
ip link set node0 up; ip link set node1 up; ip route add default via 10.99.0.1
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /mnt
for folder in $SHARED; do
  mkdir -p "/mnt/${folder#/tmp/}"; mount --rbind "$folder" "/mnt/${folder#/tmp/}"
done
mount --move /mnt /tmp
exec "$@"
"""
NOTHING: dict[str, list[str]] = {"processes": [], "tmp": [], "shm": [], "reachable": []}


@dataclass
class Alone:
    """A command that runs so."""

    pid: int  # its first process's, as it is called outside
    process: subprocess.Popen
    log: Path  # what it has said on the terminal
    report: Path
    begun: float = field(default_factory=time.monotonic)

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, happened: Callable[[], object], seconds: float = 600) -> None:
        """It must not end before."""
        deadline = time.monotonic() + seconds
        while not happened():
            assert self.process.poll() is None, self.said()[-3000:]
            assert time.monotonic() < deadline, self.said()[-3000:]
            time.sleep(0.1)

    def end(self, seconds: float) -> int:
        """Wait for it. Returns its exit status; nothing is left, and nothing of it could be reached."""
        status = self.process.wait(seconds)
        found = json.loads(self.report.read_text())
        took, cpu, lingered = time.monotonic() - self.begun, found.pop("cpu_seconds"), found.pop("lingered")
        print(f"status {status}; {took:.0f} s, {cpu:.0f} s of CPU; nothing was left {lingered:.1f} s after its end")
        assert found == NOTHING, f"{found}\n{self.said()[-3000:]}"
        return status


@contextlib.contextmanager
def alone(command: list[str], environment: dict[str, str], folder: Path, grace: float = 5.0) -> Iterator[Alone]:
    """Start it. folder: the test's own. Of /tmp it sees this folder's parent, and the demo of E2E_DEMO.

    grace: seconds after its end in which what is left may still go.
    """
    import psutil

    from convrec.runs.supervisor import die_with_parent
    from tests.e2e.conftest import READY, killed_on_error

    def begin(parent: int = os.getpid()) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a script's background job has it ignored
        die_with_parent(parent)

    log, report = folder / "said", folder / "left.json"
    report.unlink(missing_ok=True)
    shared = " ".join(str(one) for one in (folder.parent, READY) if one and str(one).startswith("/tmp/"))
    enter = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--net", "--mount", "--ipc"]
    enter += ["sh", "-c", ENTER, "sh", sys.executable, "-I", __file__, str(report), str(grace)]
    with log.open("w") as terminal:
        process = subprocess.Popen(
            [*enter, *command], env=environment | {"SHARED": shared}, cwd=folder, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=terminal,
            preexec_fn=begin,
        )  # fmt: skip
    run = Alone(0, process, log, report)

    def has_begun() -> bool:
        first = [one for one in psutil.Process(process.pid).children() if one.cmdline()[:1] == [sys.executable]]
        inside = [child.pid for one in first for child in one.children()]
        run.pid = inside[0] if inside else 0
        return bool(inside)

    with killed_on_error(process):
        run.wait_for(has_begun)
        yield run


# ---- in the namespaces


def left(before: set[str]) -> dict[str, list[str]]:
    """before: what was in /tmp."""
    commands = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder.name != "1" and (words := (folder / "cmdline").read_bytes()):  # a zombie has none
                commands.append(words.replace(b"\0", b" ").decode(errors="replace").strip()[:200])
    return {
        "processes": commands,
        "tmp": sorted(set(os.listdir("/tmp")) - before),
        "shm": sorted(os.listdir("/dev/shm")),
    }


def reachable() -> set[str]:
    """Addresses beyond the loopback at which something listens."""
    found = set()
    for version, file in ((4, "/proc/net/tcp"), (6, "/proc/net/tcp6")):
        for line in Path(file).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            address, port = local.split(":")
            words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
            ip = ipaddress.ip_address(b"".join(words))
            if state == LISTENS and not (getattr(ip, "ipv4_mapped", None) or ip).is_loopback:
                found.add(f"IPv{version} {ip}:{int(port, 16)}")
    return found


def reap(wanted: int) -> int | None:
    """Take the statuses of what has ended, orphans too, as a first process does. Returns that of `wanted`."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            status = os.waitstatus_to_exitcode(ended[1]) if ended[0] == wanted else status
    return status


def main(report: Path, grace: float, command: list[str]) -> int:
    before, seen, run = set(os.listdir("/tmp")), set(), subprocess.Popen(command)
    while (status := reap(run.pid)) is None:
        seen |= reachable()
        time.sleep(POLL_SECONDS)
    ended = time.monotonic()
    while any((found := left(before)).values()) and time.monotonic() < ended + grace:
        reap(run.pid)
        time.sleep(POLL_SECONDS)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    measured = {"cpu_seconds": used.ru_utime + used.ru_stime, "lingered": time.monotonic() - ended}
    report.write_text(json.dumps({**found, "reachable": sorted(seen), **measured}))
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
