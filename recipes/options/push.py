"""Options of `convrec push`."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from cyclopts import Parameter


@dataclass(frozen=True, kw_only=True)
class PushOptions:
    """Upload a run's checkpoint to the Hugging Face Hub, with a card of its data, metrics and commands.

    The checkpoint is the run's best by validation, or the newest if none was validated; RUN@last and RUN/global_step_N
    name another one. The token is HF_TOKEN, or that of `hf auth login`.

    convrec push outputs/demo/rank_grpo my-org/demo --dry-run
    """

    COMMAND: ClassVar[str] = "push"

    run: Annotated[str, Parameter(metavar="RUN")] = field(kw_only=False)
    """run folder (its best checkpoint), RUN@last, or RUN/global_step_N"""
    repository: Annotated[str, Parameter(metavar="ORG/NAME")] = field(kw_only=False)
    """repository on the Hub, created if it does not exist"""
    revision: str = ""
    """branch to commit to (default: the main one)"""
    private: bool = False
    """make a new repository private"""
    dry_run: bool = False
    """print the files and the card without uploading"""
