"""Processes of benchmarks: a command with a log, and the memory of a tree of processes."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.processes import iter_process_tree, read_pss, run_logged

PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"


def test_a_command_that_fails_ends_the_benchmark_with_its_last_words(tmp_path: Path) -> None:
    run_logged([sys.executable, "-c", "import os; print(os.environ['WORD'])"], tmp_path / "log", WORD="fine")
    assert (tmp_path / "log").read_text() == "fine\n"
    with pytest.raises(SystemExit, match="status 3:\nlast words"):
        run_logged([sys.executable, "-c", "print('last words'); exit(3)"], tmp_path / "log")


def test_a_tree_has_the_children_while_the_process_lives() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE) as process:
        while len(tree := list(iter_process_tree(process.pid))) < 2:
            pass
        assert tree[0].pid == process.pid
        assert [each.ppid() for each in tree[1:]] == [process.pid]
        process.communicate(b"\n")
    assert list(iter_process_tree(process.pid)) == []


def test_memory_of_a_process_that_has_ended_is_none() -> None:
    assert read_pss(psutil.Process(os.getpid())) > 2**20
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        ended = psutil.Process(process.pid)
        process.communicate(b"\n")
    assert read_pss(ended) == 0
