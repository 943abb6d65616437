"""Phases `versions` and `device`: the packages fit together, and the GPU computes."""

import os
import platform
from importlib import metadata
from typing import Any

from recipes.preflight.findings import version_findings
from recipes.preflight.node import PINNED, installed_version
from recipes.selftest.checks import CheckFailed, Machine, require_at_most


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
        "cores": len(os.sched_getaffinity(0)),
    }


def device(machine: Machine) -> dict[str, Any]:
    """vLLM's compiled kernels and torch's matrix product against torch in fp32, on each GPU."""
    import torch
    import vllm._custom_ops as operations

    figures: dict[str, Any] = {}
    for number in range(machine.gpus):
        with torch.cuda.device(number):
            x = torch.randn(64, 896, device="cuda", dtype=torch.bfloat16)
            weight = torch.ones(896, device="cuda", dtype=torch.bfloat16)
            norm, activated = torch.empty_like(x), torch.empty_like(x[:, :448]).contiguous()
            operations.rms_norm(norm, x, weight, 1e-6)
            torch.ops._C.silu_and_mul(activated, x)
            gate, up = x.float().chunk(2, dim=1)
            wanted = {
                "rms_norm": (norm, torch.nn.functional.rms_norm(x.float(), (896,), None, 1e-6)),
                "silu_and_mul": (activated, torch.nn.functional.silu(gate) * up),
                "matmul": (x @ x.T, x.float() @ x.float().T),
            }
            for name, (found, expected) in wanted.items():
                difference = float(((found.float() - expected).abs() / (1 + expected.abs())).max())
                require_at_most(f"{name}'s relative difference to fp32", difference, 0.02)
            free, total = torch.cuda.mem_get_info()
            major, minor = torch.cuda.get_device_capability()
            figures[f"gpu {number}"] = {
                "name": torch.cuda.get_device_name(),
                "capability": f"{major}.{minor}",
                "gib": round(total / 2**30, 1),
                "free gib": round(free / 2**30, 1),
            }
    return figures
