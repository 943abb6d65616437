"""A cgroup of a test's own, from which the kernel's OOM killer takes what does not fit."""

import contextlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

CGROUPS = Path("/sys/fs/cgroup")
REMOVE_SECONDS = 30.0


@dataclass(frozen=True)
class Cgroup:
    """A cgroup of the memory controller, and its files: version 1's or 2's."""

    folder: Path
    used: Path
    limit: Path
    events: Path

    @property
    def enter(self) -> str:
        """A shell's command that moves the shell into the cgroup, with what it starts then."""
        return f"echo 0 > {self.folder}/cgroup.procs"

    def count_kills(self) -> int:
        found = re.search(r"^oom_kill (\d+)", self.events.read_text(), re.MULTILINE)
        assert found
        return int(found[1])

    def limit_to_what_is_used(self) -> None:
        """Leave no room to what runs in it. Version 1 refuses where it cannot be made to use less than the limit."""
        with contextlib.suppress(OSError):
            self.limit.write_text(self.used.read_text())


@contextlib.contextmanager
def cgroup_of_test() -> Iterator[Cgroup]:
    """Make a cgroup without a limit; skip the test where the kernel or a container does not let us."""
    try:
        cgroup = _make_cgroup(f"convrec-test-{os.getpid()}")
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        yield cgroup
    finally:
        _remove(cgroup.folder)


def _make_cgroup(name: str) -> Cgroup:
    if (CGROUPS / "memory" / "memory.limit_in_bytes").exists():
        folder = CGROUPS / "memory" / name
        files = ("memory.usage_in_bytes", "memory.limit_in_bytes", "memory.oom_control")
    else:
        folder = CGROUPS / name
        files = ("memory.current", "memory.max", "memory.events")
    folder.mkdir()
    used, limit, events = (folder / file for file in files)
    if not used.exists():
        folder.rmdir()
        raise OSError(f"{CGROUPS} has no memory controller for cgroups below it")
    return Cgroup(folder, used, limit, events)


def _remove(folder: Path) -> None:
    """A cgroup is busy until the kernel has let go of its last process."""
    deadline = time.monotonic() + REMOVE_SECONDS
    while True:
        try:
            return folder.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)
