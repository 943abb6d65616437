"""What a recipe is: one record each, of recipes.yaml, from which everything else reads what differs.

To add one: its entry there, conf/<name>.yaml, its curves in convrec/report/panels.py and its settings in
convrec/report/run_summary.py (SETTINGS); its name in COMMANDS (recipes/cli.py), and a script that starts it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, Literal

from omegaconf import DictConfig

from convrec.shipped import read_table
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


def _recipe(name: str, settings: list[str], check: str, **fields: Any) -> Recipe:
    """Of an entry of recipes.yaml. check: of recipes.preflight, whose imports take seconds: a wrong variable is
    refused before."""
    return Recipe(
        name=name,
        settings=schema.settings_of(*settings),
        check=lambda config: resolve_name(f"recipes.preflight.{check}")(config),
        train=(sft_training if fields.get("is_sft") else ray_training).train,
        **fields,
    )


RECIPES = {name: _recipe(name, **entry) for name, entry in read_table(__file__, "recipes.yaml").items()}
SFT, RANK_GRPO, POINTWISE_JUDGE, PAIRWISE_JUDGE = RECIPES.values()
