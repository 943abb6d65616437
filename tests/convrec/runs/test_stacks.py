"""Stacks of real processes of a run, sleeping and stopped."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from convrec.runs import guard, stacks

ROOT = Path(__file__).resolve().parents[3]
MEMBER = """
import os, sys, threading, time
from pathlib import Path
sys.path.insert(0, {root!r})
from convrec.runs import guard, stacks
stacks.write_on_signal(Path(os.environ[guard.FOLDER_VARIABLE]))
def waits_for_an_engine():
    print("ready", flush=True)
    time.sleep(100)
def counts():
    while True:
        sum(range(100))
if len(sys.argv) > 1:
    stacks.LOOK_SECONDS = 0.1
    guard.start_guard = lambda folder, terminal: None
    for target in (counts, counts, lambda: guard._keep_guard(Path(os.environ[guard.FOLDER_VARIABLE]), 2)):
        threading.Thread(target=target, daemon=True).start()
waits_for_an_engine()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(stacks, "LOOK_SECONDS", 0.2)
    (tmp_path / "members").mkdir()
    return tmp_path


@pytest.fixture
def process(folder: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen]:
    environment = os.environ | {guard.FOLDER_VARIABLE: str(folder)}
    command = [sys.executable, "-c", MEMBER.format(root=str(ROOT)), *getattr(request, "param", [])]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.wait()


def dump_until(folder: Path, is_answer: Callable[[str], bool]) -> tuple[str, list[str]]:
    """Dump stacks repeatedly until every process got a core in time to answer."""
    for _ in range(10):
        text, problems = stacks.dump_stacks(str(folder), "node-a")
        if is_answer(text):
            break
    return text, problems


def test_the_function_in_which_a_process_waits_is_named(process: subprocess.Popen, folder: Path) -> None:
    text, problems = dump_until(folder, lambda text: "waits_for_an_engine" in text)
    assert text.startswith(f"--- process {process.pid} on node-a, ")
    assert "waits_for_an_engine" in text
    assert problems == []
    assert process.poll() is None  # the signal did not end it


@pytest.mark.parametrize("process", [["looks"]], indirect=True)
def test_watched_process_dumps_all_thread_stacks_on_request(
    process: subprocess.Popen, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "LOOK_SECONDS", 2.0)  # computing threads rarely release Python's lock

    def count_functions(text: str) -> tuple[int, int]:
        return text.count("in waits_for_an_engine"), text.count("in counts")

    for _ in range(2):
        text, _ = dump_until(folder, lambda text: count_functions(text) == (1, 2))
        assert count_functions(text) == (1, 2)
    assert process.poll() is None


def test_a_stopped_process_is_reported(process: subprocess.Popen, folder: Path) -> None:
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    _, (problem,) = stacks.dump_stacks(str(folder), "node-a")
    assert problem.startswith(f"process {process.pid} on node-a (")
    assert problem.endswith(") is stopped")


def test_other_programs_are_reported_only_if_stopped(folder: Path) -> None:
    """Such as Ray's raylet: when it is stopped, no actor answers."""
    environment = os.environ | {guard.FOLDER_VARIABLE: str(folder)}
    running, stopped = (subprocess.Popen(["sleep", "100"], env=environment) for _ in range(2))
    try:
        stopped.send_signal(signal.SIGSTOP)
        os.waitpid(stopped.pid, os.WUNTRACED)
        _, problems = stacks.dump_stacks(str(folder), "node-a")
        assert problems == [f"process {stopped.pid} on node-a (sleep 100) is stopped"]
    finally:
        for process in (running, stopped):
            process.kill()
            process.wait()
