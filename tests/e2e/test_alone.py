"""What the tests of faults see of a command that leaves and shows everything that it can."""

import json
import os
import sys
from pathlib import Path

from .alone import alone
from .conftest import FAULTS

pytestmark = FAULTS
LEAVES = """
import pathlib, socket, subprocess, time
pathlib.Path("/tmp/left").touch()
pathlib.Path("/dev/shm/sem.left").touch()
subprocess.Popen(["sleep", "1000"], start_new_session=True)
sockets = [socket.create_server((address, 0)) for address in ("127.0.0.1", "0.0.0.0", "10.99.0.2")]
sockets.append(socket.create_server(("::", 0), family=socket.AF_INET6))
time.sleep(2)
raise SystemExit(7)
"""


def test_what_a_command_leaves_and_who_could_reach_it_is_seen(tmp_path: Path) -> None:
    with alone([sys.executable, "-c", LEAVES], dict(os.environ), tmp_path, grace=1) as run:
        assert run.process.wait(60) == 7
    found = json.loads(run.report.read_text())
    assert (found["processes"], found["tmp"], found["shm"]) == (["sleep 1000"], ["left"], ["sem.left"])
    assert [text.rpartition(":")[0] for text in found["reachable"]] == ["IPv4 0.0.0.0", "IPv4 10.99.0.2", "IPv6 ::"]
    assert not Path("/tmp/left").exists()
    assert run.said() == ""
