"""The settings below `convrec:` in conf/: what each may be, in every recipe. Checks and the manual read it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from convrec import kinds
from convrec.errors import UserError
from convrec.judges.orders import ORDERS, SEPARATE
from convrec.kinds import BOOLEAN, NON_POSITIVE_NUMBER, NUMBER, PATH, POSITIVE_NUMBER, Kind, one_of, setting
from convrec.lists.matching import MATCHERS
from convrec.lists.rank_rewards import DEFAULT_REWARD, RANK_REWARDS
from convrec.lists.reward_parts import COMBINATIONS, PART_NAMES, is_part
from convrec.lists.settings import ListSettings
from convrec.lists.user_rewards import FORM, is_user_reward


def _is_schedule(value: Any) -> bool:
    try:
        steps = [step for step, _ in value]
        fits = all(isinstance(step, int) and POSITIVE_NUMBER.fits(rate) for step, rate in value)
    except (TypeError, ValueError):
        return False
    return fits and steps[:1] == [0] and steps == sorted(set(steps))


SCHEDULE = Kind("(step, lr) pairs in rising order of step, the first at step 0", _is_schedule)
REWARD = Kind(
    f"{one_of(RANK_REWARDS).wanted}, or {FORM} of your own",
    lambda value: isinstance(value, str) and (value in RANK_REWARDS or is_user_reward(value)),
)
REWARDS = Kind(
    f"part: weight, of {', '.join(PART_NAMES)}; weights other than 0",
    lambda value: (
        isinstance(value, dict)
        and bool(value)
        and all(is_part(name) and NUMBER.fits(weight) and weight != 0 for name, weight in value.items())
    ),
)


@dataclass(frozen=True)
class RunSettings:
    """conf/sft.yaml: what every recipe has."""

    watchdog: str = setting(
        "end", one_of(("end", "resume", "off")), "what follows when a phase hangs; resume: also when a process is lost"
    )
    watchdog_seconds: float = setting(
        300, POSITIVE_NUMBER, "that a phase of a step may take; more where ten times its median is more"
    )


@dataclass(frozen=True)
class RLSettings(RunSettings):
    """conf/rl.yaml: what every RL recipe has."""

    lr_schedule: Sequence[Sequence[float]] | None = setting(
        None, SCHEDULE.or_null(), "learning rate from each of these steps on; null: verl's schedule of optim.lr"
    )
    rollout_check_bound: float = setting(
        0.1, POSITIVE_NUMBER, "mean difference of vLLM's and the actor's log-probs above which a run stops at its start"
    )
    reward_timeout: float = setting(
        600, POSITIVE_NUMBER, "seconds a reward may take; after three attempts the run stops"
    )
    deterministic: bool = setting(False, BOOLEAN, "a seed for every rollout: a resumed run samples what it would have")


@dataclass(frozen=True)
class RankGRPOSettings(RLSettings, ListSettings):
    """conf/rank_grpo.yaml, with what it has of conf/rl.yaml."""

    matching: str = setting(
        None, one_of(MATCHERS).or_null(), "how titles are compared; null: fuzzy, or reference with that preset"
    )
    reward: str = setting(DEFAULT_REWARD, REWARD, "the rank return: how later hits count at a rank")
    gamma: float | None = setting(
        None, RANK_REWARDS["exp_gamma"].parameters["gamma"].or_null(), "of the reward exp_gamma"
    )
    rewards: Mapping[str, float] | None = setting(
        None, REWARDS.or_null(), "parts of the rank reward and their weights; null: relevance alone"
    )
    reward_combination: str = setting(
        "normalised",
        one_of(COMBINATIONS),
        "each part is normalised within prompt and rank and then summed, or parts are summed first",
    )
    preset: str = setting("paper", one_of(("paper", "reference")), "eq. 6, or the public code's behaviour")
    constrained: bool = setting(False, BOOLEAN, "lists are of the catalog only, and so is the policy that trains")
    catalog_file: str = setting("data/reddit_v2/catalog.parquet", PATH, "the catalog (CATALOG_FILE)")
    overflow_penalty: float = setting(-0.1, NON_POSITIVE_NUMBER, "advantage of an item after the N-th")
    underflow_penalty: float = setting(-0.1, NON_POSITIVE_NUMBER, "advantage of a stop before the N-th item")
    mask_truncated: bool = setting(False, BOOLEAN, "drop responses without a stop token from the loss")


@dataclass(frozen=True)
class JudgeSettings(RLSettings):
    """conf/judge.yaml, with what it has of conf/rl.yaml."""

    malformed_reward: float = setting(
        0.0, NON_POSITIVE_NUMBER, "of an answer without a verdict; -1: less than of a wrong one"
    )


@dataclass(frozen=True)
class PairwiseJudgeSettings(JudgeSettings):
    """conf/judge_pairwise.yaml."""

    orders: str = setting(
        SEPARATE, one_of(ORDERS), "do the two orders of a pair count together, and how? docs/how-to/judges.md"
    )


def check(config: DictConfig, settings: type) -> None:
    """Raise UserError for a setting of ours that is unknown, missing or not what it may be.

    settings: the recipe's class of the above.
    """
    try:
        section = OmegaConf.to_container(config.convrec, resolve=True) if OmegaConf.is_dict(config.convrec) else None
    except OmegaConfBaseException as error:  # ${NAME} of something that is no setting
        raise UserError(f"convrec: {str(error).splitlines()[0]}") from error
    if not isinstance(section, dict):
        raise UserError(
            f"convrec={kinds.shown(config.convrec)}: it is a section: set what is below it, convrec.reward say"
        )
    kinds.check({str(name): value for name, value in section.items()}, settings, "convrec.")


def settings_table(schema: type) -> str:
    """A table of docs/reference/settings.md: a row a setting."""
    rows = [
        f"| `convrec.{name}` | {default} | {wanted} | {help} |" for name, default, wanted, help in kinds.rows(schema)
    ]
    return "\n".join(["| setting | default | takes | what |", "|---|---|---|---|", *rows])
