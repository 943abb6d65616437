"""The command that measures growth: which quantities and sizes it measures."""

import sys

import pytest

from benchmarks.bench_growth import QUANTITIES, main


def test_sizes_are_powers_of_ten_on_generated_data_and_doubled_for_steps() -> None:
    assert QUANTITIES["serving"].list_sizes(1_000_000) == [1000, 10_000, 100_000, 1_000_000]
    assert QUANTITIES["serving"].list_sizes(10) == [1000]
    assert QUANTITIES["evaluation"].list_sizes(1_000_000) == [1000, 10_000, 100_000]
    assert QUANTITIES["lists"].list_sizes(100) == [10, 100]
    assert QUANTITIES["step_lists"].list_sizes(1_000_000) == [8, 16, 32, 64, 128]
    assert QUANTITIES["step_prompts"].list_sizes(1_000_000) == [128, 256, 512, 1024, 2048]
    assert QUANTITIES["step_prompts"].list_sizes(300) == [128, 256]


def test_a_step_is_measured_on_a_demo_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_growth.py", "--only", "step_lists"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "--only step_lists needs --demo FOLDER" in capsys.readouterr().err
