"""Phase `versions`: the packages fit together, and which they and the GPUs are."""

import os
import platform
from importlib import metadata
from typing import Any

import psutil

from convrec.runs.starts import installed_version
from recipes.preflight.findings import version_findings
from recipes.preflight.node import PINNED
from recipes.selftest.checks import CheckFailed, Machine


def versions(machine: Machine) -> dict[str, Any]:
    problems = [f for f in version_findings("here") if f.status == "failure"]
    if problems:
        raise CheckFailed("; ".join(finding.what for finding in problems))
    import torch

    found = {name: installed_version(name) for name in (*PINNED, "flash-attn", "triton", "numpy", "peft")}
    return {name: version for name, version in found.items() if version} | {
        "python": platform.python_version(),
        "convrec": metadata.version("convrec"),
        "cuda": torch.version.cuda,
        "kernel": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
        "memory, GiB": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": [str(torch.cuda.get_device_properties(number)) for number in range(machine.gpus)],
    }
