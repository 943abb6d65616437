"""The environment variables of the recipes: one table, read by the scripts, the tests and the manual.

A variable becomes a Hydra override; overrides on the command line come after it and win.
"""

import math
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from convrec.errors import UserError
from convrec.lists.rank_rewards import DEFAULT_REWARD
from recipes.launch.algorithms import ALGORITHMS
from recipes.launch.recipe import POINTWISE_JUDGE, RANK_GRPO, SFT, Recipe
from recipes.launch.schema import REWARD, REWARDS


def _number(kind: Callable[[str], float], fits: Callable[[float], bool], wanted: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        try:
            value = kind(text)
        except ValueError:
            raise ValueError(wanted) from None
        if not (math.isfinite(value) and fits(value)):
            raise ValueError(wanted)
        return str(value)  # 04 and 01e-6 are texts for Hydra

    return parse


_integer = _number(int, lambda value: True, "an integer")
# numpy takes up to 2^32 - 1, and a replica adds its number
_seed = _number(int, lambda value: 0 <= value < 2**31, "an integer from 0 to 2147483647")
_positive_int = _number(int, lambda value: value > 0, "a positive integer")
_positive_float = _number(float, lambda value: value > 0, "a positive number")
_non_negative_float = _number(float, lambda value: value >= 0, "a number of at least 0")
_fraction = _number(float, lambda value: 0 < value <= 1, "a number above 0, at most 1")


def _count_or_all(text: str) -> str:
    if text == "all":
        return "null"  # verl's word for no bound
    try:
        return _positive_int(text)
    except ValueError as error:
        raise ValueError(f"{error}, or all") from None


def _path(text: str) -> str:
    """Quoted for Hydra's grammar, which gives `=`, `,` and brackets a meaning."""
    if "${" in text:
        raise ValueError("a path without ${...}, which nobody replaces here: write it out")
    escaped = re.sub(r"\\+(?='|\Z)", lambda match: match[0] * 2, text)  # others mean themselves
    return "'" + escaped.replace("'", "\\'") + "'"


def _absolute(text: str) -> str:
    return _path(os.path.abspath(os.path.expanduser(text)))


def _one_of(choices: Collection[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError("one of " + ", ".join(choices))
        return text

    return parse


def _switch(text: str) -> str:
    if text not in ("0", "1"):
        raise ValueError("0 or 1")
    return "true" if text == "1" else "false"


def _some_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        parts = [part.strip() for part in text.split(",")]
        if not set(parts) <= set(choices):
            raise ValueError("one or more, comma-separated, of " + ", ".join(choices))
        return "[" + ",".join(parts) + "]"

    return parse


def _reward(text: str) -> str:
    if not REWARD.fits(text):
        raise ValueError(REWARD.wanted)
    return text


HYDRA_NAME = re.compile(r"[\w./\\+$%*@?|()\[\]{}:=, \t-]+", re.ASCII)  # what its grammar has without quotes


def _rewards(text: str) -> str:
    """`relevance: 1, diversity: 0.3` as Hydra's grammar has it, with braces or without."""
    inside = text[1:-1] if text.startswith("{") and text.endswith("}") else text
    pairs = [[side.strip() for side in entry.rpartition(":")[::2]] for entry in inside.split(",") if entry.strip()]
    try:
        weights = {name: float(weight) for name, weight in pairs}
    except ValueError:
        weights = {}
    if len(weights) < len(pairs) or not REWARDS.fits(weights):
        raise ValueError(REWARDS.wanted)
    for name in weights:
        if not HYDRA_NAME.fullmatch(name):
            raise ValueError(f"names in ASCII, without quotes, ; and #, for Hydra: rename the column of {name}")
    escaped = {re.sub(r"([\\()\[\]{}:=, \t])", r"\\\1", name): weight for name, weight in weights.items()}
    return "{" + ", ".join(f"{name}: {weight!r}" for name, weight in escaped.items()) + "}"


@dataclass(frozen=True)
class Variable:
    """One environment variable: the Hydra keys it sets, and how its text becomes a value.

    keys: by group of variables: "sft", "rl" (every RL recipe) or "lists" (RL whose answers are lists). A recipe names
    the groups it reads (`Recipe.variables`).
    """

    name: str
    keys: Mapping[str, tuple[str, ...]]
    parse: Callable[[str], str]
    default: str
    help: str

    def keys_of(self, recipe: Recipe) -> tuple[str, ...]:
        """The Hydra keys it sets in this recipe; none where the recipe does not read it."""
        return tuple(key for group in recipe.variables for key in self.keys.get(group, ()))


def _both(key_sft: str | tuple[str, ...], key_rl: str | tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    def as_tuple(key: str | tuple[str, ...]) -> tuple[str, ...]:
        return (key,) if isinstance(key, str) else key

    return {"sft": as_tuple(key_sft)} | _rl(*as_tuple(key_rl))


def _rl(*keys: str) -> dict[str, tuple[str, ...]]:
    return {"rl": keys}


def _lists(*keys: str) -> dict[str, tuple[str, ...]]:
    return {"lists": keys}


def _sft(*keys: str) -> dict[str, tuple[str, ...]]:
    return {"sft": keys}


TRACKERS = ("console", "file", "swanlab", "wandb", "tensorboard", "mlflow", "clearml", "trackio")  # verl's, of use here

VARIABLES: tuple[Variable, ...] = (
    Variable(
        "MODEL_PATH",
        _both("model.path", "actor_rollout_ref.model.path"),
        _path,
        "Qwen/Qwen2.5-0.5B-Instruct",
        "a Hugging Face id or folder, or a run folder of ours (its last step; RUN/global_step_N names one)",
    ),
    Variable(
        "TRAIN_FILE", _both("data.train_files", "data.train_files"), _absolute, "data/reddit_v2/...", "training parquet"
    ),
    Variable(
        "VAL_FILE", _both("data.val_files", "data.val_files"), _absolute, "data/reddit_v2/...", "validation parquet"
    ),
    Variable(
        "CATALOG_FILE", _lists("convrec.catalog_file"), _absolute, "data/reddit_v2/catalog.parquet", "the catalog"
    ),
    Variable(
        "SAVE_PATH",
        _both("trainer.default_local_dir", "trainer.default_local_dir"),
        _absolute,
        "checkpoints/<recipe>/<model>",
        "the run folder: checkpoints, metrics, log; an unfinished run there is resumed",
    ),
    Variable(
        "SAVE_FREQ",
        _both("trainer.save_freq", "trainer.save_freq"),
        _positive_int,
        "100 / 200",
        "steps between checkpoints; the last step is always saved",
    ),
    Variable(
        "TEST_FREQ",
        _both("trainer.test_freq", "trainer.test_freq"),
        _integer,
        "100 / 200",
        "steps between validations; -1: SFT validates at the end alone, RL never",
    ),
    Variable(
        "SAVE_KEEP",
        _both("trainer.max_ckpt_to_keep", "trainer.max_actor_ckpt_to_keep"),
        _count_or_all,
        "all / 3",
        "newest checkpoints to keep, or all; the best by validation is kept besides",
    ),
    Variable(
        "N_GPUS_PER_NODE",
        _both("trainer.n_gpus_per_node", "trainer.n_gpus_per_node"),
        _positive_int,
        "what the machine has",
        "accelerators of each node",
    ),
    Variable("N_NODES", _both("trainer.nnodes", "trainer.nnodes"), _positive_int, "1", "nodes"),
    Variable(
        "TENSOR_PARALLEL",
        _rl("actor_rollout_ref.rollout.tensor_model_parallel_size"),
        _positive_int,
        "1",
        "GPUs a rollout replica spans",
    ),
    Variable(
        "GPU_MEMORY_UTILIZATION",
        _rl("actor_rollout_ref.rollout.gpu_memory_utilization"),
        _fraction,
        "0.5",
        "share of GPU memory vLLM takes",
    ),
    Variable(
        "TRAIN_BATCH_SIZE",
        _both("data.train_batch_size", "data.train_batch_size"),
        _positive_int,
        "96 sequences a device / 48 prompts",
        "sequences (SFT) or prompts (RL) of a step",
    ),
    Variable("ROLLOUT_N", _rl("actor_rollout_ref.rollout.n"), _positive_int, "8", "rollouts of a prompt (G)"),
    Variable(
        "LR", _both("optim.lr", "actor_rollout_ref.actor.optim.lr"), _positive_float, "5e-5 / 1e-6", "learning rate"
    ),
    Variable(
        "KL_LOSS_COEF", _rl("actor_rollout_ref.actor.kl_loss_coef"), _non_negative_float, "0.001", "KL to the start"
    ),
    Variable("MU", _rl("actor_rollout_ref.actor.ppo_epochs"), _positive_int, "1", "updates of a rollout batch"),
    Variable("REWARD", _lists("convrec.reward"), _reward, DEFAULT_REWARD, f"rank return: {REWARD.wanted}"),
    Variable(
        "REWARDS",
        _lists("convrec.rewards"),
        _rewards,
        "unset: REWARD alone",
        "a reward of several parts: `relevance: 1, diversity: 0.3`, say",
    ),
    Variable(
        "ALGORITHM",
        _lists("algorithm_preset"),
        _one_of(ALGORITHMS),
        "rank_grpo",
        "the method or a baseline: " + ", ".join(ALGORITHMS),
    ),
    Variable(
        "PRESET",
        _lists("convrec.preset"),
        _one_of(("paper", "reference")),
        "paper",
        "eq. 6, or the public code's behaviour",
    ),
    Variable(
        "CONSTRAINED",
        _lists("convrec.constrained"),
        _switch,
        "0",
        "1: lists hold unseen items of the catalog only, in sampling and in training",
    ),
    Variable("NUM_ITEMS", _lists("convrec.num_items"), _positive_int, "20", "items of a list = ranks (N)"),
    Variable("TOTAL_EPOCHS", _both("trainer.total_epochs", "trainer.total_epochs"), _positive_int, "10 / 2", "epochs"),
    Variable(
        "TOTAL_STEPS",
        _both("trainer.total_training_steps", "trainer.total_training_steps"),
        _positive_int,
        "unset",
        "steps; wins over epochs",
    ),
    Variable("MAX_PROMPT_LENGTH", _rl("data.max_prompt_length"), _positive_int, "2048", "tokens of a prompt"),
    Variable("MAX_RESPONSE_LENGTH", _rl("data.max_response_length"), _positive_int, "1024", "tokens of a response"),
    Variable("MAX_LENGTH", _sft("data.max_length"), _positive_int, "1024", "tokens of prompt and completion (SFT)"),
    Variable(
        "LOGGER",
        _both("trainer.logger", "trainer.logger"),
        _some_of(*TRACKERS),
        "console, plus swanlab when its key is set",
        f"verl's trackers, comma-separated: {', '.join(TRACKERS)}",
    ),
    Variable(
        "WATCHDOG",
        _both("convrec.watchdog", "convrec.watchdog"),
        _one_of(("end", "resume", "off")),
        "end",
        "what follows when a phase of a step hangs: the run ends (status 75), is resumed, or nothing",
    ),
    Variable(
        "SEED",
        _both(("trainer.seed", "data.seed"), "data.seed"),
        _seed,
        "3407",
        "of data order and sampling",
    ),
)


# pointwise / pairwise, where it is not the default above
JUDGE_DEFAULTS = {
    "MODEL_PATH": "Qwen/Qwen3-8B",
    "TRAIN_FILE": "data/judge/<mode>/train.parquet",
    "VAL_FILE": "data/judge/<mode>/validation.parquet",
    "SAVE_PATH": "checkpoints/judge_<mode>/<model>",
    "SAVE_FREQ": "20",
    "SAVE_KEEP": "3",
    "TEST_FREQ": "10 / 4",
    "TENSOR_PARALLEL": "N_GPUS_PER_NODE",
    "GPU_MEMORY_UTILIZATION": "0.6",
    "TRAIN_BATCH_SIZE": "96 prompts",
    "ROLLOUT_N": "4",
    "LR": "1e-6",
    "TOTAL_EPOCHS": "1 / 30",
    "MAX_PROMPT_LENGTH": "4096",
    "MAX_RESPONSE_LENGTH": "2048",
}
# where it is not the help above
JUDGE_HELP = {
    "MU": "passes over a rollout batch, of four updates each (of one where TRAIN_BATCH_SIZE is no multiple of 4)",
}


def defaults_of(recipe: Recipe) -> dict[str, tuple[str, str]]:
    """Of the recipe's variables: name -> (its default there, what it is)."""
    place = list(recipe.variables) != ["sft"]  # "SFT / RL"; of judges "pointwise / pairwise"
    is_judge = recipe.answers == "verdicts"
    rows = {}
    for variable in VARIABLES:
        if variable.keys_of(recipe):
            default = JUDGE_DEFAULTS.get(variable.name, variable.default) if is_judge else variable.default
            parts = default.split(" / ")
            which = recipe.name.endswith("pairwise") if is_judge and variable.name in JUDGE_DEFAULTS else place
            text = JUDGE_HELP.get(variable.name, variable.help) if is_judge else variable.help
            rows[variable.name] = (parts[which] if len(parts) == 2 else default, text)
    return rows


def overrides_from_environment(recipe: Recipe, environment: Mapping[str, str]) -> list[str]:
    """Hydra overrides for every variable that is set, in the table's order.

    Raises UserError naming the variable, its value and what it takes.
    """
    overrides = []
    for variable in VARIABLES:
        text = environment.get(variable.name, "").strip()
        keys = variable.keys_of(recipe)
        if not text or not keys:
            continue
        try:
            value = variable.parse(text)
        except ValueError as error:
            raise UserError(f"{variable.name}={text}: expected {error}") from None
        overrides += [f"{key}={value}" for key in keys]
    return overrides


def markdown_table() -> str:
    """The table of docs/reference/variables.md: a row a variable, and who reads it."""
    rows = ["| variable | SFT | RL | default (SFT / RL) | what |", "|---|---|---|---|---|"]
    for variable in VARIABLES:
        marks = " | ".join("yes" if variable.keys_of(recipe) else "" for recipe in (SFT, RANK_GRPO))
        rows.append(f"| `{variable.name}` | {marks} | {variable.default} | {variable.help} |")
    return "\n".join(rows)


def judge_table() -> str:
    """Likewise: the variables of the judges' recipes."""
    rows = ["| variable | default (pointwise / pairwise) | what |", "|---|---|---|"]
    for variable in VARIABLES:
        if variable.keys_of(POINTWISE_JUDGE):
            default = JUDGE_DEFAULTS.get(variable.name, variable.default)
            rows.append(f"| `{variable.name}` | {default} | {JUDGE_HELP.get(variable.name, variable.help)} |")
    return "\n".join(rows)
