"""The page's tables on the rank study are what the kept results give."""

from pathlib import Path

import pytest

from benchmarks.studies.ranks.kept import restore
from benchmarks.studies.ranks.runs import Study
from benchmarks.studies.ranks.tables import TABLES

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[4]
RANKS = ROOT / "benchmarks" / "studies" / "ranks"
PAGE = ROOT / "docs" / "explanation" / "rank-study.md"
REDIAL, MU_2 = "\n## The same on ReDial\n", "\n### ReDial with two updates per batch\n"


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "results", "out", "rate"),
    [
        ("study.yaml", "sample", "rank_study", "3e-4"),
        ("redial.yaml", "redial", "rank_study_redial", "1e-4"),
        ("redial.yaml", "redial_mu2", "rank_study_redial", "1e-4"),
    ],
)
def test_the_pages_tables_are_what_the_kept_results_give(
    file: str, results: str, out: str, rate: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # `out` of the file is relative
    monkeypatch.setenv("REDIAL", "not read")
    for name in ("LR_GRPO", "LR_GSPO", "LR_EXP_INF", "LR_LOG_DECAY"):
        monkeypatch.setenv(name, rate)
    restore(RANKS / "results" / results, Path("outputs") / out)
    study = Study(RANKS / file)
    computed = [line for table in TABLES for line in table(study)]
    before, _, of_redial = PAGE.read_text(encoding="utf-8").partition(REDIAL)
    of_redial, _, behind = of_redial.partition("\n## ")
    of_redial, _, of_mu_2 = of_redial.partition(MU_2)
    of_page = {"sample": before + behind, "redial": of_redial, "redial_mu2": of_mu_2}[results]
    on_page = [line for line in of_page.splitlines() if line.startswith("|")]
    assert len(on_page) > 10
    assert [line for line in on_page if line not in computed] == []
