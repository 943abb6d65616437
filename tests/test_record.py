"""tests/record.py: what `pytest --record FILE` keeps."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = """
import pytest

@pytest.fixture
def broken_end():
    yield
    raise OSError

def test_passes(): pass
def test_fails(): assert False
def test_is_skipped(): pytest.skip("here")
def test_ends_badly(broken_end): pass
"""


def record_run(folder: Path) -> dict:
    """Run the tests of a folder with the plugin, and return what it keeps."""
    result = folder / "results" / "quick.json"
    (folder / "conftest.py").write_text(f"""
from pathlib import Path
from record import ResultRecorder
def pytest_configure(config): config.pluginmanager.register(ResultRecorder(Path({str(result)!r})))
""")
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(folder), str(folder)]
    path = [str(ROOT), str(ROOT / "tests")]
    subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        check=False,
        timeout=120,
    )
    return json.loads(result.read_text())


def test_results_are_counted_by_file_and_added(tmp_path: Path) -> None:
    first = tmp_path / "test_first.py"
    first.write_text(TESTS)
    kept = record_run(tmp_path)
    assert {key: kept["test_first.py"][key] for key in ("passed", "failed", "skipped")} == {
        "passed": 1,
        "failed": 2,
        "skipped": 1,
    }
    assert kept["test_first.py"]["cores"] == len(os.sched_getaffinity(0))
    first.unlink()
    (tmp_path / "test_second.py").write_text("def test_passes(): pass")
    added = record_run(tmp_path)
    assert added["test_first.py"] == kept["test_first.py"]
    assert added["test_second.py"]["passed"] == 1
