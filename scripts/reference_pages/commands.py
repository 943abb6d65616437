"""commands.md: every command with its options, as `--help` prints them."""

from collections.abc import Iterator

from convrec.base.options import Record, describe_options, help_text
from recipes import cli
from recipes.launch.recipe import RECIPES, SFT, Recipe
from reference_pages.markdown import cell

TRAININGS = {recipe.command: recipe for recipe in RECIPES.values()}
TRAINING_ARGUMENTS = (
    "`--dry-run` checks everything and prints what would be trained. `--print-config` prints the composed settings.\n"
    "All other arguments are Hydra overrides. Variables: [settings.md](settings.md).\n"
)


def commands_page() -> str:
    """Return the page."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield "# Commands"
    yield (
        "`convrec COMMAND --help` prints the same, and for a training command its variables. In a checkout that is\n"
        "not installed, `python -m recipes COMMAND` is `convrec COMMAND`. How commands end:\n"
        "[exit-statuses.md](exit-statuses.md).\n"
    )
    for command, text in cli.COMMANDS.items():
        if command in TRAININGS:
            yield from _training_lines(command, text, TRAININGS[command])
            continue
        module = cli.resolve_command(command).__module__
        yield f"## convrec {command}\nModule `{module}`: {text}\n"
        yield from option_lines(cli.resolve_options(command, []))
        if command == "evaluate":
            yield "### With --judge"
            yield from option_lines(cli.resolve_options(command, ["--judge"]))


def _training_lines(command: str, text: str, recipe: Recipe) -> Iterator[str]:
    yield f"## convrec {command}\n{text}. `bash {recipe.script}` is the same.\n"
    if recipe is SFT:
        yield "A run on one device of this machine trains in the process itself; any other run trains on Ray.\n"
    yield TRAINING_ARGUMENTS


def option_lines(record: type[Record]) -> Iterator[str]:
    """Yield what `--help` prints: the text with its examples, and a row for each option.

    Raises:
        ValueError: An option has no help text.
    """
    for paragraph in help_text(record).split("\n\n"):
        yield (f"```bash\n{paragraph}\n```" if paragraph.startswith("convrec ") else paragraph) + "\n"
    yield "| option | default | meaning |\n|---|---|---|"
    for option in describe_options(record):
        if not option.help:
            raise ValueError(f"convrec {record.COMMAND}: {option.names[0]} has no help")
        choices = f": one of {', '.join(option.choices)}" if option.choices else ""
        default = "required" if option.is_required else f"`{cell(option.default)}`" if option.default else ""
        yield f"| `{'`, `'.join(option.names)}` | {default} | {cell(option.help + choices)} |"
    yield ""
