"""Processes that benchmarks start: a command with a log, and the memory of a process with all of its descendants."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from benchmarks.machine import ROOT


def run_logged(command: Sequence[str], log: Path, **variables: str) -> None:
    """Run a command in the checkout.

    Args:
        command: the command.
        log: gets its output.
        variables: added to its environment.

    Raises:
        SystemExit: it failed; the message has the end of its output.
    """
    with log.open("wb") as output:
        environment = {**os.environ, **variables}
        done = subprocess.run(command, env=environment, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise SystemExit(f"{command[0]} ended with status {done.returncode}:\n{log.read_text()[-2000:]}")


def iter_process_tree(pid: int) -> Iterator[psutil.Process]:
    """Yield a process and its descendants; none if it has ended."""
    try:
        process = psutil.Process(pid)
        yield from (process, *process.children(recursive=True))
    except psutil.NoSuchProcess:
        return


def read_pss(process: psutil.Process) -> int:
    """Return the bytes that a process holds, its share of what it has in common with others; 0 if it has ended."""
    try:
        return process.memory_full_info().pss
    except psutil.Error:
        return 0
