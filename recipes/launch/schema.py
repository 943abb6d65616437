"""What stands in settings.yaml: every setting of a run that is ours, that a variable sets or that checks compute with.

The variables, the checks of what is composed, `--help` and the manual read it. Defaults stand in conf/, and are verl's
where it says nothing. What verl's other settings may be is verl's to check.
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from convrec import kinds
from convrec.features.rewards.parts import COMBINATIONS, PART_NAMES, is_part
from convrec.judges.orders import ORDERS
from convrec.kinds import one_of, only, wanted
from convrec.lists import settings as lists
from convrec.lists.matching import MATCHERS
from convrec.lists.rank_rewards import RANK_REWARDS
from convrec.lists.user_rewards import FORM, is_user_reward
from convrec.shipped import read_table

SFT_SEQUENCES_PER_DEVICE = 96  # 12 x 8 accumulation steps
GROUP = "algorithm_preset"  # no key of the config: a group of conf/
# The method and its baselines: name -> what a run with it calls itself. conf/algorithm_preset/NAME.yaml has estimator,
# policy loss and clipping of each, and trainer.v1.trainer_mode where it needs another trainer than the recipe's
ALGORITHMS = {"rank_grpo": "Rank-GRPO", "grpo": "GRPO", "gspo": "GSPO"}
TRACKERS = ("console", "file", "swanlab", "wandb", "tensorboard", "mlflow", "clearml", "trackio")
VERL_TRACKERS = (*TRACKERS, "vemlp_wandb", "rl_insight")  # the last two are of little use here

HYDRA_NAME = re.compile(r"[\w./\\+$%*@?|()\[\]{}:=, \t-]+", re.ASCII)  # what its grammar has without quotes


def _rises_from_step_0(schedule: list[list[float]]) -> bool:
    steps = [step for step, _ in schedule]
    return steps[:1] == [0] and steps == sorted(set(steps)) and all(step % 1 == 0 < rate for step, rate in schedule)


# numpy takes up to 2^32 - 1, and a replica adds its number
Seed = Annotated[int, Field(ge=0, lt=2**31, description="an integer from 0 to 2147483647")]
# verl's RL saves nothing, the last step included, where it is not positive
SaveFrequency = Annotated[
    int, Field(gt=0, description="a positive number of steps; one above the run's steps saves the last step alone")
]
_RESUME = "auto; SAVE_PATH decides what is resumed: another one starts anew, "
_RESUME += "with MODEL_PATH=RUN/global_step_N from a step"
Resume = Annotated[Literal["auto"], Field(description=_RESUME)]
Files = Annotated[kinds.Path | list[kinds.Path], Field(description="a path or several")]
Trackers = Annotated[
    str | list[str],
    only(lambda names: {*([names] if isinstance(names, str) else names)} <= {*VERL_TRACKERS}),
    Field(description=f"one or several of {', '.join(VERL_TRACKERS)}"),
]
Schedule = Annotated[
    list[Annotated[list[float], Field(min_length=2, max_length=2)]],
    only(_rises_from_step_0),
    Field(description="(step, lr) pairs in rising order of step, the first at step 0"),
]
Reward = Annotated[
    str,
    only(lambda name: name in RANK_REWARDS or is_user_reward(name)),
    Field(description=f"{wanted(one_of(RANK_REWARDS))}, or {FORM} of your own"),
]
Weights = Annotated[
    dict[str, Annotated[float, Field(allow_inf_nan=False)]],
    only(lambda parts: all(is_part(name) and weight for name, weight in parts.items())),
    Field(min_length=1, description=f"part: weight, of {', '.join(PART_NAMES)}; weights other than 0"),
]
Attributes = Annotated[list[str], Field(min_length=1, description="names")]
Gamma = RANK_REWARDS["exp_gamma"].parameters["gamma"]
Algorithm, Matching = one_of(ALGORITHMS), one_of(MATCHERS)
Combination, Orders = one_of(COMBINATIONS), one_of(ORDERS)


def absolute_path(text: str) -> str:
    return os.path.abspath(os.path.expanduser(text))


def comma_separated(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def weights(text: str) -> Any:
    """The mapping of `relevance: 1, diversity: 0.3`, with braces or without; the text itself where it is none."""
    inside = text[1:-1] if text.startswith("{") and text.endswith("}") else text
    pairs = [[side.strip() for side in entry.rpartition(":")[::2]] for entry in inside.split(",") if entry.strip()]
    try:
        by_name = {name: float(weight) for name, weight in pairs}
    except ValueError:
        return text
    for name in by_name:
        if not HYDRA_NAME.fullmatch(name):
            raise ValueError(f"names in ASCII, without quotes, ; and #, for Hydra: rename the column of {name}")
    return by_name if len(by_name) == len(pairs) else text


@dataclass(frozen=True)
class Setting:
    """What a setting may be and is for, and the environment variable that sets it.

    kind: of convrec.kinds. name: the variable's, "" without one. null: what null does, "" where it is refused.
    null_word: null as the variable writes it. default: in words, where conf/ cannot have it. read: the variable's text
    -> its value, where that is not `kinds.read`. elsewhere: what other trainers call the variable; only names that
    hardly mean anything else in an environment.
    """

    kind: Any
    help: str
    name: str = ""
    null: str = ""
    null_word: str = "null"
    default: str = ""
    read: Callable[[str], Any] | None = None
    elsewhere: Sequence[str] = ()

    def keys_of(self, recipe: Any) -> list[str]:
        """The keys of the config that its variable sets in this recipe; none where the recipe does not read it.

        recipe: of recipes.launch.recipe, which imports this module.
        """
        return [key for key, setting in recipe.settings.items() if setting.name == self.name]


def settings_of(*sections: str) -> dict[str, Setting]:
    """Key of the config -> its setting, of these sections of settings.yaml."""
    entries = {key: entry for section in sections for key, entry in _TABLE[section].items()}
    return {key: _setting(**entry) for key, entry in entries.items()}


def _setting(kind: str | list[str], read: str = "", **more: Any) -> Setting:
    """kind: a list of choices, or the name of a kind, here or in the modules of kinds and of lists."""
    known = {**globals(), **vars(kinds), **lists.KINDS}
    return Setting(one_of(kind) if isinstance(kind, list) else known[kind], read=known.get(read), **more)


_TABLE = read_table(__file__, "settings.yaml")
