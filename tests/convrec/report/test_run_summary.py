"""What was trained on what, when and with which versions."""

import json
import os
from pathlib import Path

from convrec.report.run_summary import facts_of

CONFIG = {
    "model": {"path": "/models/start/global_step_3/actor/huggingface"},
    "data": {"train_files": ["/data/a.parquet", "/data/b.parquet"]},
    "trainer": {"total_training_steps": 20},
}


def test_a_run_says_what_it_was(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    metrics = tmp_path / "metrics" / "0001.jsonl"
    metrics.write_text("")
    os.utime(metrics, (1_800_000_000, 1_800_000_000))
    facts = facts_of(tmp_path, CONFIG, 15)
    assert facts == {
        "started from": "start/global_step_3",
        "trained on": "a.parquet, b.parquet",
        "steps": "15 of 20",
        "last logged": "2027-01-15 08:00 UTC",
        "folder": tmp_path.name,
    }
    starts = [
        {"time": f"2027-01-15T0{hour}:30:00+00:00", "commit": commit, "versions": {"verl": "0.9.1", "torch": "2"}}
        for hour, commit in ((6, "abc"), (7, "def-dirty"))
    ]
    (tmp_path / "starts.jsonl").write_text("".join(json.dumps(start) + "\n" for start in starts))
    facts = facts_of(tmp_path, CONFIG | {"model": {"path": "org/name"}}, 15)
    assert facts["started"] == "2027-01-15 06:30 UTC, 2027-01-15 07:30 UTC"
    assert (facts["versions"], facts["commit"]) == ("verl 0.9.1, torch 2", "def-dirty")  # of the last start
    assert facts["started from"] == "org/name"
