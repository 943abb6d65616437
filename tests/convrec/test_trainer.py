"""What the trainer computes itself; the rest is wiring, which tests/e2e runs."""

from typing import Any

import pytest

from convrec.trainer import RankGRPOMixin


class Recorded:
    """In verl's place: says what its metrics were given."""

    def _val_metrics_update(self, sources: list, uids: list, scalars: dict[str, list], *_: Any) -> dict[str, Any]:
        return {"sources": sources, "uids": uids, "scalars": scalars}


class Trainer(RankGRPOMixin, Recorded):
    def __init__(self) -> None: ...


def test_an_answer_scored_for_several_rows_counts_as_often_in_validation() -> None:
    infos = {"ndcg": [0.5, 0.2], "num_rows": [3, 1], "rank_returns": [[1.0], [0.0]]}
    metrics = Trainer()._val_metrics_update(["convrec"] * 2, ["a", "b"], infos)
    assert metrics["val/ndcg"] == pytest.approx((3 * 0.5 + 0.2) / 4)
    assert metrics["uids"] == ["a/0", "a/1", "a/2", "b/0"]
    assert metrics["scalars"] == {"ndcg": [0.5, 0.5, 0.5, 0.2]}  # lists and the count itself stay out
    assert len(metrics["sources"]) == 4
