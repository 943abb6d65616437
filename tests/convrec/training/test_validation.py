"""Validation metrics: verl's own, and means over rows with their errors."""

from collections import Counter
from functools import partial

import pytest
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from convrec.training.validation import ScoredAnswers, add_means

verls_metrics = partial(PPOTrainer._val_metrics_update, None)


def test_an_answer_scored_for_several_rows_counts_as_often() -> None:
    infos = {"reward": [0.5, 0.2], "num_rows": [3, 1], "rank_returns": [[1.0], [0.0]]}
    metrics = add_means(verls_metrics, ["reddit"] * 2, ["a", "b"], infos, [2, 2])
    mean = (3 * 0.5 + 0.2) / 4
    assert metrics["val/reward"] == pytest.approx(mean)
    assert metrics["val-core/reddit/reward/mean@1"] == pytest.approx(mean)
    assert metrics["val/reward_se"] == pytest.approx(0.1125)  # two answers, not four: see test_statistics
    assert not any("rows" in name or "returns" in name for name in metrics)  # lists and the count itself stay out


def test_a_single_prompt_has_no_error_of_the_mean() -> None:
    answers = ScoredAnswers(["reddit"], ["a"], {"reward": [0.5]})
    assert answers.compute_means() == {"val/reward": 0.5}


@pytest.mark.parametrize("uids", ["abcdef", "aabbcc"])  # one answer a prompt, and two
@pytest.mark.parametrize("name", ["hits", "acc"])
def test_validation_metrics_are_verls_and_means(uids: str, name: str) -> None:
    sources = ["reddit", "redial", "redial", "reddit", "reddit", "redial"]
    sources = sources if len(set(uids)) == 6 else sorted(sources)
    infos = {"reward": [0.1, 0.7, 0.2, 0.0, 0.45, 1 / 3], name: [1, 0, 1, 0, 0, 1]}
    counts = Counter(zip(sources, uids, strict=True)) | {("reddit", "a"): 2}  # one more was asked for
    metrics = add_means(verls_metrics, sources, list(uids), infos, [2] * 6, counts)
    means = {f"val/{key}": pytest.approx(sum(values) / 6) for key, values in infos.items()}
    assert means.items() <= metrics.items()
    verls = verls_metrics(sources, list(uids), infos, [2] * 6, counts)
    shown = {key: value for key, value in metrics.items() if not key.startswith("val/")}
    assert shown.keys() == verls.keys()
    # verl's bootstraps of several answers are drawn again each time
    fixed = {key for key in verls if "best@" not in key and "worst@" not in key}
    assert {key: shown[key] for key in fixed} == pytest.approx({key: verls[key] for key in fixed})
