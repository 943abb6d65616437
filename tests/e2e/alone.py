"""A command as the only one of its PID, network, mount and IPC namespaces: what it leaves is all that is there.

It has an empty /dev/shm, a /tmp in which only the test's folder is, and the loopback. As a script this is the first
process of the namespaces: it starts the command, waits for its end and writes {"processes", "tmp", "shm"}, what is left
of each after GRACE_SECONDS, to a file.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

GRACE_SECONDS = 60.0
ENTER = """set -e
ip link set lo up
mount --bind "$1" /mnt; mount -t tmpfs tmpfs /tmp; mkdir -p "$1"; mount --bind /mnt "$1"
mount -t tmpfs tmpfs /dev/shm
shift; exec "$@"
"""


def alone(command: list[str], base: Path, report: Path) -> list[str]:
    """The command that runs `command` so. base: the folder below /tmp that it shares with the test."""
    enter = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--net", "--mount", "--ipc"]
    return [
        *enter,
        "sh",
        "-c",
        ENTER,
        "sh",
        str(base),
        sys.executable,
        "-I",
        __file__,
        str(base),
        str(report),
        *command,
    ]


def left(base: Path) -> dict[str, list[str]]:
    commands = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder.name != "1" and (words := (folder / "cmdline").read_bytes()):  # a zombie has none
                commands.append(words.replace(b"\0", b" ").decode(errors="replace").strip()[:200])
    shared = base.relative_to("/tmp").parts[0]
    return {
        "processes": commands,
        "tmp": sorted(set(os.listdir("/tmp")) - {shared}),
        "shm": sorted(os.listdir("/dev/shm")),
    }


def main(base: Path, report: Path, command: list[str]) -> int:
    run = subprocess.Popen(command)
    status = run.wait()
    deadline = time.monotonic() + GRACE_SECONDS
    while any((found := left(base)).values()) and time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.2)
    report.write_text(json.dumps(found))
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
