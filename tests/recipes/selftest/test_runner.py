"""Phases in processes of their own: what hangs, dies or is wrong is a failed phase, and the next ones still run."""

import ast
import json
import os
from pathlib import Path

import psutil
import pytest

from recipes.selftest import report, runner
from recipes.selftest.phases import PHASES, Phase

MODULE = """
import os, subprocess, sys, time
from recipes.selftest.checks import Skipped, require, require_at_most

def fine(place):
    return {"device": place.device, "value": 1.5}

def slow(place):
    time.sleep(2.5)
    return {}

def pid(place):
    return {"pid": os.getpid()}

def wrong(place):
    require_at_most("difference", float("nan"), 0.1)

def lacking(place):
    raise Skipped("no second disk")

def hang(place):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (place.folder / "pid").write_text(str(child.pid))
    time.sleep(600)

def dies(place):
    print("last words", file=sys.stderr)
    os.abort()
"""


def phase(name: str, process: str, seconds: int = 30, gpus: int = 0) -> Phase:
    function = f"made_up_phases:{name.partition('-')[0]}"
    return Phase(name, f"what {name} tries", function, process, seconds, gpus)


def run(phases: list[Phase], tmp_path: Path, seconds: float = 100) -> tuple[int, dict, report.Progress]:
    (tmp_path / "made_up_phases.py").write_text(MODULE)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).resolve().parents[3]}"}
    progress = report.Progress(phases, 0, tmp_path / "out" / "check.json")
    runner.run(phases, tmp_path, 0, environment, seconds, progress.add)
    return progress.finish(), json.loads((tmp_path / "out" / "check.json").read_text()), progress


def test_what_hangs_or_dies_is_a_failed_phase_and_the_next_ones_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    phases = [
        phase("fine", "one"),
        phase("pid-1", "one"),
        phase("hang", "one", seconds=1),
        phase("pid-2", "one"),
        phase("pid-3", "one"),
        phase("wrong", "one"),
        phase("dies", "two"),
        phase("lacking", "two"),
        phase("fine-gpu", "two", gpus=2),
    ]
    status, found, progress = run(phases, tmp_path)
    assert status == 1
    assert [(entry["phase"], entry["status"]) for entry in found["phases"]] == [
        ("fine", "pass"),
        ("pid-1", "pass"),
        ("hang", "fail"),
        ("pid-2", "pass"),
        ("pid-3", "pass"),
        ("wrong", "fail"),
        ("fine-gpu", "skipped"),
        ("dies", "fail"),
        ("lacking", "skipped"),
    ]
    by_name = {outcome.phase: outcome for outcome in progress.outcomes}
    assert by_name["fine"].figures == {"device": "cpu", "value": 1.5}
    assert by_name["fine"].host_bytes > 2**20
    assert by_name["hang"].reason == "no end after 1 s"
    assert by_name["wrong"].reason == "CheckFailed: difference is nan, at most 0.1 is right"
    assert by_name["dies"].reason == "its process ended (SIGABRT)"
    assert "last words" in "\n".join(by_name["dies"].log)
    pids = [by_name[f"pid-{number}"].figures["pid"] for number in (1, 2, 3)]
    assert pids[0] != pids[1] == pids[2]  # a new process after the one that hung, and only then
    assert found["left_out"] == {"fine-gpu": "needs 2 GPUs, there are 0", "lacking": "no second disk"}
    assert (found["ok"], found["finished"]) == (False, True)
    left = psutil.pid_exists(int((tmp_path / "pid").read_text()))
    assert not left or psutil.Process(int((tmp_path / "pid").read_text())).status() == psutil.STATUS_ZOMBIE
    table = capsys.readouterr().out
    assert "4 pass, 3 fail, 2 skipped" in table


def test_what_would_begin_too_late_is_skipped_and_no_failure(tmp_path: Path) -> None:
    status, found, _ = run([phase("slow", "one"), phase("fine-2", "two")], tmp_path, seconds=2)
    assert status == 0
    assert [entry["status"] for entry in found["phases"]] == ["pass", "skipped"]
    assert "--only fine-2" in found["left_out"]["fine-2"]


def test_every_phase_has_its_function() -> None:
    """By their source: they import torch, verl and vLLM where they run."""
    root = Path(__file__).resolve().parents[3]
    assert len({entry.name for entry in PHASES}) == len(PHASES)
    for entry in PHASES:
        module, _, function = entry.function.partition(":")
        tree = ast.parse((root / f"{module.replace('.', '/')}.py").read_text())
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
