"""Phases in processes of their own: what hangs, dies or is wrong is a failed phase, and the next ones still run."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import pytest

from recipes.gpu_check import check
from recipes.selftest.checks import Machine
from recipes.selftest.phases import PHASES
from recipes.selftest.runner import Phase


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """`some_phases`, in the phases' processes too."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def phase(name: str, process: str, seconds: int = 30, **gpus: Any) -> Phase:
    """Its function is called as it is, up to a hyphen."""
    function = getattr(import_module("some_phases"), name.partition("-")[0])
    return Phase(name, f"what {name} tries", function, seconds, process, **gpus)


def checked(phases: list[Phase], tmp_path: Path, seconds: float = 100) -> tuple[int, dict[str, Any]]:
    """(exit status, the file), without a GPU"""
    file = tmp_path / "out" / "check.json"
    return check(phases, Machine(tmp_path, 0), seconds, file), json.loads(file.read_text())


def test_hang_or_crash_fails_its_phase_and_the_next_ones_run(
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
        phase("fine-gpu", "two", gpus=2),
        phase("fine-anywhere", "two", gpus=2, on_cpu=True),
    ]
    status, results = checked(phases, tmp_path)
    assert status == 1
    assert [(entry["phase"], entry["status"]) for entry in results["phases"]] == [
        ("fine", "pass"),
        ("pid-1", "pass"),
        ("hang", "fail"),
        ("pid-2", "pass"),
        ("pid-3", "pass"),
        ("wrong", "fail"),
        ("fine-gpu", "skipped"),
        ("dies", "fail"),
        ("fine-anywhere", "pass"),
    ]
    by_name = {entry["phase"]: entry for entry in results["phases"]}
    assert by_name["fine"]["figures"] == {"device": "cpu", "value": 1.5}
    assert by_name["hang"]["reason"] == "no end after 1 s"
    assert by_name["wrong"]["reason"] == "CheckFailed: difference is nan, must be at most 0.1"
    assert by_name["dies"]["reason"] == "its process ended (exit status -6)"
    assert "last words" in "\n".join(by_name["dies"]["log"])
    pids = [by_name[f"pid-{number}"]["figures"]["pid"] for number in (1, 2, 3)]
    assert pids[0] != pids[1] == pids[2]  # a new process after the one that hung, and only then
    assert results["left_out"] == {"fine-gpu": "needs 2 GPUs, this machine has 0"}
    assert (results["ok"], results["finished"]) == (False, True)
    assert not [one for one in psutil.process_iter(["cmdline"]) if str(tmp_path) in (one.info["cmdline"] or ())]
    assert "5 pass, 3 fail, 1 skipped" in capsys.readouterr().out


def test_what_would_begin_too_late_is_skipped_and_no_failure(tmp_path: Path) -> None:
    status, results = checked([phase("slow", "one", seconds=4), phase("fine", "two")], tmp_path, seconds=5)
    assert status == 0
    assert [entry["status"] for entry in results["phases"]] == ["pass", "skipped"]
    assert "--only fine" in results["left_out"]["fine"]


def test_the_table_and_its_page_have_every_phase() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "how-to" / "check-gpus.md").read_text(encoding="utf-8")
    assert len({entry.name for entry in PHASES}) == len(PHASES)
    rows = "".join(row.split("|")[1] for row in page.splitlines() if row.startswith("| `"))
    assert all(f"`{entry.name}`" in rows for entry in PHASES)
