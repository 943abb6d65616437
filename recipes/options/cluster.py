"""Options of `convrec doctor` and `convrec submit`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from cyclopts import Parameter

Words = Annotated[Sequence[str], Parameter(metavar="RECIPE OVERRIDE...")]


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """Check whether a run is possible here or on a cluster: versions, devices, data on every node, disk, memory, keys.

    Reads the variables of the recipes. With RAY_ADDRESS=http://head:8265 it runs there, as a job. The exit status is 0
    if nothing is wrong, else 1. The recipes run the same checks on every node before anything expensive.

    convrec doctor rank_grpo trainer.nnodes=2
    """

    COMMAND: ClassVar[str] = "doctor"

    words: Words = field(default=(), kw_only=False)
    """sft, rank_grpo, judge_pointwise or judge_pairwise (rank_grpo), and Hydra overrides"""
    json: bool = False
    """print JSON instead of text"""


@dataclass(frozen=True, kw_only=True)
class SubmitOptions:
    """Submit a recipe as a Ray job and follow it to its end.

    Training commands do this if RAY_ADDRESS is an http address.

    Uploaded files and variables: recipes/cluster/job_environment.py. Ctrl-C tells the job to save and end, a second one
    ends it at once, and a third stops waiting for that. RAY_ADDRESS=http://head:8265 selects the cluster.

    convrec submit rank_grpo --detach trainer.nnodes=2
    convrec submit --follow JOB
    convrec submit --stop JOB
    """

    COMMAND: ClassVar[str] = "submit"

    words: Words = field(default=(), kw_only=False)
    """sft, rank_grpo, judge_pointwise or judge_pairwise, and Hydra overrides"""
    follow: Annotated[str | None, Parameter(metavar="JOB")] = None
    """show a job's log and exit with its status; Ctrl-C does not stop the job"""
    stop: Annotated[str | None, Parameter(metavar="JOB")] = None
    """tell a job to save a checkpoint and end"""
    detach: bool = False
    """submit without waiting for the job"""
    dry_run: bool = False
    """check everything here, and print what would be trained"""
    print_config: bool = False
    """print the composed settings"""
