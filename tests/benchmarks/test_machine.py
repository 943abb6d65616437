"""The machine and the commit that every benchmark names."""

import json

import pytest

from benchmarks import machine


def test_reports_name_the_machine_and_the_commit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = {"rev-parse": "0123456789ab", "status": " M README.md"}
    monkeypatch.setattr(
        machine, "_run", lambda *words: next((text for word, text in outputs.items() if word in words), "")
    )
    machine.print_report({"seconds": 1.5})
    report = json.loads(capsys.readouterr().out)
    assert report["seconds"] == 1.5
    described = report["machine"]
    assert described["commit"] == "0123456789ab+changes"
    assert described["cores"] > 0
    assert described["memory_gib"] > 0
    assert described["versions"]["pyarrow"]
    outputs["status"] = ""
    assert machine.describe_machine()["commit"] == "0123456789ab"
    outputs.clear()  # no clone
    assert machine.describe_machine()["commit"] == ""
