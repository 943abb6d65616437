"""What the trainer computes itself; the rest is wiring, which tests/e2e runs."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from convrec import saving
from convrec.trainer import RankGRPOMixin
from convrec.trainer_base import ConvRecMixin


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


class Saved:
    """In verl's place: notes what is done in a step's end."""

    done: list[str]
    run_folder: Path

    def _save_checkpoint(self) -> None:
        self.done.append("save")
        (self.run_folder / "global_step_3" / "actor").mkdir(parents=True)

    def on_step_end(self) -> None:
        self.done.append("update weights")


class Stopping(ConvRecMixin, Saved):
    def __init__(self, run_folder: Path) -> None:
        self.run_folder, self.keep, self.global_steps, self.saved_step = run_folder, None, 3, 0
        self.is_stopping, self.done = False, []
        self.config = OmegaConf.create({"actor_rollout_ref": {"actor": {"checkpoint": {"save_contents": ["model"]}}}})


def test_who_is_asked_to_stop_saves_before_the_rollout_takes_its_memory_back_and_checks_what_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Stopping(tmp_path)
    monkeypatch.setattr(saving, "check_shards", lambda folder: trainer.done.append(folder.parent.name))
    (tmp_path / saving.STOP).touch()
    trainer.on_step_end()
    assert trainer.done == ["save", "global_step_3", "update weights"]
    assert trainer.is_stopping
    assert not (tmp_path / saving.STOP).exists()
