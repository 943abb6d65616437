"""Options of `convrec doctor` and `convrec submit`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from cyclopts import Parameter

Words = Annotated[Sequence[str], Parameter(metavar="RECIPE OVERRIDE...")]


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """Is a run possible here, or on that cluster? Versions, devices, data seen from every node, disk, memory, keys.

    Reads the variables of the recipes. With RAY_ADDRESS=http://head:8265 it runs there, as a job. Exit status 0 when
    nothing is wrong, else 1. The recipes ask the same before anything expensive, on every node of the run.

    convrec doctor rank_grpo trainer.nnodes=2
    """

    COMMAND: ClassVar[str] = "doctor"

    words: Words = field(default=(), kw_only=False)
    """sft, rank_grpo, judge_pointwise or judge_pairwise (rank_grpo), and Hydra overrides"""
    json: bool = False
    """print JSON instead of text"""


@dataclass(frozen=True, kw_only=True)
class SubmitOptions:
    """`ray job submit` of a recipe to a cluster, followed to its end: a training where RAY_ADDRESS is an http address.

    What travels: recipes/cluster/job_environment.py. Ctrl-C asks the job to save and end; a second one ends it at once;
    a third stops waiting for that. RAY_ADDRESS=http://head:8265 says which cluster.

    convrec submit rank_grpo --detach trainer.nnodes=2
    convrec submit --follow JOB
    convrec submit --stop JOB
    """

    COMMAND: ClassVar[str] = "submit"

    words: Words = field(default=(), kw_only=False)
    """sft, rank_grpo, judge_pointwise or judge_pairwise, and Hydra overrides"""
    follow: Annotated[str | None, Parameter(metavar="JOB")] = None
    """show a job's log and end with its exit status; Ctrl-C leaves the job alone"""
    stop: Annotated[str | None, Parameter(metavar="JOB")] = None
    """ask a job to save a checkpoint and end"""
    detach: bool = False
    """submit, and do not wait for the job"""
    dry_run: bool = False
    """check everything here and say what would be trained"""
    print_config: bool = False
    """print the composed settings"""
