"""Hardware on which this project has run. docs/reference/models.md is this table."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TestedHardware:
    """A kind of machine.

    Attributes:
        name: of the machine.
        ran: what has run on it.
        untested: what has not.
        source: where the runs are recorded.
    """

    name: str
    ran: str
    untested: str
    source: str


TESTED_HARDWARE = (
    TestedHardware(
        name="CPU (Linux, x86-64)",
        ran="SFT, Rank-GRPO, judges, evaluation, serving; clusters of two nodes on one machine",
        untested="models above 0.5B parameters",
        source="`make test`, `make test-nightly`",
    ),
    TestedHardware(
        name="one NVIDIA H100 80GB",
        ran="`convrec gpu-check`, SFT of 2.5M parameters, evaluation",
        untested="steps of Rank-GRPO",
        source="notes/gpu.md",
    ),
    TestedHardware(
        name="one NVIDIA H200",
        ran="Rank-GRPO of 1.3M parameters, free and constrained, with checkpoints",
        untested="0.5B parameters beyond the first rollouts, resuming, judges, serving",
        source="notes/gpu.md",
    ),
    TestedHardware(
        name="several GPUs, several nodes with GPUs",
        ran="nothing",
        untested="everything; `convrec plan` estimates hours and memory",
        source="docs/explanation/status.md",
    ),
    TestedHardware(
        name="GPUs of other vendors, Windows, macOS, ARM",
        ran="nothing",
        untested="everything",
        source="",
    ),
)
