"""What a recipe is: one record each, in the table RECIPES, from which everything else reads what differs.

To add one: an entry in RECIPES, conf/<name>.yaml, its curves in convrec/report/curves.py (PANELS) and its settings in
convrec/report/run_summary.py (SETTINGS); a module that calls `runner.run`, and a script that starts it.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import Any, Literal

from omegaconf import DictConfig

from convrec.runs.folder import RL_MODEL, SFT_MODEL
from recipes.launch.algorithms import ALGORITHMS
from recipes.launch.schema import JudgeSettings, PairwiseJudgeSettings, RankGRPOSettings, RunSettings
from recipes.planning.estimate import Requirements

# in the config once a constrained run has written it, beside the catalog (recipes.launch.ray_training)
TRIE_KEY = "actor_rollout_ref.rollout.engine_kwargs.vllm.additional_config.constrained_trie"
DATA_FILES = ("data.train_files", "data.val_files")


@dataclass(frozen=True)
class Recipe:
    """A kind of training. Its settings are conf/<name>.yaml."""

    name: str
    title: str  # what a run calls itself; {algorithm} stands for the algorithm's title
    command: tuple[str, ...]  # python -m <command> starts it
    script: str  # the same with RAY_ADDRESS=http://... understood
    host_group: str  # the Hydra group of conf/ with the settings of hosts with and without GPUs
    variables: tuple[Literal["sft", "rl", "lists"], ...]  # groups of environment variables that it reads
    settings: type  # its section `convrec`, a class of recipes/launch/schema.py
    answers: Literal["lists", "verdicts"]  # of the trained model, which decides how it is evaluated
    parts: str  # what takes a while to start
    check: Callable[[DictConfig], list[str]]  # raises UserError for what cannot train, returns warnings
    train: Callable[["Recipe", DictConfig], None]
    shown: Mapping[str, str]  # metric -> short name beside the progress bar
    requirements: Requirements
    uses_ray: Callable[[DictConfig], bool]  # trains on the nodes of RAY_ADDRESS or starts Ray, else in one process

    def title_of(self, config: DictConfig) -> str:
        """What a run with this config calls itself."""
        algorithm = config.run.algorithm
        return self.title.format(algorithm=ALGORITHMS[algorithm].title if algorithm else "")


def when_called(target: str, **keywords: Any) -> Callable[..., Any]:
    """The function "module:name" with these keywords; its module, which may take seconds, is imported by the call."""

    def call(*arguments: Any) -> Any:
        return resolve_name(target)(*arguments, **keywords)

    return call


def trains_on_ray(config: DictConfig) -> bool:
    """SFT: one device of this machine needs no Ray."""
    return bool(os.environ.get("RAY_ADDRESS")) or config.trainer.nnodes * config.trainer.n_gpus_per_node > 1


SFT = Recipe(
    name="sft",
    title="SFT",
    command=("recipes.sft",),
    script="run_sft.sh",
    host_group="sft_host",
    variables=("sft",),
    settings=RunSettings,
    answers="lists",
    parts="verl's SFT trainer",
    check=when_called("recipes.preflight.checks:check_sft"),
    train=when_called("recipes.launch.sft_training:train"),
    shown={"train/loss": "loss", "val/loss": "val loss"},
    requirements=Requirements(SFT_MODEL, DATA_FILES),
    uses_ray=trains_on_ray,
)
RANK_GRPO = Recipe(
    name="rank_grpo",
    title="{algorithm}",
    command=("recipes.rank_grpo",),
    script="run_rank_grpo.sh",
    host_group="host",
    variables=("rl", "lists"),
    settings=RankGRPOSettings,
    answers="lists",
    parts="Ray, the FSDP actor and the vLLM rollout server",
    check=when_called("recipes.preflight.checks:check_rank_grpo"),
    train=when_called("recipes.launch.ray_training:train"),
    shown={
        "val/ndcg": "val NDCG",
        "rank_grpo/return@1": "return@1",
        "rank_grpo/dcg": "DCG",
        "actor/kl_loss": "KL",  # of GRPO and GSPO, by verl; ours, which comes with `actor/kl`, is times the coefficient
        "actor/kl": "KL",
    },
    requirements=Requirements(RL_MODEL, (*DATA_FILES, "convrec.catalog_file", TRIE_KEY)),
    uses_ray=lambda config: True,
)
POINTWISE_JUDGE = replace(
    RANK_GRPO,
    name="judge_pointwise",
    title="GRPO of a pointwise judge",
    command=("recipes.judge.train", "pointwise"),
    script="recipes/judge/run_pointwise.sh",
    variables=("rl",),
    settings=JudgeSettings,
    answers="verdicts",
    check=when_called("recipes.preflight.checks:check_judge", mode="pointwise"),
    shown={"reward/score": "reward", "reward/exact_match": "exact", "reward/no_verdict": "no verdict"},
    requirements=replace(RANK_GRPO.requirements, file_keys=DATA_FILES),
)
PAIRWISE_JUDGE = replace(
    POINTWISE_JUDGE,
    name="judge_pairwise",
    title="GRPO of a pairwise judge",
    command=("recipes.judge.train", "pairwise"),
    script="recipes/judge/run_pairwise.sh",
    settings=PairwiseJudgeSettings,
    check=when_called("recipes.preflight.checks:check_judge", mode="pairwise"),
    shown={"reward/score": "accuracy", "reward/no_verdict": "no verdict", "reward/prefers_a": "A"},
)

RECIPES = {recipe.name: recipe for recipe in (SFT, RANK_GRPO, POINTWISE_JUDGE, PAIRWISE_JUDGE)}
