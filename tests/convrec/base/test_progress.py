"""Progress without a terminal: lines in a file, as with nohup, SLURM and CI."""

import io
import re
import time
from pathlib import Path

import pytest

from convrec.base import progress
from convrec.base.progress import Progress


def test_without_a_terminal_lines_show_the_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SECONDS", 0.2)
    start = time.monotonic()
    with open(tmp_path / "log", "w") as log:
        with Progress(total=10, desc="asking", unit="answer", file=log, note=lambda: "0.30 paid") as bar:
            bar.update(4)
            while (tmp_path / "log").read_text().count(" 4/10 ") < 2:
                assert time.monotonic() - start < 60
                time.sleep(0.02)
            assert time.monotonic() - start >= 0.4
            bar.update(6)
        lines = (tmp_path / "log").read_text().splitlines()
    pattern = r"asking:  40% 4/10 \[\d\d:\d\d<\d\d:\d\d, +[\d.]+(answer/s|s/answer), 0\.30 paid\]"
    assert all(re.fullmatch(pattern, line) for line in lines if " 4/10 " in line)
    assert lines[-1].startswith("asking: 100% 10/10 [")


def test_an_unknown_total_is_omitted() -> None:
    with Progress(total=None, desc="reading", unit=" rows", file=io.StringIO()) as bar:
        bar.update(7)
        bar.set_postfix_str("2 damaged")
        assert re.fullmatch(r"reading: 7 rows \[\d\d:\d\d, .*, 2 damaged\]", bar.line())


def test_work_of_less_than_half_a_minute_prints_nothing(tmp_path: Path) -> None:
    with open(tmp_path / "log", "w") as log:
        assert list(Progress(range(3), file=log)) == [0, 1, 2]
    assert (tmp_path / "log").read_text() == ""


def test_on_a_terminal_it_is_a_bar() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    list(Progress(range(3), desc="reading", file=terminal))
    assert "reading: 100%|" in terminal.getvalue()
