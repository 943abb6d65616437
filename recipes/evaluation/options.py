"""Options of an evaluation, one record for the command and for matrices."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from cyclopts import Parameter

from convrec.base.options import AnyNumber, Integer, JsonObject, PositiveInteger, Sampling, read_with
from convrec.data.options import SkipDamaged
from convrec.inference.engines.options import Replicas

Baseline = Literal["popularity", "retrieval", "neighbours", "ease"]
Protocol = Literal["paper", "strict", "reference"]
MatchingName = Literal["fuzzy", "lenient", "exact", "reference"]
UserKind = Literal["rule", "random", "other", "llm"]


def unescape(text: str) -> str:
    """Replace the two characters \\n by a line break and \\t by a tab; return other text as it is."""
    return {"\\n": "\n", "\\t": "\t"}.get(text, text)


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """Options of an evaluation; the string below each field is its help, num_items is `--num-items`.

    With model None, only the baselines are evaluated. `run` is the run whose settings apply, by default the run that
    trained the model. num_items, matching, delimiter, year_tolerance, fuzzy_cutoff, chat_template_kwargs and max_turns
    default (None) to the settings of that run, for any other model to the package's; protocol `reference` has its own
    matching.
    """

    data: str
    """split to score (parquet)"""
    catalog: str
    """the catalog (parquet)"""
    out: str
    """folder for the results"""
    model: str | None = None
    """Hugging Face folder or id, run folder (its best checkpoint; RUN@last: the newest), LoRA adapter, or api:NAME;
    none: evaluate the baselines only"""
    train: str | None = None
    """training split, for the baselines"""
    baselines: Annotated[Sequence[Baseline], AnyNumber] = ("popularity",)
    """baselines to score along with the model; no value turns them off"""
    retrieval: str | None = None
    """folder of `convrec retrieval fit`; scores its lists, and their fusion with the model's, too"""
    weigh: bool = False
    """choose the model's weight in the fusion with --retrieval on these rows, and store it in that folder"""
    slices: Annotated[Sequence[str] | None, AnyNumber, Parameter(metavar="SLICE...")] = None
    """slices to print: turns, wanted, popularity (always in metrics.json), or a column of the split"""
    num_items: Integer | None = None
    """number of items in a list (default: the run's; other models: 20)"""
    ks: Annotated[Sequence[Integer] | None, Parameter(metavar="K...")] = None
    """cut-offs of the metrics (default 5 10 15 20, up to --num-items)"""
    protocols: Annotated[Sequence[Protocol], Parameter(name=("--protocols", "--protocol"))] = ("paper",)
    """scoring protocols, one table each"""
    matching: MatchingName | None = None
    """matching of titles (protocol reference: reference; default: the run's; other models: fuzzy)"""
    year_tolerance: Integer | None = None
    """largest difference in years between equal titles (default: the run's; other models: 2)"""
    fuzzy_cutoff: float | None = None
    """smallest similarity of a fuzzy match, up to 100 (default: the run's; other models: 90)"""
    delimiter: Annotated[str | None, read_with(unescape)] = None
    """character between items (default: the run's; other models: a line break, written \\n)"""
    chat_template_kwargs: JsonObject | None = None
    """JSON arguments of the chat template (default: the run's; other models: no thinking, a fixed date)"""
    sampling: Sampling | None = None
    """JSON parameters for models behind an API (api:NAME, --user llm), '{"top_p": 0.9}'; null drops one"""
    limit: PositiveInteger | None = None
    """number of rows to evaluate, from the first (default: all)"""
    seed: Integer = 3407
    """random seed of the bootstrap"""
    max_prompt_length: PositiveInteger = 2048
    """largest number of tokens in a prompt; longer prompts lose their beginning"""
    max_response_length: PositiveInteger = 1024
    """largest number of tokens in a response"""
    against: str | None = None
    """--out folder of an earlier evaluation for a paired comparison"""
    constrained: bool = False
    """also generate lists that are constrained to the catalog"""
    allow: str | None = None
    """--constrained: file with the allowed items, one per line, or a catalog (parquet)"""
    user: UserKind | None = None
    """simulated user that answers the model's questions (llm: the model at USER_BASE_URL)"""
    ask: Annotated[Sequence[str] | None, Parameter(metavar="ATTRIBUTE...")] = None
    """--user: attributes to ask about, columns of the catalog or decade"""
    max_turns: PositiveInteger | None = None
    """--user: number of turns of the model, of which the last is a list (default: the run's; other models: 3)"""
    skip_damaged: SkipDamaged = None
    """leave out damaged rows, up to this share of the rows (0.05), and name them in damaged.jsonl"""
    replicas: Replicas = 1
    """number of parallel engines; auto: one per --tensor-parallel GPUs, and one on a CPU"""
    tensor_parallel: PositiveInteger = 1
    """number of GPUs per engine"""
    run: Annotated[str | None, Parameter(parse=False)] = None
    progress: Annotated[bool, Parameter(parse=False)] = True


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(EvaluationOptions):
    """Compute a model's metrics on a split: one greedy list from vLLM per distinct prompt, one score per row.

    Models, options and files: docs/how-to/evaluate.md. With --sweep, --model is a run folder, and all its checkpoints
    are evaluated. With --judge, the model is a judge: see convrec evaluate --judge pairwise --help.

    convrec evaluate --model outputs/demo/rank_grpo --out outputs/evaluation \\
        --data outputs/demo/data/test.parquet --catalog outputs/demo/data/catalog.parquet
    """

    COMMAND: ClassVar[str] = "evaluate"

    out: str = ""
    """folder for the results; --sweep: RUN/evaluation/<name of the split>"""
    replicas: Replicas = "auto"
    """number of parallel engines; auto: one per --tensor-parallel GPUs, and one on a CPU"""
    overwrite: bool = False
    """replace results of another model or other data in --out"""
    sweep: bool = False
    """evaluate every checkpoint of the run folder, including step 0"""
    start: str | None = None
    """--sweep: the initial model (step 0), if it is no longer where the run's config says"""


def is_for_judges(arguments: Sequence[str]) -> bool:
    """Return whether the arguments ask for a judge, whose options are those of recipes/options/judge.py."""
    return any(argument.split("=")[0] == "--judge" for argument in arguments)


def format_arguments(options: Mapping[str, Any]) -> list[str]:
    """Format options as arguments of `convrec evaluate`."""
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
