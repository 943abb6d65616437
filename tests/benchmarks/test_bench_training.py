"""How bench_training.py compares ours with the other runs."""

from typing import Any

from benchmarks.bench_training import compare


def figures(step: float, first_rollout: float) -> dict[str, Any]:
    return {"step_seconds": {"step": step}, "seconds_to_first_rollout": first_rollout}


def test_ours_is_compared_with_each_run_of_the_same_round() -> None:
    runs = {
        "ours": [figures(2.0, 30.0), figures(6.0, 30.0)],
        "trl": [figures(4.0, 15.0), figures(6.0, 10.0)],
    }
    assert compare(runs) == {
        "trl": {
            "step": {"median": 0.75, "least": 0.5, "most": 1.0},
            "first_rollout": {"median": 2.5, "least": 2.0, "most": 3.0},
        }
    }


def test_without_ours_nothing_is_compared() -> None:
    assert compare({"trl": [figures(1.0, 1.0)]}) == {}
