"""What an evaluation is asked for: the one record from which the command and a matrix have their options."""

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
    """A line break or tab can be written \\n, \\t."""
    return {"\\n": "\n", "\\t": "\t"}.get(text, text)


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """What the string below each field says; num_items is the command's `--num-items`.

    model None: the baselines alone. run: whose settings count, None for the run that the model is of. What is None of
    num_items, matching, delimiter, year_tolerance, fuzzy_cutoff, chat_template_kwargs and max_turns is what that run
    was trained with, of another model the default; only protocol `reference` has its own matching.
    """

    data: str
    """split to score (parquet)"""
    catalog: str
    """the catalog (parquet)"""
    out: str
    """folder for the results"""
    model: str | None = None
    """Hugging Face folder or id, run folder (its best checkpoint; RUN@last: the newest), LoRA adapter, api:NAME;
    without it: the baselines alone"""
    train: str | None = None
    """training split, for the baselines"""
    baselines: Annotated[Sequence[Baseline], AnyNumber] = ("popularity",)
    """lists made without a model, to score beside; no value: none"""
    retrieval: str | None = None
    """folder of `convrec retrieval fit`: its lists, and the model's fused with them, are scored beside"""
    weigh: bool = False
    """choose on these rows how much the model counts beside --retrieval, and note it there"""
    slices: Annotated[Sequence[str] | None, AnyNumber, Parameter(metavar="SLICE...")] = None
    """parts of the split to print: turns, wanted, popularity (metrics.json has these anyway), a column of it"""
    num_items: Integer | None = None
    """items a list should have (the run's; for another model 20)"""
    ks: Annotated[Sequence[Integer] | None, Parameter(metavar="K...")] = None
    """cut-offs of the metrics (5 10 15 20, as far as lists go)"""
    protocols: Annotated[Sequence[Protocol], Parameter(name=("--protocols", "--protocol"))] = ("paper",)
    """how a list is scored, a table each"""
    matching: MatchingName | None = None
    """how titles are matched (the run's; for another model fuzzy); protocol reference: reference"""
    year_tolerance: Integer | None = None
    """years between equal titles (the run's; for another model 2)"""
    fuzzy_cutoff: float | None = None
    """least similarity, up to 100 (the run's; for another model 90)"""
    delimiter: Annotated[str | None, read_with(unescape)] = None
    """character between items (the run's; for another model a line break, written \\n)"""
    chat_template_kwargs: JsonObject | None = None
    """JSON for the chat template (the run's; for another model no thinking, a fixed date)"""
    sampling: Sampling | None = None
    """JSON: parameters of a model behind an API (api:NAME, --user llm), '{"top_p": 0.9}'; null: not sent"""
    limit: PositiveInteger | None = None
    """only the first rows"""
    seed: Integer = 3407
    """random seed of the bootstrap"""
    max_prompt_length: PositiveInteger = 2048
    """tokens of a prompt; longer ones lose their beginning"""
    max_response_length: PositiveInteger = 1024
    """tokens of a response"""
    against: str | None = None
    """--out folder of an earlier evaluation to compare with, paired by row"""
    constrained: bool = False
    """beside the free lists: lists of the catalog only"""
    allow: str | None = None
    """--constrained: the items lists may hold, one per line, or a catalog (parquet)"""
    user: UserKind | None = None
    """who answers questions, in conversations (llm: the model of USER_BASE_URL)"""
    ask: Annotated[Sequence[str] | None, Parameter(metavar="ATTRIBUTE...")] = None
    """--user: what may be asked about, columns of the catalog or decade"""
    max_turns: PositiveInteger | None = None
    """--user: turns of the model, the last is a list (the run's; for another model 3)"""
    skip_damaged: SkipDamaged = None
    """leave damaged rows out and name them in damaged.jsonl, up to this share of the rows (0.05)"""
    replicas: Replicas = 1
    """engines side by side; auto: one for every --tensor-parallel GPUs, and one on a CPU"""
    tensor_parallel: PositiveInteger = 1
    """GPUs of one engine"""
    run: Annotated[str | None, Parameter(parse=False)] = None
    progress: Annotated[bool, Parameter(parse=False)] = True


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(EvaluationOptions):
    """Metrics of a model on a split: greedy lists from vLLM, once for each distinct prompt, scored once for each row.

    Models, options and files: docs/how-to/evaluation.md. With --sweep, --model is a run folder and all its checkpoints
    are evaluated. With --judge, it is a judge: see convrec evaluate --judge pairwise --help.

    convrec evaluate --model outputs/demo/rank_grpo --out outputs/evaluation \\
        --data outputs/demo/data/test.parquet --catalog outputs/demo/data/catalog.parquet
    """

    COMMAND: ClassVar[str] = "evaluate"

    out: str = ""
    """folder for the results; --sweep: RUN/evaluation/<name of the split>"""
    replicas: Replicas = "auto"
    """engines side by side; auto: one for every --tensor-parallel GPUs, and one on a CPU"""
    overwrite: bool = False
    """replace another model's, or data's, results in --out"""
    sweep: bool = False
    """evaluate every checkpoint of the run folder, step 0 included"""
    start: str | None = None
    """--sweep: the start model (step 0), where the run's config names another place"""


def is_for_judges(arguments: Sequence[str]) -> bool:
    """Whether the command is to evaluate a judge: it has other options then, recipes/options/judge.py."""
    return any(argument.split("=")[0] == "--judge" for argument in arguments)


def format_arguments(options: Mapping[str, Any]) -> list[str]:
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
