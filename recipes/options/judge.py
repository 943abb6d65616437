"""Options of `convrec evaluate --judge`."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from cyclopts import Parameter

from convrec.base.options import Integer, PositiveInteger, Sampling
from convrec.inference.engines.options import PlacementOptions


@dataclass(frozen=True, kw_only=True)
class JudgeEvaluationOptions:
    """Evaluate a judge on labelled rows: greedy verdicts from vLLM or an API, pairwise ones in both orders.

    Models, options and files: docs/how-to/judges.md

    convrec evaluate --judge pairwise --model checkpoints/judge \\
        --data data/judge/test.parquet --out outputs/judge
    """

    COMMAND: ClassVar[str] = "evaluate"

    mode: Annotated[Literal["pointwise", "pairwise"], Parameter(name="--judge")]
    """kind of judge"""
    model: str
    """Hugging Face folder or id, run folder (its best checkpoint; RUN@last: the newest), LoRA adapter, or api:NAME"""
    data: str
    """labelled rows (parquet)"""
    out: str
    """folder for metrics.json, rows.parquet, generations.parquet"""
    limit: PositiveInteger | None = None
    """number of rows to evaluate, from the first (default: all)"""
    seed: Integer = 3407
    """random seed of the bootstrap"""
    max_prompt_length: PositiveInteger = 4096
    """largest number of tokens in a prompt; longer ones are left out"""
    max_response_length: PositiveInteger = 2048
    """largest number of tokens in a response"""
    sampling: Sampling | None = None
    """JSON parameters for a model behind an API, '{"top_p": 0.9}'; null drops one"""
    against: str | None = None
    """--out folder of an earlier evaluation for a paired comparison"""
    overwrite: bool = False
    """replace results of another model or other data in --out"""
    placement: PlacementOptions = field(default_factory=PlacementOptions)
