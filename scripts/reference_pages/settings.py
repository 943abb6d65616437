"""settings.md: every setting of a run, with the variable that sets it."""

from collections.abc import Mapping

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from convrec.base.fields import Row, setting_rows
from convrec.base.kinds import describe_type, to_yaml_scalar
from convrec.checkpoints import plain_load
from convrec.runs import supervisor
from recipes.launch.recipe import PAIRWISE_JUDGE, POINTWISE_JUDGE, RANK_GRPO, SFT, Recipe
from recipes.launch.settings import compose_files
from recipes.serving.keys import KEY_VARIABLE
from reference_pages.markdown import BREAK, code, table

SECTIONS: Mapping[str, Mapping[str, Recipe]] = {  # heading -> recipes of one table, by the word that tells them apart
    "SFT": {"": SFT},
    "Rank-GRPO, GRPO and GSPO": {"": RANK_GRPO},
    "Judges": {"pointwise": POINTWISE_JUDGE, "pairwise": PAIRWISE_JUDGE},
}
OTHER_VARIABLES: Mapping[str, tuple[str, str]] = {  # names -> who reads them, what they do
    "RAY_ADDRESS": (
        "training, doctor, matrix",
        "unset: Ray starts on this machine. `http://HEAD:8265`: submit a job to that cluster. `HEAD:6379`: join it",
    ),
    "PYTHON": ("`run_*.sh`", "Python interpreter"),
    supervisor.SAVE_VARIABLE: (
        "training",
        "0: SIGTERM ends the run at once, without a checkpoint. Default: the first SIGTERM saves one",
    ),
    "LLM_BASE_URL, LLM_MODEL, LLM_API_KEY": (
        "`convrec demonstrations`, `convrec evaluate`",
        "OpenAI-compatible endpoint: address, name of the model, key",
    ),
    "TEACHER_BASE_URL, TEACHER_MODEL, TEACHER_API_KEY": (
        "`convrec demonstrations`",
        "endpoint for the teacher; replaces LLM_*",
    ),
    "JUDGE_BASE_URL, JUDGE_MODEL, JUDGE_API_KEY": (
        "`convrec demonstrations`, `convrec evaluate --judge`",
        "endpoint for the judge; replaces LLM_*",
    ),
    "USER_BASE_URL, USER_MODEL, USER_API_KEY": (
        "`convrec evaluate --user llm`",
        "endpoint for the simulated user; replaces LLM_*",
    ),
    KEY_VARIABLE: ("`convrec serve`", "API key; required if other machines can reach the service"),
    "SWANLAB_API_KEY": ("training", "adds swanlab to the trackers if LOGGER is unset"),
    "SWANLAB_*, WANDB_*, TENSORBOARD_DIR, MLFLOW_TRACKING_URI": (
        "training",
        "settings of the trackers; their keys decide whether a run is uploaded",
    ),
    "RAY_AUTH_MODE, RAY_AUTH_TOKEN_PATH": (
        "Ray",
        "`token`, and the token's file if it is not `~/.ray/auth_token`",
    ),
    "VERL_PLATFORM": ("training", "`nvidia` if the driver's node has no GPU and the other nodes have"),
    plain_load.VARIABLE: (
        "training",
        "0: load checkpoints that hold more than tensors and plain values. Such a file can run code",
    ),
}


def settings_page() -> str:
    """Return the page."""
    sections = [f"## {title}\n\n{_settings_table(recipes)}" for title, recipes in SECTIONS.items()]
    others = [
        (", ".join(map(code, names.split(", "))), reader, text) for names, (reader, text) in OTHER_VARIABLES.items()
    ]
    return f"""
# Settings and variables
A setting can be given in three ways:

- an environment variable: `LR=1e-6 bash run_rank_grpo.sh`;
- a Hydra override, which wins over the variable: `bash run_rank_grpo.sh actor_rollout_ref.actor.optim.lr=1e-6`;
- a keyword in [Python](../how-to/python.md): `RankGRPOConfig(learning_rate=1e-6)`.

Settings below `convrec.` are this project's. All others are verl's, and verl has more of them than this page lists:
every key of verl's config can be overridden. A wrong value or an unknown key ends the command with exit status 2 before
Ray starts. The run warns about variables whose names look like one of these. `true` and `false` may be written `1` and
`0`. `bash run_sft.sh --help` prints the variables of a recipe.

{chr(10).join(section + chr(10) for section in sections)}
## Other variables
These variables set nothing in the config of a run.

{table(("variable", "read by", "meaning"), others)}
"""


def _settings_table(recipes: Mapping[str, Recipe]) -> str:
    """Return a row for each setting that one of these recipes has. Settings with a variable come first."""
    configs = {word: compose_files(recipe, [], environment={}) for word, recipe in recipes.items()}
    rows_by_field: dict[str, dict[str, Row]] = {}
    for word, recipe in recipes.items():
        for field, row in setting_rows(recipe.settings).items():
            rows_by_field.setdefault(field, {})[word] = row
    ordered = sorted(rows_by_field.values(), key=lambda rows: not _any_row(rows).setting.variable)
    header = ("variable, setting, in Python", "default", "values and meaning")
    return table(header, (_settings_row(rows, configs) for rows in ordered))


def _any_row(rows: Mapping[str, Row]) -> Row:
    return next(iter(rows.values()))


def _settings_row(rows: Mapping[str, Row], configs: Mapping[str, DictConfig]) -> list[str]:
    row = _any_row(rows)
    setting = row.setting
    names = [setting.variable, *row.keys, row.field]
    return [
        BREAK.join(code(name) for name in names if name),
        _join_defaults({word: _describe_default(one, configs[word]) for word, one in rows.items()}),
        f"{_describe_values(row)}{BREAK}{setting.help}",
    ]


def _join_defaults(defaults: Mapping[str, str]) -> str:
    """Return the default, or each recipe's where they differ: `1` (pointwise), `30` (pairwise)."""
    if len(set(defaults.values())) == 1:
        return next(iter(defaults.values()))
    return ", ".join(f"{default} ({word})" for word, default in defaults.items() if default)


def _describe_default(row: Row, config: DictConfig) -> str:
    """Return the default as code, or in words where the machine or other settings decide it."""
    if row.default is not None:
        return code(", ".join(row.default) if isinstance(row.default, list) else to_yaml_scalar(row.default))
    if row.setting.default or row.setting.null:
        return row.setting.default or row.setting.null
    try:
        value = OmegaConf.select(config, row.keys[0])
    except OmegaConfBaseException:  # it depends on a setting that has no value before the run
        return ""
    return "" if value is None else code(to_yaml_scalar(value))


def _describe_values(row: Row) -> str:
    """Return what the setting may be, and how to write that it is unset."""
    setting = row.setting
    values = describe_type(row.kind)
    if setting.null:
        values += f", or {setting.null_word}"
    if setting.null not in ("", setting.null_word) and row.default is not None:
        values += f" ({setting.null})"
    return values
