"""Options of `convrec plan`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from convrec.base.options import PositiveInteger, PositiveNumber


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """A run on a cluster that is not here: steps, hours, memory, checkpoints, network, and where a step's time goes.

    Nothing is measured here: it is a model of the time, from the ranges that it prints. Variables of the recipes and
    Hydra overrides are read as a training reads them. docs/explanation/planning.md

    convrec plan --model 8B --gpu H100 --rows 100000 --val-rows 1000
    """

    COMMAND: ClassVar[str] = "plan"

    overrides: Sequence[str] = field(default=(), kw_only=False)
    """Hydra overrides"""
    recipe: Literal["sft", "rank_grpo"] = "rank_grpo"
    """what is trained"""
    model: str | None = None
    """0.5B, 1B, 3B, 8B, 32B, 70B, a Hugging Face id or a folder (MODEL_PATH)"""
    gpu: Literal["A100", "H100", "H200"] = "H100"
    """the kind of GPU"""
    network_gbit: PositiveNumber | None = None
    """bandwidth of a node, Gbit/s (an adapter for each GPU, as in DGX)"""
    rows: PositiveInteger | None = None
    """rows of training (those of TRAIN_FILE)"""
    val_rows: PositiveInteger | None = None
    """rows of validation (those of VAL_FILE)"""
    prompt_tokens: PositiveNumber | None = None
    """tokens of a prompt, on average (400)"""
    response_tokens: PositiveNumber | None = None
    """tokens of a response, on average (9.9 for each item)"""
    json: bool = False
    """print JSON instead of text"""
