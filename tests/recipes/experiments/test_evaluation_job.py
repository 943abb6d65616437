"""What an evaluation's job does with its argument; tests/e2e/test_matrix.py evaluates a model with it."""

import json
from pathlib import Path

import pytest

from recipes.experiments import evaluation_job


def test_bad_input_is_a_line_and_status_2(tmp_path: Path, sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"data": str(sample / "test.parquet"), "catalog": str(sample / "catalog.parquet")}
    argument = json.dumps({"model": str(tmp_path / "none"), "out": str(tmp_path / "out"), "against": None, **files})
    assert evaluation_job.main([argument]) == 2
    assert f"error: --model {tmp_path / 'none'}" in capsys.readouterr().err


def test_without_a_model_the_baselines_are_evaluated(tmp_path: Path, sample: Path) -> None:
    names = {"data": "test", "catalog": "catalog", "train": "train"}
    files = {name: str(sample / f"{file}.parquet") for name, file in names.items()}
    assert evaluation_job.main([json.dumps({"out": str(tmp_path / "out"), "ks": [5], **files})]) == 0
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["settings"]["ks"] == [5]
    assert set(metrics["results"]["paper"]) == {"popularity"}
