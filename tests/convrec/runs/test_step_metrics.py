"""What a checkpoint holds of its step's metrics, and what of it no start has logged."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from convrec.runs import step_metrics
from convrec.runs.step_metrics import lacks_validation, unlogged

METRICS = {
    "actor/kl": 0.1,
    "actor/grad_norm": np.float32(0.1),  # no double
    "training/global_step": 4,
    "timing_s/gen": 2.0,
    "perf/throughput": 3.0,
    "critic/nan": float("nan"),
    "counts": {0.5: 3},
}
KNOWN = {"actor/kl": 0.1, "actor/grad_norm": 0.1, "training/global_step": 4}


def log(run: Path, step: int, data: dict[str, Any]) -> None:
    """As verl's file logger does."""
    (run / "metrics").mkdir(exist_ok=True)
    with (run / "metrics" / "0001.jsonl").open("ab") as file:
        file.write(orjson.dumps({"step": step, "data": data}, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")


def test_what_is_known_is_unlogged_until_verl_or_a_later_start_logs_it(tmp_path: Path) -> None:
    assert unlogged(tmp_path, 4) == {}
    step_metrics.write(tmp_path / "global_step_4", METRICS)
    log(tmp_path, 3, METRICS | {"counts": 0})
    assert unlogged(tmp_path, 4) == KNOWN
    log(tmp_path, 4, {"val/ndcg": 0.5, "actor/kl": 0.2})  # trained by an earlier start, with another result
    assert unlogged(tmp_path, 4) == KNOWN
    log(tmp_path, 4, METRICS | {"counts": 0})
    assert unlogged(tmp_path, 4) == {}


def test_a_damaged_file_is_none(tmp_path: Path) -> None:
    step_metrics.write(tmp_path / "global_step_4", METRICS)
    (tmp_path / "global_step_4" / "metrics.json").write_text(json.dumps(KNOWN)[:9])
    assert unlogged(tmp_path, 4) == {}


@pytest.mark.parametrize(
    ("test_freq", "last_step", "rows", "wanted"),
    [
        (2, 9, [], True),
        (3, 9, [], False),
        (3, 4, [], True),  # the last step
        (3, None, [], False),
        (-1, 4, [], False),
        (2, 9, [{"val/ndcg": 0.5}], True),  # of an earlier start that trained the step
        (2, 9, [KNOWN], True),  # logged by a start that ended before it validated
        (2, 9, [KNOWN, {"val/ndcg": 0.5}], False),
        (2, 9, [METRICS | {"counts": 0, "timing_s/step": 9.0}], False),  # TEST_FREQ was another then
    ],
)
def test_a_validation_that_a_saved_step_lacks(
    tmp_path: Path, test_freq: int, last_step: int | None, rows: list[dict[str, Any]], wanted: bool
) -> None:
    assert not lacks_validation(tmp_path, 4, test_freq, last_step)  # not known of earlier versions' checkpoints
    step_metrics.write(tmp_path / "global_step_4", METRICS)
    for row in rows:
        log(tmp_path, 4, row)
    assert lacks_validation(tmp_path, 4, test_freq, last_step) == wanted
