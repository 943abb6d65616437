"""What an evaluation is asked for: the one record from which the command and a matrix have their options."""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

from convrec.data.damage import REPORT, add_skip_damaged
from convrec.features.asking.turns import MAX_TURNS
from convrec.features.asking.users import USERS
from convrec.generation.placement import add_placement
from convrec.kinds import shown
from convrec.lists.matching import MATCHERS
from convrec.lists.metrics import PROTOCOLS
from convrec.lists.settings import ListSettings
from recipes.evaluation.baselines import BASELINES
from recipes.evaluation.slices import SLICES

OF_RUN = "default: the run's, for another model"
OF_LISTS = {name: f"{OF_RUN} {shown(value)}" for name, value in asdict(ListSettings()).items()}


def option(help: str, default: Any = None, **argument: Any) -> Any:
    """A field that is an option of the command; argument: as `add_argument` takes it."""
    return field(default=default, metadata={"help": help} | argument)


def delimiter(text: str) -> str:
    """A line break or tab can be written \\n, \\t."""
    return {"\\n": "\n", "\\t": "\t"}.get(text, text)


def json_object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(text)
    return value


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """What a help text says of each; num_items is the command's `--num-items`.

    model None: the baselines alone. run: whose settings count, None for the run that the model is of. What is None of
    num_items, matching, delimiter, year_tolerance, fuzzy_cutoff, chat_template_kwargs and max_turns is what that run
    was trained with, of another model the default; only protocol `reference` has its own matching.
    """

    model: str | None = option(
        "Hugging Face folder or id, run folder, LoRA adapter, api:NAME; without it: the baselines alone"
    )
    data: str = option("split to score (parquet)", MISSING)
    catalog: str = option("the catalog (parquet)", MISSING)
    train: str | None = option("training split, for the baselines")
    out: str = option("folder for the results; --sweep: RUN/evaluation/<name of the split>", MISSING)
    baselines: Sequence[str] = option(
        "lists made without a model, to score beside (popularity)", ("popularity",), nargs="*", choices=BASELINES
    )
    retrieval: str | None = option(
        "folder of `convrec retrieval fit`: its lists, and the model's fused with them, are scored beside"
    )
    weigh: bool = option("choose on these rows how much the model counts beside --retrieval, and note it there", False)
    slices: Sequence[str] | None = option(
        f"parts of the split to print: {', '.join(SLICES)} (metrics.json has these anyway), a column of it",
        nargs="*",
        metavar="SLICE",
    )
    num_items: int | None = option(f"items a list should have ({OF_LISTS['num_items']})", type=int)
    ks: Sequence[int] | None = option("default: 5 10 15 20, as far as lists go", type=int, nargs="+")
    protocols: Sequence[str] = option(
        "how a list is scored, a table each (paper)",
        ("paper",),
        names=("--protocols", "--protocol"),
        nargs="+",
        choices=PROTOCOLS,
    )
    matching: str | None = option(f"{OF_LISTS['matching']}; protocol reference: reference", choices=MATCHERS)
    year_tolerance: int | None = option(f"years between equal titles ({OF_LISTS['year_tolerance']})", type=int)
    fuzzy_cutoff: float | None = option(f"least similarity, up to 100 ({OF_LISTS['fuzzy_cutoff']})", type=float)
    delimiter: str | None = option(f"character between items ({OF_LISTS['delimiter']})", type=delimiter)
    chat_template_kwargs: Mapping[str, Any] | None = option(
        f"JSON ({OF_RUN} no thinking, a fixed date)", type=json_object
    )
    limit: int | None = option("only the first rows", type=int)
    seed: int = option("of the bootstrap (%(default)s)", 3407, type=int)
    max_prompt_length: int = option("tokens (%(default)s)", 2048, type=int)
    max_response_length: int = option("tokens (%(default)s)", 1024, type=int)
    against: str | None = option("--out folder of an earlier evaluation to compare with, row by row")
    constrained: bool = option("beside the free lists: lists of the catalog only", False)
    allow: str | None = option("--constrained: the items lists may hold, one a line, or a catalog (parquet)")
    user: str | None = option("who answers questions, in conversations (llm: behind USER_BASE_URL)", choices=USERS)
    ask: Sequence[str] | None = option("--user: what may be asked about, columns of the catalog or decade", nargs="+")
    max_turns: int | None = option(f"--user: turns of the model, the last is a list ({OF_RUN} {MAX_TURNS})", type=int)
    # of options that other commands have too, or that no command has
    skip_damaged: float | None = None
    replicas: int | str = 1
    tensor_parallel: int = 1
    run: str | None = None
    progress: bool = True


def add_options(parser: argparse.ArgumentParser, optional: Sequence[str] = ()) -> None:
    """The options of the command; optional: what a record needs and the command does not."""
    for one in fields(EvaluationOptions):
        if "help" not in one.metadata:
            continue
        argument = dict(one.metadata)
        names = argument.pop("names", [f"--{one.name.replace('_', '-')}"])
        if one.type is bool:
            argument["action"] = "store_true"
        elif one.default is MISSING:
            argument["required"] = one.name not in optional
        else:
            argument["default"] = one.default
        parser.add_argument(*names, **argument)
    add_skip_damaged(parser, f"leave damaged rows out and name them in {REPORT}")
    add_placement(parser)


def arguments_of(options: Mapping[str, Any]) -> list[str]:
    """These options as the command takes them."""
    arguments = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            arguments += [flag] if value else []
        elif isinstance(value, list):
            arguments += [flag, *map(str, value)]
        elif value is not None:
            arguments.append(f"{flag}={json.dumps(value) if isinstance(value, dict) else value}")
    return arguments
