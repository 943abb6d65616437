"""Every setting of a run that is ours, that a variable sets or that checks compute with: the one table of them.

The variables, the checks of what is composed, `--help` and the manual read it. Defaults stand in conf/, and are verl's
where it says nothing. What verl's other settings may be is verl's to check.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from convrec.judges.orders import ORDERS
from convrec.kinds import (
    Boolean,
    Fraction,
    Integer,
    NonNegativeInteger,
    NonNegativeNumber,
    NonPositiveNumber,
    Path,
    PositiveInteger,
    PositiveNumber,
    one_of,
    only,
    wanted,
)
from convrec.lists import settings as lists
from convrec.lists.matching import MATCHERS
from convrec.lists.rank_rewards import RANK_REWARDS
from convrec.lists.reward_parts import COMBINATIONS, PART_NAMES, is_part
from convrec.lists.user_rewards import FORM, is_user_reward
from convrec.runs.folder import RL_MODEL, SFT_MODEL

SFT_SEQUENCES_PER_DEVICE = 96  # 12 x 8 accumulation steps
GROUP = "algorithm_preset"  # no key of the config: a group of conf/
# The method and its baselines: name -> what a run with it calls itself. conf/algorithm_preset/NAME.yaml has estimator,
# policy loss and clipping of each, and trainer.v1.trainer_mode where it needs another trainer than the recipe's
ALGORITHMS = {"rank_grpo": "Rank-GRPO", "grpo": "GRPO", "gspo": "GSPO"}
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
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
Files = Annotated[Path | list[Path], Field(description="a path or several")]
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
    -> its value, where that is not `kinds.read`.
    """

    kind: Any
    help: str
    name: str = ""
    null: str = ""
    null_word: str = "null"
    default: str = ""
    read: Callable[[str], Any] | None = None

    def keys_of(self, recipe: Any) -> list[str]:
        """The keys of the config that its variable sets in this recipe; none where the recipe does not read it.

        recipe: of recipes.launch.recipe, which imports this module.
        """
        return [key for key, setting in recipe.settings.items() if setting.name == self.name]


MODEL = Setting(
    Path,
    "a Hugging Face id or folder, or a run folder of ours (its last step; RUN/global_step_N names one)",
    "MODEL_PATH",
)
BATCH = Setting(PositiveInteger, "sequences (SFT) or prompts (RL) of a step", "TRAIN_BATCH_SIZE")
LEARNING_RATE = Setting(NonNegativeNumber, "learning rate", "LR")
KEPT = Setting(
    PositiveInteger,
    "newest checkpoints to keep, or all; the best by validation is kept besides",
    "SAVE_KEEP",
    null="all",
    null_word="all",
)
MICRO_BATCH = Setting(PositiveInteger, "tokens of a micro-batch")
SEED = Setting(Seed, "of data order and sampling", "SEED")
CANDIDATES = Setting(NonNegativeInteger, "that prompts name, of `convrec retrieval candidates`", "CANDIDATES")

EVERY: dict[str, Setting] = {
    "data.train_files": Setting(Files, "training parquet", "TRAIN_FILE", read=absolute_path),
    "data.val_files": Setting(Files, "validation parquet", "VAL_FILE", read=absolute_path),
    "data.seed": SEED,
    "trainer.default_local_dir": Setting(
        Path,
        "the run folder: checkpoints, metrics, log; an unfinished run there is resumed",
        "SAVE_PATH",
        null="checkpoints/<recipe>/<model>",
        read=absolute_path,
    ),
    "trainer.resume_mode": Setting(Resume, "whether an unfinished run is resumed"),
    "trainer.save_freq": Setting(
        SaveFrequency, "steps between checkpoints; the last step is always saved", "SAVE_FREQ"
    ),
    "trainer.test_freq": Setting(
        Integer, "steps between validations; -1: SFT validates at the end alone, RL never", "TEST_FREQ"
    ),
    "trainer.total_epochs": Setting(PositiveInteger, "epochs", "TOTAL_EPOCHS"),
    "trainer.total_training_steps": Setting(PositiveInteger, "steps; wins over epochs", "TOTAL_STEPS", null="unset"),
    "trainer.nnodes": Setting(PositiveInteger, "nodes", "N_NODES"),
    "trainer.n_gpus_per_node": Setting(
        PositiveInteger, "accelerators of each node", "N_GPUS_PER_NODE", default="what the machine has"
    ),
    "trainer.logger": Setting(
        Trackers,
        "verl's trackers, comma-separated; without LOGGER also swanlab, where its key is set",
        "LOGGER",
        read=comma_separated,
    ),
    "convrec.watchdog": Setting(
        one_of(("end", "resume", "off")),
        "what follows when a phase of a step hangs: the run ends (status 75), is resumed (when a process is lost, too) "
        "or goes on",
        "WATCHDOG",
    ),
    "convrec.watchdog_seconds": Setting(
        PositiveNumber,
        "that a phase of a step may take; ten times its median where that is more, six times this the first time",
    ),
}
SFT: dict[str, Setting] = {
    SFT_MODEL: MODEL,
    **EVERY,
    "trainer.seed": SEED,
    "trainer.max_ckpt_to_keep": KEPT,
    "data.train_batch_size": replace(BATCH, null=f"{SFT_SEQUENCES_PER_DEVICE} a device"),
    "data.max_length": Setting(PositiveInteger, "tokens of prompt and completion (SFT)", "MAX_LENGTH"),
    "data.max_token_len_per_gpu": MICRO_BATCH,
    "optim.lr": LEARNING_RATE,
    "convrec.candidates": CANDIDATES,
    "optim.lr_warmup_steps_ratio": Setting(NonNegativeNumber, "share of the steps in which the learning rate rises"),
}
RL: dict[str, Setting] = {
    RL_MODEL: MODEL,
    **EVERY,
    "trainer.max_actor_ckpt_to_keep": KEPT,
    "data.train_batch_size": BATCH,
    "data.max_prompt_length": Setting(PositiveInteger, "tokens of a prompt", "MAX_PROMPT_LENGTH"),
    "data.max_response_length": Setting(PositiveInteger, "tokens of a response", "MAX_RESPONSE_LENGTH"),
    f"{ACTOR}.ppo_max_token_len_per_gpu": MICRO_BATCH,
    f"{ACTOR}.optim.lr": LEARNING_RATE,
    f"{ACTOR}.kl_loss_coef": Setting(NonNegativeNumber, "KL to the start", "KL_LOSS_COEF"),
    f"{ACTOR}.ppo_epochs": Setting(
        PositiveInteger,
        "updates of a rollout batch; of judges passes over it, of four updates each (of one where TRAIN_BATCH_SIZE is "
        "no multiple of 4)",
        "MU",
    ),
    f"{ACTOR}.ppo_mini_batch_size": Setting(PositiveInteger, "prompts of an update"),
    f"{ROLLOUT}.n": Setting(PositiveInteger, "rollouts of a prompt (G)", "ROLLOUT_N"),
    f"{ROLLOUT}.tensor_model_parallel_size": Setting(
        PositiveInteger, "GPUs a rollout replica spans", "TENSOR_PARALLEL"
    ),
    f"{ROLLOUT}.gpu_memory_utilization": Setting(Fraction, "share of GPU memory vLLM takes", "GPU_MEMORY_UTILIZATION"),
    "convrec.lr_schedule": Setting(
        Schedule, "learning rate from each of these steps on", null="verl's schedule of optim.lr"
    ),
    "convrec.rollout_check_bound": Setting(
        PositiveNumber, "mean difference of vLLM's and the actor's log-probs above which a run stops at its start"
    ),
    "convrec.reward_timeout": Setting(PositiveNumber, "seconds a reward may take; after three attempts the run stops"),
    "convrec.deterministic": Setting(
        Boolean, "a seed for every rollout, of SEED, step, row and number: a resumed run samples what it would have"
    ),
}
LISTS: dict[str, Setting] = RL | {
    "convrec.catalog_file": Setting(Path, "the catalog", "CATALOG_FILE", read=absolute_path),
    "convrec.candidates": CANDIDATES,
    "convrec.num_items": Setting(lists.KINDS["num_items"], "items of a list = ranks (N)", "NUM_ITEMS"),
    "convrec.delimiter": Setting(lists.KINDS["delimiter"], "between items"),
    "convrec.matching": Setting(
        one_of(MATCHERS), "how titles are compared", null="fuzzy, or reference with that preset"
    ),
    "convrec.year_tolerance": Setting(lists.KINDS["year_tolerance"], "years by which the same item may differ"),
    "convrec.fuzzy_cutoff": Setting(
        lists.KINDS["fuzzy_cutoff"], "least similarity of titles, years included, in matching `fuzzy`"
    ),
    "convrec.reward": Setting(Reward, "the rank return: how later hits count at a rank", "REWARD"),
    "convrec.gamma": Setting(RANK_REWARDS["exp_gamma"].parameters["gamma"], "of the reward exp_gamma", null="unset"),
    "convrec.rewards": Setting(
        Weights,
        "parts of the rank reward and their weights, `relevance: 1, diversity: 0.3` say",
        "REWARDS",
        null="REWARD alone",
        read=weights,
    ),
    "convrec.reward_combination": Setting(
        one_of(COMBINATIONS),
        "each part is normalised within prompt and rank and then summed, or parts are summed first",
    ),
    GROUP: Setting(one_of(ALGORITHMS), "the method or a baseline", "ALGORITHM"),
    "convrec.preset": Setting(
        one_of(("paper", "reference")), "eq. 6, or the public code's token mean and shaping", "PRESET"
    ),
    "convrec.constrained": Setting(
        Boolean, "lists hold unseen items of the catalog only, in sampling and in training", "CONSTRAINED"
    ),
    "convrec.repair": Setting(
        one_of(("none", "zero")), "zero: of a prompt that no rollout hits, one gets a wanted title", "REPAIR"
    ),
    "convrec.repair_ranks": Setting(PositiveInteger, "a repair takes one of the first so many ranks", null="all N"),
    "convrec.ask": Setting(
        Annotated[list[str], Field(min_length=1, description="names")],
        "attributes that the model may ask about before it lists, columns of the catalog or decade, comma-separated",
        "ASK",
        null="it lists at once",
        read=comma_separated,
    ),
    "convrec.max_turns": Setting(PositiveInteger, "ASK: turns of the model, the last of which is a list", "MAX_TURNS"),
    "convrec.ask_cost": Setting(PositiveNumber, "ASK: what a question costs, in DCG of its list", "ASK_COST"),
    "convrec.overflow_penalty": Setting(NonPositiveNumber, "advantage of an item after the N-th"),
    "convrec.underflow_penalty": Setting(NonPositiveNumber, "advantage of a stop before the N-th item"),
    "convrec.mask_truncated": Setting(
        Boolean, "drop responses without a stop token from the loss, and from the reference's token mean"
    ),
}
JUDGES: dict[str, Setting] = RL | {
    "convrec.malformed_reward": Setting(
        NonPositiveNumber, "of an answer without a verdict; -1: less than of a wrong one"
    ),
}
PAIRWISE: dict[str, Setting] = JUDGES | {
    "convrec.orders": Setting(
        one_of(ORDERS), "do the two orders of a pair count together, and how? docs/how-to/judges.md"
    ),
}
