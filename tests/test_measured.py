"""notes/measured/: the status page is made of it, and the figures of other pages are its figures."""

import json
import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
MEASURED = ROOT / "notes" / "measured"
# Columns of README's table that are not the demo's own names.
MODELS = {"Rank-GRPO fused with retrieval": "fused", "Rank-GRPO": "rank_grpo", "SFT": "sft"}
FILES = {"README.md": "demo.json", "docs/tutorials/pretrained.md": "pretrained.json"}


@pytest.fixture
def status(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that makes the status page."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    spec = spec_from_file_location("status", ROOT / "scripts" / "reference_pages" / "status.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "status", module)
    spec.loader.exec_module(module)
    return module


def read_kept(name: str) -> dict[str, Any]:
    return json.loads((MEASURED / name).read_text(encoding="utf-8"))


def read_table(text: str, metric: str) -> dict[str, str]:
    """Return the cells of a page's row for a metric, by the column's model."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    at = next(index for index, line in enumerate(lines) if line.startswith(f"| {metric} |"))
    head = max(index for index in range(at) if lines[index].startswith("| |"))
    cells = zip(lines[head].split("|")[2:-1], lines[at].split("|")[2:-1], strict=True)
    return {model.strip(): value.replace("*", "").strip() for model, value in cells}


@pytest.mark.parametrize("page", FILES)
def test_tables_of_the_demos_have_the_kept_figures(page: str) -> None:
    models = read_kept(FILES[page])["models"]
    text = (ROOT / page).read_text(encoding="utf-8")
    shown = re.findall(r"^\| ((?:NDCG|Recall)@\d+) \|", text, re.MULTILINE)
    assert len(shown) >= 2
    for metric in shown:
        for column, said in read_table(text, metric).items():
            value = models[MODELS.get(column, column)][metric.lower()]
            wanted = f"{value['mean']:.4f} ±{value['se']:.4f}" if value["mean"] else "0"
            assert said == wanted, (metric, column)


@pytest.mark.parametrize(("page", "metric"), [("README.md", "ndcg@20"), ("docs/tutorials/pretrained.md", "ndcg@10")])
def test_gains_of_the_demos_are_the_kept_ones(page: str, metric: str) -> None:
    gain = read_kept(FILES[page])["gain"][metric]
    text = (ROOT / page).read_text(encoding="utf-8").replace("± ", "±")
    assert f"{gain['mean']:+.4f} ±{gain['se']:.4f}" in text


def test_the_demos_page_shows_the_kept_table() -> None:
    kept = read_kept("demo.json")
    text = (ROOT / "docs" / "tutorials" / "demo.md").read_text(encoding="utf-8")
    for metric in ("recall@5", "recall@20", "ndcg@5", "ndcg@20"):
        values = [one[metric] for one in kept["models"].values()]
        row = next(line for line in text.splitlines() if line.lower().startswith(metric))
        assert row.split()[1:] == [part for value in values for part in (f"{value['mean']:.4f}", f"±{value['se']:.4f}")]


def record(passed: int, failed: int, minutes: float, day: str, commit: str) -> dict[str, Any]:
    counts = {"passed": passed, "failed": failed, "skipped": 1}
    return {**counts, "minutes": minutes, "date": f"2026-11-{day}T10:00+00:00", "commit": commit}


def test_results_of_test_files_are_summed_up(status: ModuleType) -> None:
    found = status.sum_up([record(3, 0, 1.5, "12", "aaaaaaaaaaaa"), record(2, 1, 2.0, "09", "bbbbbbbbbbbb+changes")])
    assert (found.passed, found.failed, found.skipped, found.minutes) == (5, 1, 2, 3.5)
    assert (str(found.first), str(found.last)) == ("2026-11-09", "2026-11-12")
    assert found.commits == ("aaaaaaaa", "bbbbbbbb+changes")


def test_an_area_is_said_to_run_only_if_its_tests_passed(
    status: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "MEASURED", tmp_path)
    (tmp_path / "tests").mkdir()
    kept = {"a.py": record(2, 0, 1, "12", "a" * 12), "b.py": record(2, 1, 1, "12", "a" * 12)}
    (tmp_path / "tests" / "long.json").write_text(json.dumps(kept))
    assert status.describe_cpu_runs(["a.py"]) == "yes"
    assert status.describe_cpu_runs(["a.py", "b.py"]) == "failed: `b.py`"
    assert status.describe_cpu_runs(["a.py", "c.py"]) == "not recorded: `c.py`"


def test_every_named_test_file_is_there(status: ModuleType) -> None:
    areas = status.read_records()["areas"]
    assert [file for area in areas for file in area.get("tests", ()) if not (ROOT / file).is_file()] == []
