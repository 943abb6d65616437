"""What a run notes at each start."""

from datetime import UTC, datetime
from pathlib import Path

from convrec.runs.starts import STARTS, note_start, read_starts
from convrec.shipped import commit


def test_every_start_is_a_line_with_time_and_versions(tmp_path: Path) -> None:
    assert read_starts(tmp_path) == []
    note_start(tmp_path)
    note_start(tmp_path)
    first, second = read_starts(tmp_path)
    seconds = (datetime.now(UTC) - datetime.fromisoformat(first["time"])).total_seconds()
    assert 0 <= seconds < 60
    assert first["time"] <= second["time"]
    assert first["versions"]["verl"] == "0.9.1"
    assert first["commit"] == (commit() or None)


def test_a_line_that_a_full_disk_cut_off_hides_no_other(tmp_path: Path) -> None:
    note_start(tmp_path)
    with (tmp_path / STARTS).open("a") as file:
        file.write('{"time": "2026')
    note_start(tmp_path)
    assert len(read_starts(tmp_path)) == 2
    assert len((tmp_path / STARTS).read_text().splitlines()) == 3
