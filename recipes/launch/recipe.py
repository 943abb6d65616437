"""What a recipe is: one record each, in the table RECIPES, from which everything else reads what differs.

To add one: an entry in RECIPES, conf/<name>.yaml, its curves in convrec/report/curves.py (PANELS) and its settings in
convrec/report/run_summary.py (SETTINGS); its name in COMMANDS (recipes/cli.py), and a script that starts it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import Literal

from omegaconf import DictConfig

from recipes.launch import ray_training, schema, sft_training


@dataclass(frozen=True)
class Recipe:
    """A kind of training. Its settings are conf/<name>.yaml."""

    name: str
    title: str  # what a run calls itself; {algorithm} stands for the algorithm's title
    command: str  # convrec <command> starts it
    script: str  # the same, from a shell without convrec
    settings: Mapping[str, schema.Setting]  # key of the config -> what it may be, of recipes/launch/settings.yaml
    answers: Literal["lists", "verdicts"]  # of the trained model, which decides how it is evaluated
    check: Callable[[DictConfig], list[str]]  # raises UserError for what cannot train, returns warnings
    train: Callable[[DictConfig], None]
    shown: Mapping[str, str]  # metric -> short name beside the progress bar
    host_group: str = "host"  # the Hydra group of conf/ with the settings of hosts with and without GPUs
    is_sft: bool = False

    def title_of(self, config: DictConfig) -> str:
        return self.title.format(algorithm=schema.ALGORITHMS.get(config.run.algorithm, ""))


def _check(name: str) -> Callable[[DictConfig], list[str]]:
    """A function of recipes.preflight.checks, whose imports take seconds: a wrong variable is refused before."""
    return lambda config: resolve_name(f"recipes.preflight.checks:{name}")(config)


SFT = Recipe(
    name="sft",
    title="SFT",
    command="train sft",
    script="run_sft.sh",
    settings=schema.SFT,
    answers="lists",
    check=_check("check_sft"),
    train=sft_training.train,
    shown={"train/loss": "loss", "val/loss": "val loss"},
    host_group="sft_host",
    is_sft=True,
)
RANK_GRPO = Recipe(
    name="rank_grpo",
    title="{algorithm}",
    command="train rank-grpo",
    script="run_rank_grpo.sh",
    settings=schema.LISTS,
    answers="lists",
    check=_check("check_rank_grpo"),
    train=ray_training.train,
    shown={
        "val/ndcg": "val NDCG",
        "rank_grpo/return@1": "return@1",
        "rank_grpo/dcg": "DCG",
        "actor/kl_loss": "KL",  # of GRPO and GSPO, by verl; ours, which comes with `actor/kl`, is times the coefficient
        "actor/kl": "KL",
    },
)
POINTWISE_JUDGE = replace(
    RANK_GRPO,
    name="judge_pointwise",
    title="GRPO of a pointwise judge",
    command="train judge pointwise",
    script="recipes/judge/run_pointwise.sh",
    settings=schema.JUDGES,
    answers="verdicts",
    check=_check("check_judge"),
    shown={"reward/score": "reward", "reward/exact_match": "exact", "reward/no_verdict": "no verdict"},
)
PAIRWISE_JUDGE = replace(
    POINTWISE_JUDGE,
    name="judge_pairwise",
    title="GRPO of a pairwise judge",
    command="train judge pairwise",
    script="recipes/judge/run_pairwise.sh",
    settings=schema.PAIRWISE,
    shown={"reward/score": "accuracy", "reward/no_verdict": "no verdict", "reward/prefers_a": "A"},
)

RECIPES = {recipe.name: recipe for recipe in (SFT, RANK_GRPO, POINTWISE_JUDGE, PAIRWISE_JUDGE)}
