"""Kinds of the settings that have one of their own."""

from typing import Annotated, Literal

from pydantic import Field

from convrec.kinds import Path, one_of, only, wanted
from convrec.lists.rank_rewards import RANK_REWARDS
from convrec.lists.reward_parts import PART_NAMES, is_part
from convrec.lists.user_rewards import FORM, is_user_reward

TRACKERS = ("console", "file", "swanlab", "wandb", "tensorboard", "mlflow", "clearml", "trackio")
VERL_TRACKERS = (*TRACKERS, "vemlp_wandb", "rl_insight")  # the last two are of little use here


def _rises_from_step_0(schedule: list[list[float]]) -> bool:
    steps = [step for step, _ in schedule]
    return steps[:1] == [0] and steps == sorted(set(steps)) and all(step % 1 == 0 < rate for step, rate in schedule)


def _is_reward(name: str) -> bool:
    return name in RANK_REWARDS or is_user_reward(name)


def _are_weights(parts: dict[str, float]) -> bool:
    return all(is_part(name) and weight for name, weight in parts.items())


def _are_trackers(names: str | list[str]) -> bool:
    return {names} <= {*VERL_TRACKERS} if isinstance(names, str) else {*names} <= {*VERL_TRACKERS}


# numpy takes up to 2^32 - 1, and a replica adds its number
Seed = Annotated[int, Field(ge=0, lt=2**31, description="an integer from 0 to 2147483647")]
# verl's RL saves nothing, the last step included, where it is not positive
SaveFrequency = Annotated[
    int, Field(gt=0, description="a positive number of steps; one above the run's steps saves the last step alone")
]
_RESUME = "auto; SAVE_PATH decides what is resumed: another one starts anew, "
_RESUME += "with MODEL_PATH=RUN/global_step_N from a step"
Resume = Annotated[Literal["auto"], Field(description=_RESUME)]
Files = Annotated[Path | list[Path], Field(description="a path or several")]
Trackers = Annotated[
    str | list[str], only(_are_trackers), Field(description=f"one or several of {', '.join(VERL_TRACKERS)}")
]
Schedule = Annotated[
    list[Annotated[list[float], Field(min_length=2, max_length=2)]],
    only(_rises_from_step_0),
    Field(description="(step, lr) pairs in rising order of step, the first at step 0"),
]
Reward = Annotated[str, only(_is_reward), Field(description=f"{wanted(one_of(RANK_REWARDS))}, or {FORM} of your own")]
Weights = Annotated[
    dict[str, Annotated[float, Field(allow_inf_nan=False)]],
    only(_are_weights),
    Field(min_length=1, description=f"part: weight, of {', '.join(PART_NAMES)}; weights other than 0"),
]
