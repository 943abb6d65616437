"""The kinds of settings that only runs have; convrec.base.kinds has the general ones."""

from typing import Annotated, Literal

from pydantic import Field

from convrec.base import kinds
from convrec.base.kinds import describe_type, one_of, satisfying
from convrec.lists.rank_rewards import RANK_REWARDS
from convrec.lists.reward_parts import PART_NAMES, is_part
from convrec.lists.user_rewards import FORM, is_user_reward
from convrec.titles.matching import MATCHERS

# The method and its baselines: name -> title in messages. conf/algorithm_preset/NAME.yaml has the estimator, policy
# loss and clipping of each, and trainer.v1.trainer_mode if it needs another trainer than the recipe's.
ALGORITHMS = {"rank_grpo": "Rank-GRPO", "grpo": "GRPO", "gspo": "GSPO"}
TRACKERS = ("console", "file", "swanlab", "wandb", "tensorboard", "mlflow", "clearml", "trackio")
VERL_TRACKERS = (*TRACKERS, "vemlp_wandb", "rl_insight")  # the last two are of little use here


def _are_trackers(names: str | list[str]) -> bool:
    trackers = [names] if isinstance(names, str) else names
    return set(trackers) <= set(VERL_TRACKERS)


def _rises_from_step_0(schedule: list[list[float]]) -> bool:
    steps = [step for step, _ in schedule]
    is_rising = steps[:1] == [0] and steps == sorted(set(steps))
    return is_rising and all(step % 1 == 0 and rate > 0 for step, rate in schedule)


def _are_weights(parts: dict[str, float]) -> bool:
    return all(is_part(name) and weight for name, weight in parts.items())


# numpy allows seeds up to 2^32 - 1, and each replica adds its number
Seed = Annotated[int, Field(ge=0, lt=2**31, description="an integer from 0 to 2147483647")]
# with 0 or less, verl's RL would not even save the last step
SaveFrequency = Annotated[
    int, Field(gt=0, description="a positive number of steps; above the run's steps, only the last step is saved")
]
Resume = Annotated[
    Literal["auto"],
    Field(
        description="auto; SAVE_PATH decides which run is resumed. To start a new run from a checkpoint, set a new "
        "SAVE_PATH and MODEL_PATH=RUN/global_step_N"
    ),
]
Watchdog = Annotated[Literal["end", "resume", "off"], Field(description="one of end, resume, off")]
Files = Annotated[kinds.Path | list[kinds.Path], Field(description="a path or several")]
Trackers = Annotated[
    str | list[str],
    satisfying(_are_trackers),
    Field(description=f"one or several of {', '.join(VERL_TRACKERS)}"),
]
Schedule = Annotated[
    list[Annotated[list[float], Field(min_length=2, max_length=2)]],
    satisfying(_rises_from_step_0),
    Field(description="(step, lr) pairs in rising order of step, the first at step 0"),
]
Reward = Annotated[
    str,
    satisfying(lambda name: name in RANK_REWARDS or is_user_reward(name)),
    Field(description=f"{describe_type(one_of(RANK_REWARDS))}, or {FORM} of your own"),
]
Weights = Annotated[
    dict[str, Annotated[float, Field(allow_inf_nan=False)]],
    satisfying(_are_weights),
    Field(min_length=1, description=f"part: weight, of {', '.join(PART_NAMES)}; weights other than 0"),
]
Combination = Annotated[Literal["normalised", "sum"], Field(description="one of normalised, sum")]
Algorithm = Annotated[
    str, satisfying(lambda name: name in ALGORITHMS), Field(description=describe_type(one_of(ALGORITHMS)))
]
Matching = Annotated[str, satisfying(lambda name: name in MATCHERS), Field(description=describe_type(one_of(MATCHERS)))]
Preset = Annotated[Literal["paper", "reference"], Field(description="one of paper, reference")]
Repair = Annotated[Literal["none", "zero"], Field(description="one of none, zero")]
Attributes = Annotated[list[str], Field(min_length=1, description="names")]
Orders = Annotated[
    Literal["separate", "consistent", "together"], Field(description="one of separate, consistent, together")
]
