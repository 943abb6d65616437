"""Options of `convrec evaluate --judge`."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from cyclopts import Parameter

from convrec.base.options import Integer, PositiveInteger, Sampling
from convrec.inference.engines.options import PlacementOptions


@dataclass(frozen=True, kw_only=True)
class JudgeEvaluationOptions:
    """How good a judge is on labelled rows: greedy verdicts of vLLM or of an API, pairwise ones in both orders.

    Models, options and files: docs/how-to/judges.md

    convrec evaluate --judge pairwise --model checkpoints/judge \\
        --data data/judge/test.parquet --out outputs/judge
    """

    COMMAND: ClassVar[str] = "evaluate"

    mode: Annotated[Literal["pointwise", "pairwise"], Parameter(name="--judge")]
    """the kind of judge"""
    model: str
    """Hugging Face folder or id, run folder (its best checkpoint; RUN@last: the newest), LoRA adapter, api:NAME"""
    data: str
    """labelled rows (parquet)"""
    out: str
    """folder for metrics.json, rows.parquet, generations.parquet"""
    limit: PositiveInteger | None = None
    """only the first rows"""
    seed: Integer = 3407
    """random seed of the bootstrap"""
    max_prompt_length: PositiveInteger = 4096
    """tokens of a prompt"""
    max_response_length: PositiveInteger = 2048
    """tokens of a response"""
    sampling: Sampling | None = None
    """JSON: parameters of the model behind an API, '{"top_p": 0.9}'; null: not sent"""
    against: str | None = None
    """--out folder of an earlier evaluation to compare with, paired by row"""
    overwrite: bool = False
    """replace another model's, or data's, results in --out"""
    placement: PlacementOptions = field(default_factory=PlacementOptions)
