"""The time of a step that asks, against its tokens."""

import json
from pathlib import Path

import pytest

from benchmarks.studies.asking_steps import main
from convrec.runs.folder import METRICS


def test_steps_that_warm_up_validate_or_save_do_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, seconds, tokens in (("never", 2.0, 100), ("ask", 4.5, 150)):
        (tmp_path / name / METRICS).mkdir(parents=True)
        rows = [
            {"timing_s/step": seconds if step in (4, 6) else 99.0, "perf/total_num_tokens": tokens}
            | ({"timing_s/testing": 1.0} if step == 5 else {})
            for step in range(1, 7)
        ]
        lines = [json.dumps({"step": step, "data": row}) + "\n" for step, row in enumerate(rows, 1)]
        (tmp_path / name / METRICS / "1.jsonl").write_text("".join(lines))
    main([str(tmp_path / "never"), str(tmp_path / "ask")])
    # 4.5 / 2 = 2.25 times the seconds for 1.5 times the tokens
    assert "seconds over tokens: 1.500" in capsys.readouterr().out
