"""The summary of a run: how far it is, when and with which versions it was started."""

import json
from pathlib import Path

from convrec.report.run_summary import collect_facts


def test_facts_have_the_steps_the_times_and_the_last_versions(tmp_path: Path) -> None:
    config = {"trainer": {"total_training_steps": 20}}
    assert collect_facts(tmp_path, config, 15) == {"steps": "15 of 20"}
    starts = [
        {"time": f"2027-01-15T0{hour}:30:00+00:00", "commit": commit, "versions": {"verl": "0.9.1", "torch": "2"}}
        for hour, commit in ((6, "abc"), (7, "def-dirty"))
    ]
    (tmp_path / "starts.jsonl").write_text("".join(json.dumps(start) + "\n" for start in starts))
    facts = collect_facts(tmp_path, config, 15)
    assert facts["started"] == "2027-01-15 06:30 UTC, 2027-01-15 07:30 UTC"
    assert (facts["versions"], facts["commit"]) == ("verl 0.9.1, torch 2", "def-dirty")  # those of the last start
