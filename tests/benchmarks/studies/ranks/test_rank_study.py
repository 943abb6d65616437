"""The page's tables on the rank study are what the kept results give."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))
from benchmarks.studies.ranks.kept import restore
from benchmarks.studies.ranks.runs import Study
from benchmarks.studies.ranks.tables import TABLES

ROOT = Path(__file__).resolve().parents[4]
RANKS = ROOT / "benchmarks" / "studies" / "ranks"
PAGE = ROOT / "docs" / "explanation" / "rank-study.md"


def test_the_pages_tables_are_what_the_kept_results_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # OUT of study.yaml is relative
    for rate in ("LR_GRPO", "LR_GSPO", "LR_EXP_INF", "LR_LOG_DECAY"):
        monkeypatch.setenv(rate, "3e-4")
    restore(RANKS / "results" / "sample", Path("outputs/rank_study"))
    study = Study(RANKS / "study.yaml")
    computed = [line for table in TABLES for line in table(study)]
    on_page = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert len(on_page) > 20
    assert [line for line in on_page if line not in computed] == []
