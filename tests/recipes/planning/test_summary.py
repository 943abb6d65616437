"""The lines of a dry run: hours on GPUs, and none for what a plan does not model."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig, open_dict

from recipes.launch.recipe import RANK_GRPO, SFT
from recipes.planning.models import model_size
from recipes.planning.plan import make_plan
from recipes.planning.run import Data
from recipes.planning.summary import summary
from tests.recipes.planning.conftest import cluster

FILES = {"train": "train", "val": "validation"}


@pytest.fixture
def config_of(config_with: Callable[..., DictConfig], sample: Path, model: Path) -> Callable[[str], DictConfig]:
    """Of a recipe, on the sample: 40 rows of training, batches of 8."""

    def of(recipe: str) -> DictConfig:
        key = "model.path" if recipe == "sft" else "actor_rollout_ref.model.path"
        files = {f"data.{name}_files": str(sample / f"{file}.parquet") for name, file in FILES.items()}
        return config_with(recipe, {key: str(model), "data.train_batch_size": 8, **files})

    return of


@pytest.mark.parametrize("recipe", [RANK_GRPO, SFT], ids=lambda recipe: recipe.name)
def test_hours_are_the_plans(recipe, config_of: Callable[[str], DictConfig], model: Path) -> None:
    config = config_of(recipe.name)
    config.trainer.total_epochs = 3
    steps, checkpoints, time = summary(config, recipe.requirements)
    assert steps.startswith("steps: 15 of 8 rows out of 40; ")
    assert checkpoints.startswith("checkpoints: 1, 1 of them kept: 0.00 GiB each")
    plan = make_plan(config, model_size(str(model)), cluster(1), Data(40, 10), recipe.requirements)
    assert f"about {plan.hours.value:.1f} hours by a model of H100s, not a measurement" in time
    seconds = [float(text) for text in re.findall(r" ([\d.]+)(?:,|$)", time.split("seconds of a step: ")[1])]
    assert sum(seconds) == pytest.approx(plan.step.value, abs=0.05)


def test_no_hours_without_gpus_nor_for_verdicts(config_of: Callable[[str], DictConfig]) -> None:
    on_cpu, judge = config_of("rank_grpo"), config_of("rank_grpo")
    on_cpu.trainer.device = "cpu"
    with open_dict(judge):
        del judge.convrec.num_items
    for config in (on_cpu, judge):
        assert not any(line.startswith("time: ") for line in summary(config, RANK_GRPO.requirements))
