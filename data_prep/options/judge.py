"""Options of `convrec data judge`, `data judge-demonstrations` and `data judge-sample`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from cyclopts import Parameter

from convrec.base.options import FiniteNumber, Integer, PositiveInteger
from data_prep.options.own import READABLE

Mode = Literal["pointwise", "pairwise"]
FormatName = Literal[
    "rows",
    "reward_bench_2",
    "chosen_rejected",
    "response_a_b",
    "judge_bench",
    "llmbar",
    "helpsteer2_preference",
    "helpsteer3",
    "ratings",
    "ultra_feedback",
]


@dataclass(frozen=True, kw_only=True)
class JudgeOptions:
    """Convert preferences and ratings to the rows that judges are trained and evaluated on. docs/how-to/judge-data.md

    convrec data judge --mode pairwise --input preferences.jsonl --out data/judge
    """

    COMMAND: ClassVar[str] = "data judge"

    mode: Mode
    """verdict of the judge: a score (pointwise) or the better response (pairwise)"""
    inputs: Annotated[Sequence[str], Parameter(name="--input", metavar="FILE...", help=READABLE)]
    out: str
    """folder to write; must not exist"""
    form: Annotated[FormatName | None, Parameter(name="--format")] = None
    """format of the records (guessed from their columns)"""
    criteria: str | None = None
    """YAML file with task, principles and scores (the defaults)"""
    chosen_score: Integer | None = None
    """pointwise: score of the chosen response (the highest)"""
    rejected_score: Integer | None = None
    """pointwise: score of the rejected response (the lowest)"""
    both_orders_in_train: Annotated[bool, Parameter(name="--both-orders")] = False
    """pairwise: write both orders into train"""
    validation_share: FiniteNumber | None = None
    """share of the queries for validation (0.1; 0 with --test-share 1)"""
    test_share: FiniteNumber = 0.1
    """share of the queries for test; 1 for a benchmark"""
    seed: Integer = 3407
    """random seed for the order of the responses and for the splits"""


@dataclass(frozen=True, kw_only=True)
class JudgeDemonstrationsOptions:
    """Make SFT demonstrations for judges. docs/how-to/judge-data.md

    convrec data judge-demonstrations --mode pairwise --data data/judge/train.parquet \\
        --out data/judge/sft_train.parquet
    """

    COMMAND: ClassVar[str] = "data judge-demonstrations"

    mode: Mode
    """kind of judge that --data is for"""
    data: str
    """judge rows (parquet)"""
    out: str
    """parquet to write; must not exist"""
    answers: str | None = None
    """rows.parquet of another judge's evaluation on --data"""


@dataclass(frozen=True, kw_only=True)
class JudgeSampleOptions:
    """Generate judge data with a learnable rule: does the film have the genre that the user asks for?

    Writes --out/pairwise and --out/pointwise (train, validation, test) from generated preferences and ratings.

    convrec data judge-sample --out data/judge_sample
    """

    COMMAND: ClassVar[str] = "data judge-sample"

    out: str
    """folder to write; must not exist"""
    count: PositiveInteger = 2000
    """number of preferences, and of ratings"""
    seed: Integer = 3407
    """random seed for the texts"""
