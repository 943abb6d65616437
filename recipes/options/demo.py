"""Options of `convrec demo`."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from convrec.options import PositiveInteger


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """The whole method, small, on a CPU: sample data, a tiny model, SFT, Rank-GRPO, evaluations and a report.

    An interrupted demo continues where it was; a finished one is left alone.

    convrec demo --out outputs/demo
    """

    COMMAND: ClassVar[str] = "demo"

    out: Path = Path("outputs/demo")
    """folder to write"""
    sft_steps: PositiveInteger = 450
    """steps of SFT"""
    rl_steps: PositiveInteger = 48
    """steps of Rank-GRPO"""
