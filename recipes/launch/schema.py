"""Every setting of a run that is ours, that a variable sets or that checks compute with: the one table of them.

The variables, the checks of what is composed, `--help` and the manual read it. Defaults stand in conf/, and are verl's
where it says nothing. What verl's other settings may be is verl's to check.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from convrec.judges.orders import ORDERS
from convrec.kinds import (
    Boolean,
    Fraction,
    Integer,
    NonNegativeNumber,
    NonPositiveNumber,
    Path,
    PositiveInteger,
    PositiveNumber,
    one_of,
)
from convrec.lists.matching import MATCHERS
from convrec.lists.rank_rewards import RANK_REWARDS
from convrec.lists.reward_parts import COMBINATIONS
from convrec.lists.settings import KINDS as OF_LISTS
from recipes.launch import texts
from recipes.launch.algorithms import ALGORITHMS
from recipes.launch.recipe import Recipe
from recipes.launch.setting_kinds import Files, Resume, Reward, SaveFrequency, Schedule, Seed, Trackers, Weights

GROUP = "algorithm_preset"  # no key of the config: a group of conf/


@dataclass(frozen=True)
class Setting:
    """keys: by group of recipes (`Recipe.groups`), the keys of the config that have its value, with spaces between.

    kind: what it takes, of convrec.kinds. name: of its environment variable. null: by group of recipes, what null does;
    elsewhere it is refused. null_word: null as the variable writes it. default: in words, where the config does not
    have it. read: the variable's text -> a value; where it is not given, by `kinds.read`.
    """

    keys: Mapping[str, str]
    kind: Any
    help: str
    name: str = ""
    null: Mapping[str, str] = field(default_factory=dict)
    null_word: str = "null"
    default: str = ""
    read: Callable[[str], Any] | None = None

    def keys_of(self, recipe: Recipe) -> tuple[str, ...]:
        """Its keys in this recipe; none where the recipe does not have it."""
        return tuple(key for group in recipe.groups for key in self.keys.get(group, "").split())

    def null_of(self, recipe: Recipe) -> str:
        """What null does in this recipe, "" where it is refused."""
        return next((self.null[group] for group in recipe.groups if group in self.null), "")


SETTINGS: tuple[Setting, ...] = (
    Setting(
        {"sft": "model.path", "rl": "actor_rollout_ref.model.path"},
        Path,
        "a Hugging Face id or folder, or a run folder of ours (its last step; RUN/global_step_N names one)",
        "MODEL_PATH",
        read=texts.path_as_written,
    ),
    Setting({"all": "data.train_files"}, Files, "training parquet", "TRAIN_FILE", read=texts.absolute_path),
    Setting({"all": "data.val_files"}, Files, "validation parquet", "VAL_FILE", read=texts.absolute_path),
    Setting({"lists": "convrec.catalog_file"}, Path, "the catalog", "CATALOG_FILE", read=texts.absolute_path),
    Setting(
        {"all": "trainer.default_local_dir"},
        Path,
        "the run folder: checkpoints, metrics, log; an unfinished run there is resumed",
        "SAVE_PATH",
        null={"all": "checkpoints/<recipe>/<model>"},
        read=texts.absolute_path,
    ),
    Setting(
        {"all": "trainer.save_freq"},
        SaveFrequency,
        "steps between checkpoints; the last step is always saved",
        "SAVE_FREQ",
    ),
    Setting(
        {"all": "trainer.test_freq"},
        Integer,
        "steps between validations; -1: SFT validates at the end alone, RL never",
        "TEST_FREQ",
    ),
    Setting(
        {"sft": "trainer.max_ckpt_to_keep", "rl": "trainer.max_actor_ckpt_to_keep"},
        PositiveInteger,
        "newest checkpoints to keep, or all; the best by validation is kept besides",
        "SAVE_KEEP",
        null={"all": "all"},
        null_word="all",
    ),
    Setting({"all": "trainer.resume_mode"}, Resume, "whether an unfinished run is resumed"),
    Setting(
        {"all": "trainer.n_gpus_per_node"},
        PositiveInteger,
        "accelerators of each node",
        "N_GPUS_PER_NODE",
        default="what the machine has",
    ),
    Setting({"all": "trainer.nnodes"}, PositiveInteger, "nodes", "N_NODES"),
    Setting(
        {"rl": "actor_rollout_ref.rollout.tensor_model_parallel_size"},
        PositiveInteger,
        "GPUs a rollout replica spans",
        "TENSOR_PARALLEL",
    ),
    Setting(
        {"rl": "actor_rollout_ref.rollout.gpu_memory_utilization"},
        Fraction,
        "share of GPU memory vLLM takes",
        "GPU_MEMORY_UTILIZATION",
    ),
    Setting(
        {"all": "data.train_batch_size"},
        PositiveInteger,
        "sequences (SFT) or prompts (RL) of a step",
        "TRAIN_BATCH_SIZE",
        null={"sft": "96 a device"},
    ),
    Setting({"rl": "actor_rollout_ref.rollout.n"}, PositiveInteger, "rollouts of a prompt (G)", "ROLLOUT_N"),
    Setting({"sft": "optim.lr", "rl": "actor_rollout_ref.actor.optim.lr"}, NonNegativeNumber, "learning rate", "LR"),
    Setting({"sft": "optim.lr_warmup_steps_ratio"}, NonNegativeNumber, "share of the steps in which it rises"),
    Setting(
        {"rl": "convrec.lr_schedule"},
        Schedule,
        "learning rate from each of these steps on",
        null={"rl": "verl's schedule of optim.lr"},
    ),
    Setting({"rl": "actor_rollout_ref.actor.kl_loss_coef"}, NonNegativeNumber, "KL to the start", "KL_LOSS_COEF"),
    Setting(
        {"rl": "actor_rollout_ref.actor.ppo_epochs"},
        PositiveInteger,
        "updates of a rollout batch; of judges passes over it, of four updates each (of one where TRAIN_BATCH_SIZE is "
        "no multiple of 4)",
        "MU",
    ),
    Setting({"rl": "actor_rollout_ref.actor.ppo_mini_batch_size"}, PositiveInteger, "prompts of an update"),
    Setting({"lists": "convrec.reward"}, Reward, "the rank return: how later hits count at a rank", "REWARD"),
    Setting(
        {"lists": "convrec.gamma"},
        RANK_REWARDS["exp_gamma"].parameters["gamma"],
        "of the reward exp_gamma",
        null={"lists": "unset"},
    ),
    Setting(
        {"lists": "convrec.rewards"},
        Weights,
        "parts of the rank reward and their weights, `relevance: 1, diversity: 0.3` say",
        "REWARDS",
        null={"lists": "REWARD alone"},
        read=texts.weights,
    ),
    Setting(
        {"lists": "convrec.reward_combination"},
        one_of(COMBINATIONS),
        "each part is normalised within prompt and rank and then summed, or parts are summed first",
    ),
    Setting({"lists": GROUP}, one_of(ALGORITHMS), "the method or a baseline", "ALGORITHM"),
    Setting(
        {"lists": "convrec.preset"}, one_of(("paper", "reference")), "eq. 6, or the public code's behaviour", "PRESET"
    ),
    Setting(
        {"lists": "convrec.constrained"},
        Boolean,
        "lists hold unseen items of the catalog only, in sampling and in training",
        "CONSTRAINED",
    ),
    Setting({"lists": "convrec.num_items"}, OF_LISTS["num_items"], "items of a list = ranks (N)", "NUM_ITEMS"),
    Setting({"lists": "convrec.delimiter"}, OF_LISTS["delimiter"], "between items"),
    Setting(
        {"lists": "convrec.matching"},
        one_of(MATCHERS),
        "how titles are compared",
        null={"lists": "fuzzy, or reference with that preset"},
    ),
    Setting({"lists": "convrec.year_tolerance"}, OF_LISTS["year_tolerance"], "years by which the same item may differ"),
    Setting(
        {"lists": "convrec.fuzzy_cutoff"},
        OF_LISTS["fuzzy_cutoff"],
        "least similarity of titles, years included, in matching `fuzzy`",
    ),
    Setting({"lists": "convrec.overflow_penalty"}, NonPositiveNumber, "advantage of an item after the N-th"),
    Setting({"lists": "convrec.underflow_penalty"}, NonPositiveNumber, "advantage of a stop before the N-th item"),
    Setting({"lists": "convrec.mask_truncated"}, Boolean, "drop responses without a stop token from the loss"),
    Setting(
        {"judges": "convrec.malformed_reward"},
        NonPositiveNumber,
        "of an answer without a verdict; -1: less than of a wrong one",
    ),
    Setting(
        {"pairwise": "convrec.orders"},
        one_of(ORDERS),
        "do the two orders of a pair count together, and how? docs/how-to/judges.md",
    ),
    Setting({"all": "trainer.total_epochs"}, PositiveInteger, "epochs", "TOTAL_EPOCHS"),
    Setting(
        {"all": "trainer.total_training_steps"},
        PositiveInteger,
        "steps; wins over epochs",
        "TOTAL_STEPS",
        null={"all": "unset"},
    ),
    Setting({"rl": "data.max_prompt_length"}, PositiveInteger, "tokens of a prompt", "MAX_PROMPT_LENGTH"),
    Setting({"rl": "data.max_response_length"}, PositiveInteger, "tokens of a response", "MAX_RESPONSE_LENGTH"),
    Setting({"sft": "data.max_length"}, PositiveInteger, "tokens of prompt and completion (SFT)", "MAX_LENGTH"),
    Setting(
        {"sft": "data.max_token_len_per_gpu", "rl": "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"},
        PositiveInteger,
        "tokens of a micro-batch",
    ),
    Setting(
        {"all": "trainer.logger"},
        Trackers,
        "verl's trackers, comma-separated; without LOGGER also swanlab, where its key is set",
        "LOGGER",
        read=texts.comma_separated,
    ),
    Setting(
        {"all": "convrec.watchdog"},
        one_of(("end", "resume", "off")),
        "what follows when a phase of a step hangs: the run ends (status 75), is resumed (when a process is lost, too) "
        "or goes on",
        "WATCHDOG",
    ),
    Setting(
        {"all": "convrec.watchdog_seconds"},
        PositiveNumber,
        "that a phase of a step may take; more where ten times its median is more",
    ),
    Setting(
        {"rl": "convrec.rollout_check_bound"},
        PositiveNumber,
        "mean difference of vLLM's and the actor's log-probs above which a run stops at its start",
    ),
    Setting(
        {"rl": "convrec.reward_timeout"},
        PositiveNumber,
        "seconds a reward may take; after three attempts the run stops",
    ),
    Setting({"sft": "trainer.seed data.seed", "rl": "data.seed"}, Seed, "of data order and sampling", "SEED"),
    Setting(
        {"rl": "convrec.deterministic"}, Boolean, "a seed for every rollout: a resumed run samples what it would have"
    ),
)
