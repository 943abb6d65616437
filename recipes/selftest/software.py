"""Phase `versions`: packages are compatible; reports their versions and the GPUs."""

import os
import platform
from importlib import metadata
from typing import Any

import psutil

from convrec.runs.starts import installed_version
from recipes.preflight.findings import version_findings
from recipes.preflight.node import PINNED
from recipes.selftest.checks import CheckFailed, Machine


def check_versions(machine: Machine) -> dict[str, Any]:
    """Check that packages are compatible.

    Returns:
        The versions of packages, and the hardware.

    Raises:
        CheckFailed: a package is missing or has another version.
    """
    problems = [finding for finding in version_findings("here") if finding.status == "failure"]
    if problems:
        raise CheckFailed("; ".join(finding.what for finding in problems))
    import torch

    installed = {name: installed_version(name) for name in (*PINNED, "flash-attn", "triton", "numpy", "peft")}
    return {name: version for name, version in installed.items() if version} | {
        "python": platform.python_version(),
        "convrec": metadata.version("convrec"),
        "cuda": torch.version.cuda,
        "kernel": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
        "memory, GiB": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": [str(torch.cuda.get_device_properties(number)) for number in range(machine.gpus)],
    }
