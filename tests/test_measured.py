"""notes/measured/: the status page is made of it, and the figures of other pages are its figures."""

import itertools
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


def load_script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Load a module of scripts/, which is no package, by its path without `.py`."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    path = ROOT / "scripts" / f"{name}.py"
    spec = spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def status(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that makes the status page."""
    return load_script("reference_pages/status", monkeypatch)


@pytest.fixture
def measured_folder(status: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder that the status page is made of instead of notes/measured/."""
    monkeypatch.setattr(status.measured, "MEASURED", tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "bench").mkdir()
    return tmp_path


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
    demo = read_kept("demo.json")
    text = (ROOT / "docs" / "tutorials" / "demo.md").read_text(encoding="utf-8")
    for metric in ("recall@5", "recall@20", "ndcg@5", "ndcg@20"):
        values = [one[metric] for one in demo["models"].values()]
        row = next(line for line in text.splitlines() if line.lower().startswith(metric))
        assert row.split()[1:] == [part for value in values for part in (f"{value['mean']:.4f}", f"±{value['se']:.4f}")]


def read_rows(title: str) -> dict[str, list[str]]:
    """Return the rows of the first table after a sentence of results.md: name -> cells."""
    text = (ROOT / "docs" / "explanation" / "results.md").read_text(encoding="utf-8")
    lines = text.partition(title)[2].lstrip().splitlines()
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines)
    cells = [[cell.strip().strip("`") for cell in row.split("|")[1:-1]] for row in rows]
    return {name: values for name, *values in cells if name and not name.startswith("---")}


def format_mean(figures: dict[str, float], name: str, sign: str = "") -> str:
    return f"{figures[name]:{sign}.4f} ±{figures[f'{name} se']:.4f}" if name in figures else ""


@pytest.mark.skipif(not (MEASURED / "matrix.json").exists(), reason="the example matrix has not been kept yet")
def test_tables_of_the_example_matrix_have_the_kept_figures() -> None:
    runs = read_kept("matrix.json")["runs"]
    assert read_rows("processor and no GPU.") == {
        name: [format_mean(one, "recall@20"), format_mean(one, "ndcg@20"), format_mean(one, "ndcg@20 gain", "+")]
        for name, one in runs.items()
    }
    assert read_rows("under the catalog's constraint:") == {
        name: [format_mean(one, "ndcg@20 constrained"), format_mean(one, "ndcg@20 constrained gain", "+")]
        for name, one in runs.items()
        if "ndcg@20 constrained" in one
    }


def record(passed: int, failed: int, minutes: float, day: str, commit: str) -> dict[str, Any]:
    counts = {"passed": passed, "failed": failed, "skipped": 1}
    return {**counts, "minutes": minutes, "date": f"2026-11-{day}T10:00+00:00", "commit": commit}


def test_results_of_test_files_are_summed_up(status: ModuleType) -> None:
    found = status.sum_up([record(3, 0, 1.5, "12", "aaaaaaaaaaaa"), record(2, 1, 2.0, "09", "bbbbbbbbbbbb+changes")])
    assert (found.passed, found.failed, found.skipped, found.minutes) == (5, 1, 2, 3.5)
    assert (str(found.first), str(found.last)) == ("2026-11-09", "2026-11-12")
    assert found.commits == ("aaaaaaaa", "bbbbbbbb+changes")


def test_an_area_is_said_to_run_only_if_its_tests_passed(status: ModuleType, measured_folder: Path) -> None:
    results = {"a.py": record(2, 0, 1, "12", "a" * 12), "b.py": record(2, 1, 1, "12", "a" * 12)}
    (measured_folder / "tests" / "long.json").write_text(json.dumps(results))
    assert status.describe_cpu_runs(["a.py"]) == "yes"
    assert status.describe_cpu_runs(["a.py", "b.py"]) == "failed: `b.py`"
    assert status.describe_cpu_runs(["a.py", "c.py"]) == "not recorded: `c.py`"


def test_every_named_test_file_is_there(status: ModuleType) -> None:
    areas = status.read_records()["areas"]
    assert [file for area in areas for file in area.get("tests", ()) if not (ROOT / file).is_file()] == []


def read_speed_row(status: ModuleType, start: str) -> list[str]:
    """Return the cells of the first row of the tables on speed that starts so."""
    line = next(line for line in status.speed_sections().splitlines() if line.startswith(f"| {start}"))
    return [cell.strip() for cell in line.split("|")[1:-1]]


def keep_report(measured_folder: Path, name: str, report: dict[str, Any]) -> None:
    machine = {"processor": f"of {name}", "flags": [], "cores": 2, "date": "2026-11-30T10:00", "commit": "a" * 12}
    (measured_folder / "bench" / f"{name}.json").write_text(json.dumps({"machine": machine, **report}))


def test_a_figure_without_a_report_is_not_made_up(status: ModuleType, measured_folder: Path) -> None:
    assert read_speed_row(status, "policy loss")[2] == "not recorded yet"
    assert "adding an item" not in status.speed_sections()


def test_a_peer_that_did_not_run_is_not_recorded(status: ModuleType, measured_folder: Path) -> None:
    ratio = {"median": 0.2, "least": 0.2, "most": 0.2}
    keep_report(measured_folder, "training", {"to": {"stock": {"step": ratio, "first_rollout": ratio}}})
    assert read_speed_row(status, "a step of Rank-GRPO")[2] == "0.20"
    assert read_speed_row(status, "from the command")[2] == "not recorded yet"


def test_a_report_without_its_figure_is_an_error(status: ModuleType, measured_folder: Path) -> None:
    keep_report(measured_folder, "loss", {"times vanilla": 0.3})
    with pytest.raises(KeyError, match="times gspo"):
        status.speed_sections()


def test_ratios_are_our_time_over_the_others(status: ModuleType, measured_folder: Path) -> None:
    keep_report(measured_folder, "loss", {"times vanilla": 0.274, "times gspo": 0.5})
    # twice as many tokens per second take half the time
    keep_report(measured_folder, "validation", {"training / plain": 2.0, "evaluation / plain": 0.8})
    assert read_speed_row(status, "policy loss")[2] == "0.27"
    assert read_speed_row(status, "validation during")[2] == "0.50"
    assert read_speed_row(status, "`convrec evaluate`")[2] == "1.25"
    assert read_speed_row(status, "`loss`")[1] == "2 cores (of loss), 2026-11-30, `aaaaaaaa`"


def test_growth_is_shown_from_the_smallest_size_to_the_largest(status: ModuleType, measured_folder: Path) -> None:
    of_other = {name: {"values": [1, 1, 1], "slope": 0} for name in ("start_s", "request_ms", "new_condition_s")}
    figures = {**of_other, "add_item_s": {"values": [0.1, 1.2, 13.0], "slope": 1.06}}
    growth = {"serving": {"unit": "titles", "sizes": [1000, 10_000, 100_000], "figures": figures}}
    keep_report(measured_folder, "growth", {"growth": growth})
    assert read_speed_row(status, "adding an item")[1:] == ["1,000 to 100,000 titles", "0.1 to 13 s", "1.06"]


def test_what_the_peers_have_learned_is_shown_with_its_errors(status: ModuleType, measured_folder: Path) -> None:
    run = {
        "step_seconds": {"step": 4.0, "gen": 1.5},
        "step_quartiles": [3.0, 4.0, 5.0],
        "seconds_to_first_rollout": 30.0,
        "peak_MiB_in_all": 4500,
    }
    evaluation = {
        "start": {"ndcg@20": {"mean": 0.4, "se": 0.01}},
        "ours": {"ndcg@20": {"mean": 0.42, "se": 0.01}, "gain": {"mean": 0.02, "se": 0.005}},
    }
    sizes = {"batch": 16, "rollouts": 8, "response": 100, "steps": 20, "dtype": "fp32"}
    keep_report(measured_folder, "peers", {**sizes, "runs": {"ours": [run]}, "to": {}, "evaluation": evaluation})
    assert read_speed_row(status, "`peers` | 16 x 8, 100 tokens, fp32")[3:] == [
        "4.0 (3.0 to 5.0)",
        "1.5",
        "30",
        "4,500",
    ]
    assert read_speed_row(status, "before")[1:] == ["0.4000 ±0.0100", ""]
    assert read_speed_row(status, "this program | 0.4")[1:] == ["0.4200 ±0.0100", "+0.0200 ±0.0050"]


def test_kept_reports_name_no_folder_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    script = load_script("keep_results", monkeypatch)
    report = {"services": [{"command": "/home/me/venv/bin/python -m recipes serve --model /data/run"}], "mib": 7}
    assert script._shorten_paths(report) == {
        "services": [{"command": "python -m recipes serve --model run"}],
        "mib": 7,
    }
