"""The help of the training commands, made from the table of settings without composing a config."""

from typing import Any

from convrec.base.fields import Row
from convrec.base.kinds import describe_type, to_yaml_scalar
from recipes.launch.recipe import Recipe
from recipes.launch.variables import VARIABLES


def format_training_help(recipe: Recipe) -> str:
    """Return the help of a recipe: its usage, its flags, and its environment variables with their defaults."""
    defaults = describe_defaults(recipe)
    rows = [
        (variable.name, defaults[variable.name], f"{variable.help} [{describe_type(variable.kind)}]")
        for variable in VARIABLES
        if variable.name in defaults
    ]
    name_width = max(len(name) for name, _, _ in rows)
    default_width = max(len(default) for _, default, _ in rows)
    table = [f"  {name:{name_width}}  {default:{default_width}}  {text}" for name, default, text in rows]
    return "\n".join(
        [
            f"usage: [VARIABLE=value ...] bash {recipe.script} [--dry-run] [--print-config] [hydra overrides]",
            "",
            "  --dry-run       check everything and print the plan: steps, checkpoints, memory, hours",
            "  --print-config  print the whole config, before interpolation",
            "",
            "Variables with their default, meaning and [allowed values]:",
            *table,
            "",
            "With RAY_ADDRESS=http://head:8265 the run is submitted to that cluster, and its log is followed.",
        ]
    )


def describe_defaults(recipe: Recipe) -> dict[str, str]:
    """Return the default of each variable that the recipe reads.

    Returns:
        Variable -> its default as the help shows it: a value, or words for one that depends on other settings.
    """
    rows = [row for row in recipe.rows.values() if row.setting.variable]
    return {row.setting.variable: _default_text(row) for row in rows}


def _default_text(row: Row) -> str:
    if row.default is not None:
        return _to_words(row.default)
    return row.setting.default or row.setting.null


def _to_words(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else to_yaml_scalar(value)
