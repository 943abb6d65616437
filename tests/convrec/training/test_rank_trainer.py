"""What the trainer computes itself; the rest is wiring, which tests/e2e runs."""

from collections import Counter
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from convrec.checkpoints import saving
from convrec.training.rank_trainer import RankGRPOMixin
from convrec.training.trainer_base import ConvRecMixin


class Verls:
    _val_metrics_update = PPOTrainerSync._val_metrics_update


class Trainer(RankGRPOMixin, Verls):
    def __init__(self) -> None: ...


def test_an_answer_scored_for_several_rows_counts_as_often_in_validation() -> None:
    infos = {"reward": [0.5, 0.2], "num_rows": [3, 1], "rank_returns": [[1.0], [0.0]]}
    metrics = Trainer()._val_metrics_update(["reddit"] * 2, ["a", "b"], infos, [2, 2])
    mean = (3 * 0.5 + 0.2) / 4
    assert metrics["val/reward"] == pytest.approx(mean)
    assert metrics["val-core/reddit/reward/mean@1"] == pytest.approx(mean)
    assert metrics["val/reward_se"] == pytest.approx(0.1125)  # two answers, not four: see test_statistics
    assert "val/reward_se" not in Trainer()._val_metrics_update(["reddit"], ["a"], {"reward": [0.5]}, [2])
    assert not any("rows" in name or "returns" in name for name in metrics)  # lists and the count itself stay out


@pytest.mark.parametrize("uids", ["abcdef", "aabbcc"])  # one answer a prompt, and two
@pytest.mark.parametrize("name", ["hits", "acc"])
def test_validation_metrics_are_verls(uids: str, name: str) -> None:
    sources = ["reddit", "redial", "redial", "reddit", "reddit", "redial"]
    sources = sources if len(set(uids)) == 6 else sorted(sources)
    infos = {"reward": [0.1, 0.7, 0.2, 0.0, 0.45, 1 / 3], name: [1, 0, 1, 0, 0, 1]}
    expected_counts = Counter(zip(sources, uids, strict=True)) | {("reddit", "a"): 2}  # one more was asked for
    arguments = (sources, list(uids), infos, [2] * 6, expected_counts)
    metrics = Trainer()._val_metrics_update(*arguments)
    assert {f"val/{key}": pytest.approx(sum(values) / 6) for key, values in infos.items()}.items() <= metrics.items()
    verls = PPOTrainerSync._val_metrics_update(Trainer(), *arguments)
    shown = {key: value for key, value in metrics.items() if not key.startswith("val/")}
    # verl's bootstraps of several answers are drawn anew each time
    drawn = {key for key in verls if "best@" in key or "worst@" in key}
    assert shown.keys() == verls.keys()
    assert {key: shown[key] for key in verls.keys() - drawn} == pytest.approx(
        {key: verls[key] for key in verls.keys() - drawn}
    )


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

    def _log_step(self) -> None:
        self.done.append("log")


def test_who_is_asked_to_stop_saves_before_the_rollout_takes_its_memory_back_and_checks_what_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Stopping(tmp_path)
    monkeypatch.setattr(saving, "check_shards", lambda folder: trainer.done.append(folder.parent.name))
    (tmp_path / saving.STOP).touch()
    trainer.on_step_end()
    assert trainer.done == ["log", "save", "global_step_3", "update weights"]
    assert trainer.is_stopping
    assert not (tmp_path / saving.STOP).exists()
