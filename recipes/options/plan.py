"""Options of `convrec plan`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from convrec.base.options import PositiveInteger, PositiveNumber


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Estimate a run on any cluster: steps, hours, memory, checkpoints, network, and the parts of a step's time.

    Nothing is measured; the estimate is computed from the ranges that it prints. Variables of the recipes and Hydra
    overrides apply as in a training. docs/explanation/planning.md

    convrec plan --model 8B --gpu H100 --rows 100000 --val-rows 1000
    """

    COMMAND: ClassVar[str] = "plan"

    overrides: Sequence[str] = field(default=(), kw_only=False)
    """Hydra overrides"""
    recipe: Literal["sft", "rank_grpo"] = "rank_grpo"
    """recipe to plan"""
    model: str | None = None
    """0.5B, 1B, 3B, 8B, 32B, 70B, a Hugging Face id or a folder (MODEL_PATH)"""
    gpu: Literal["A100", "H100", "H200"] = "H100"
    """kind of GPU"""
    network_gbit: PositiveNumber | None = None
    """network bandwidth of a node in Gbit/s (default: one adapter per GPU, as in DGX)"""
    rows: PositiveInteger | None = None
    """number of training rows (default: those of TRAIN_FILE)"""
    val_rows: PositiveInteger | None = None
    """number of validation rows (default: those of VAL_FILE)"""
    prompt_tokens: PositiveNumber | None = None
    """mean number of tokens in a prompt (400)"""
    response_tokens: PositiveNumber | None = None
    """mean number of tokens in a response (9.9 per item)"""
    json: bool = False
    """print JSON instead of text"""
