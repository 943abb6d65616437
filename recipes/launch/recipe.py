"""The recipes: one record each, with everything in which recipes differ.

To add a recipe: its record and its entry in RECIPES here, its settings in convrec/settings, conf/<name>.yaml, its
curves in convrec/report/panels.py, its settings in convrec/report/run_summary.py (SETTINGS), its name in COMMANDS
(recipes/cli.py), and a script that starts it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from convrec.base.fields import Row, rows_by_key
from convrec.settings.choices import ALGORITHMS
from convrec.settings.judges import JudgeConfig, PairwiseJudgeConfig, PointwiseJudgeConfig
from convrec.settings.rank_grpo import RankGRPOConfig
from convrec.settings.sft import SFTConfig
from convrec.settings.training import TrainingConfig

if TYPE_CHECKING:  # it imports OmegaConf, which would slow down `--help`
    from convrec.settings.run import Run


@dataclass(frozen=True)
class Recipe:
    """A kind of training run.

    Attributes:
        name: conf/<name>.yaml has the differences from verl's config.
        title: name of the method in messages; {algorithm} stands for the algorithm's title.
        command: `convrec <command>` starts a run.
        script: the script that starts a run from a checkout.
        settings: class of its settings.
        answers: answers of the trained model, which decide how it is evaluated.
        check: raises UserError for settings or data that cannot train; returns warnings.
        train: trains, in this process or on Ray.
        shown: metric -> short name next to the progress bar.
        host_group: Hydra group of conf/ with the settings of hosts with and without GPUs.
        is_sft: whether it is supervised, without rollouts.
    """

    name: str
    title: str
    command: str
    script: str
    settings: type[TrainingConfig]
    answers: Literal["lists", "verdicts"]
    check: Callable[[Run[Any]], list[str]]
    train: Callable[[Run[Any]], None]
    shown: Mapping[str, str]
    host_group: str = "host"
    is_sft: bool = False

    @property
    def rows(self) -> dict[str, Row]:
        """The settings of the recipe by their keys in the config."""
        return rows_by_key(self.settings)

    def describe_method(self, run: Run[Any]) -> str:
        """Return the name of a run's method in messages."""
        return self.title.format(algorithm=ALGORITHMS.get(getattr(run.settings, "algorithm", ""), ""))


# Checks and trainers are imported late, because that takes seconds: `--help` and errors in variables come first.
def _check_sft(run: Run[SFTConfig]) -> list[str]:
    from recipes.preflight.checks import check_sft

    return check_sft(run)


def _check_rank_grpo(run: Run[RankGRPOConfig]) -> list[str]:
    from recipes.preflight.checks import check_rank_grpo

    return check_rank_grpo(run)


def _check_judge(run: Run[JudgeConfig]) -> list[str]:
    from recipes.preflight.judge_checks import check_judge

    return check_judge(run)


def _train_sft(run: Run[SFTConfig]) -> None:
    from recipes.launch import sft_training

    sft_training.train(run)


def _train_on_ray(run: Run[Any]) -> None:
    from recipes.launch import ray_training

    ray_training.train(run)


SFT = Recipe(
    name="sft",
    title="SFT",
    command="train sft",
    script="run_sft.sh",
    settings=SFTConfig,
    answers="lists",
    check=_check_sft,
    train=_train_sft,
    shown={"train/loss": "loss", "val/loss": "val loss"},
    host_group="sft_host",
    is_sft=True,
)
RANK_GRPO = Recipe(
    name="rank_grpo",
    title="{algorithm}",
    command="train rank-grpo",
    script="run_rank_grpo.sh",
    settings=RankGRPOConfig,
    answers="lists",
    check=_check_rank_grpo,
    train=_train_on_ray,
    shown={
        "val/ndcg": "val NDCG",
        "rank_grpo/return@1": "return@1",
        "rank_grpo/dcg": "DCG",
        "actor/kl_loss": "KL",  # verl's, for GRPO and GSPO; Rank-GRPO's is multiplied by the coefficient, hence `kl`
        "actor/kl": "KL",
    },
)
POINTWISE_JUDGE = Recipe(
    name="judge_pointwise",
    title="GRPO of a pointwise judge",
    command="train judge pointwise",
    script="recipes/judge/run_pointwise.sh",
    settings=PointwiseJudgeConfig,
    answers="verdicts",
    check=_check_judge,
    train=_train_on_ray,
    shown={"reward/score": "reward", "reward/exact_match": "exact", "reward/no_verdict": "no verdict"},
)
PAIRWISE_JUDGE = Recipe(
    name="judge_pairwise",
    title="GRPO of a pairwise judge",
    command="train judge pairwise",
    script="recipes/judge/run_pairwise.sh",
    settings=PairwiseJudgeConfig,
    answers="verdicts",
    check=_check_judge,
    train=_train_on_ray,
    shown={"reward/score": "accuracy", "reward/no_verdict": "no verdict", "reward/prefers_a": "A"},
)
RECIPES = {recipe.name: recipe for recipe in (SFT, RANK_GRPO, POINTWISE_JUDGE, PAIRWISE_JUDGE)}
