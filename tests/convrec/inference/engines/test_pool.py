"""Replicas and their queue, with real processes that run a target without vLLM."""

import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from contextlib import closing
from importlib import import_module
from pathlib import Path

import pytest

from convrec.inference.engines.pool import MAX_ATTEMPTS, Pool, _iter_finished
from tests.user_errors import refuses

# A task is a list of words. "kill" kills the process each time, "kill once" only the first time; "wait" waits until the
# file "go" exists.
TARGET = """
import os, signal, time
from pathlib import Path
from convrec.base.errors import UserError

def load(folder):
    (Path(folder) / f"pid-{os.getpid()}").touch()
    def answer(task, tell):
        with (Path(folder) / "asked").open("a") as asked:
            print(*task, sep=",", file=asked)
        for word in task:
            tell(1)
            while word == "wait" and not (Path(folder) / "go").exists():
                time.sleep(0.01)
            once = Path(folder) / "killed"
            if word == "kill" or (word == "kill once" and not once.exists()):
                once.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if word == "wrong":
                raise UserError("task.wrong-word", "word 7 is wrong")
            if word == "broken":
                raise ValueError("out of paper")
        return [word.upper() for word in task]
    return answer
"""
TASKS = [["a", "b"], ["c", "kill once"], ["d"], ["e", "f"], ["g"]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "words_target.py").write_text(TARGET)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def two(folder: Path) -> "closing[Pool]":
    return closing(Pool([{}, {}], import_module("words_target").load, str(folder), folder / "log"))


def read_tasks(folder: Path) -> list[str]:
    """Return the tasks that replicas have begun."""
    return sorted((folder / "asked").read_text().splitlines())


def test_only_a_killed_replicas_task_is_run_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reports: list[int] = []
    with two(folder) as pool:
        answers = dict(pool.answers(TASKS, reports.append))
        again = dict(pool.answers([["h"]], reports.append))  # by the same replicas
    assert answers == {number: [word.upper() for word in task] for number, task in enumerate(TASKS)}
    assert again == {0: ["H"]}
    assert read_tasks(folder) == ["a,b", "c,kill once", "c,kill once", "d", "e,f", "g", "h"]
    assert sum(reports) == 9  # words; those that the killed replica had reported are subtracted
    assert "a replica died (exit status -9)" in capsys.readouterr().err
    pids = [int(path.name.removeprefix("pid-")) for path in folder.glob("pid-*")]
    assert len(pids) == 3
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_task_that_no_replica_survives_ends_it(folder: Path) -> None:
    message = f"{MAX_ATTEMPTS} replicas in a row died on the same batch: exit"
    with two(folder) as pool:
        answers = pool.answers([["a"], ["wait", "kill"], ["b"]])
        assert sorted([next(answers), next(answers)]) == [(0, ["A"]), (2, ["B"])]
        (folder / "go").touch()
        with pytest.raises(RuntimeError, match=message):
            next(answers)
    assert read_tasks(folder) == ["a", "b", *["wait,kill"] * MAX_ATTEMPTS]


def test_finished_answers_come_before_an_error() -> None:
    broken, done = Future[str](), Future[str]()
    broken.set_exception(RuntimeError("died"))
    done.set_result("A")
    finished = _iter_finished({broken: 0, done: 1})
    assert next(finished) == (1, "A")
    with pytest.raises(RuntimeError, match="died"):
        next(finished)


def test_a_childs_errors_are_not_retried(folder: Path) -> None:
    with refuses("task.wrong-word", "word 7"), two(folder) as pool:
        list(pool.answers([["wrong"]]))
    message = r"exit status 1; the end of .*\n[\s\S]*ValueError: out of paper"
    with pytest.raises(RuntimeError, match=message), two(folder) as pool:
        list(pool.answers([["broken"]]))
    assert read_tasks(folder) == ["broken", "wrong"]


def test_tasks_are_drawn_lazily(folder: Path) -> None:
    left = iter(range(100))
    with two(folder) as pool:
        next(pool.answers(["a"] for _ in left))
        assert next(left) <= 4


def test_replicas_and_their_folder_vanish_with_a_killed_parent(folder: Path) -> None:
    code = f"""
import os, signal
from convrec.inference.engines.placement import Placement
from words_target import load
with Placement(2).open(load, {str(folder)!r}) as pool:
    print(pool.log.parent, flush=True)
    for _ in pool.answers([["a"], ["b"]] * 2):
        os.kill(os.getpid(), signal.SIGKILL)
"""
    parent = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert parent.returncode == -signal.SIGKILL
    processes = [Path("/proc", path.name.removeprefix("pid-")) for path in folder.glob("pid-*")]
    assert processes
    deadline = time.monotonic() + 20
    while left := [path for path in (*processes, Path(parent.stdout.strip())) if path.exists()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)
