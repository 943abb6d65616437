"""Free memory of a host without a GPU, and the largest micro-batch that fits into it."""

import os
from bisect import bisect_left
from dataclasses import replace
from pathlib import Path

import psutil
from omegaconf import OmegaConf, open_dict

from convrec.runs.memory import cgroup_folders
from convrec.settings.run import Run
from convrec.settings.training import TrainingConfig
from recipes.planning import estimate
from recipes.planning.estimate import FULL, GIB, Workload
from recipes.planning.lengths import sample_lengths
from recipes.planning.models import read_model_size

# The files of cgroups v2 and v1: limit and usage.
LIMIT_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
TOKENS_STEP = 64  # micro-batches are lowered to multiples of this


def available_bytes(root: Path = Path("/")) -> int:
    """Return the bytes that new processes can use, within the machine and every cgroup of this process.

    Args:
        root: root of the file system.
    """
    free = [psutil.virtual_memory().available]
    for folder in cgroup_folders(root):
        for limit_name, usage_name in LIMIT_FILES:
            free_in_cgroup = _free_in_cgroup(folder, limit_name, usage_name)
            if free_in_cgroup is not None:
                free.append(free_in_cgroup)
    return min(free)


def _free_in_cgroup(folder: Path, limit_name: str, usage_name: str) -> int | None:
    """Return limit minus usage, not counting the file cache, which the kernel can drop; None without a limit."""
    try:
        limit = (folder / limit_name).read_text().strip()
        usage = int((folder / usage_name).read_text())
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if limit == "max":
        return None
    cache = int(statistics.get("inactive_file", 0)) + int(statistics.get("active_file", 0))
    return max(0, int(limit) - usage + cache)


def host_workload(run: Run[TrainingConfig]) -> Workload:
    """Return the workload of a run on a CPU, with the lengths of its data.

    Raises:
        OSError: the model's config is not here.
        UserError: the model's config is damaged.
    """
    size = read_model_size(run.settings.model)
    lengths = sample_lengths(run)
    if lengths is None:
        return estimate.make_workload(run, size)
    return estimate.make_workload(run, size, lengths.prompt, lengths.response, lengths.longest)


def fit_micro_batch(run: Run[TrainingConfig]) -> list[str]:
    """Lower the micro-batch in the config of a run on this CPU until it fits into free memory.

    The gradients are the same: a batch is split into more parts. If even the smallest micro-batch does not fit, the
    setting stays, and the checks of the machine refuse the run.

    Returns:
        One line if the micro-batch was lowered, else [].
    """
    if run.uses_gpu or not run.packs_micro_batches or os.environ.get("RAY_ADDRESS"):
        return []
    try:
        workload = host_workload(run)
    except (OSError, ValueError):  # the checks of the model report it
        return []
    free = available_bytes()
    tokens = largest_micro_batch(workload, FULL * free)
    if tokens is None or tokens == workload.most_tokens:
        return []
    with open_dict(run.verl_config) as config:
        OmegaConf.update(config, run.micro_batch_key, tokens)
    return [
        f"{run.micro_batch_key}={workload.most_tokens}: lowered to {tokens}, which fits into the {free / GIB:.1f} GiB "
        "of free memory; the gradients are the same"
    ]


def largest_micro_batch(workload: Workload, room: float) -> int | None:
    """Return the largest micro-batch in tokens, up to the workload's, that fits into memory.

    Args:
        workload: a run on a CPU.
        room: bytes that the run may take.

    Returns:
        The number of tokens; None if a single sequence of maximum length does not fit.
    """

    def fits(tokens: int) -> bool:
        return estimate.host_bytes(replace(workload, most_tokens=tokens)) <= room

    if fits(workload.most_tokens):
        return workload.most_tokens
    least = workload.longest_allowed
    candidates = [least, *range(-(-least // TOKENS_STEP) * TOKENS_STEP, workload.most_tokens, TOKENS_STEP)]
    num_fitting = bisect_left(candidates, True, key=lambda tokens: not fits(tokens))
    return candidates[num_fitting - 1] if num_fitting else None
