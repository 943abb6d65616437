"""Options of `convrec plot` and `convrec report`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from cyclopts import Parameter


@dataclass(frozen=True, kw_only=True)
class PlotOptions:
    """Plot comparable curves of one or more runs, as in the paper's figures 2-6. docs/how-to/sweep-and-report.md

    convrec plot outputs/demo/sft outputs/demo/rank_grpo --out outputs/plots
    """

    COMMAND: ClassVar[str] = "plot"

    runs: Annotated[Sequence[Path], Parameter(metavar="RUN...")] = field(kw_only=False)
    """run folders (SAVE_PATH)"""
    out: Path = Path("outputs/plots")
    """folder to write"""
    split: str | None = None
    """split whose sweep to show, if a run has several"""


def _read_folders(_: Any, tokens: Sequence[Any]) -> dict[str, Path]:
    """Parse NAME=FOLDER into {name: folder}."""
    folders = {}
    for token in tokens:
        name, sign, folder = token.value.partition("=")
        if not sign:
            raise ValueError("NAME=FOLDER for each evaluation")
        folders[name] = Path(folder)
    return folders


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Write an HTML report about one or more runs: gains, test metrics, curves, lists with their hits, settings.

    Test metrics and lists come from sweeps: for one run those of its initial model and newest checkpoint, for several
    runs those of their newest checkpoints. --evaluations names other evaluations instead. Each model is compared with
    the one that its run started from; if that one is not in the report, with the first.

    convrec report outputs/demo/rank_grpo --out outputs/report.html
    """

    COMMAND: ClassVar[str] = "report"

    runs: Annotated[Sequence[Path], Parameter(metavar="RUN...")] = field(kw_only=False)
    """run folders (SAVE_PATH)"""
    out: Path = Path("outputs/report.html")
    """file to write"""
    evaluations: Annotated[
        Mapping[str, Path],
        Parameter(
            converter=_read_folders,
            n_tokens=-1,
            consume_multiple=(1, None),
            accepts_keys=False,
            metavar="NAME=FOLDER...",
        ),
    ] = field(default_factory=dict)
    """evaluations to show instead of the runs' sweeps"""
    split: str | None = None
    """split whose sweep to show, if a run has several"""
