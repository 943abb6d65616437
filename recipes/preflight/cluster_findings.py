"""Compare the nodes of a cluster, or this machine, with the needs of a run."""

import ipaddress
import time
from collections.abc import Mapping, Sequence

from convrec.settings.run import Run
from convrec.settings.training import TrainingConfig
from recipes.preflight import node
from recipes.preflight.cores import Slots, count_run_slots
from recipes.preflight.finding import GIB, Finding
from recipes.preflight.node import NodeReport, NodeSlots

BUSY = "another job holds them"
WAITS_VARIABLE = "CONVREC_WAITS_FOR_SLOTS"  # set for the jobs of a matrix: they wait for slots instead of failing
WAIT_SECONDS = 5.0


def check_nodes(driver: NodeReport, nodes: Sequence[NodeReport]) -> list[Finding]:
    """Compare the files, versions, network and memory of the nodes with those of the driver.

    Args:
        driver: of the node where the run starts.
        nodes: of all nodes of the cluster.

    Returns:
        The findings; a single one with status "ok" if nothing differs.
    """
    findings = []
    for report in nodes:
        where = report.where
        for path, problem in report.unreadable.items():
            fix = "put it on storage that every node sees under this path, or copy it there"
            findings.append(Finding("files", "failure", where, f"{path}: {problem}", fix))
        if report.model_problem:
            fix = "let the node reach the Hub (HF_ENDPOINT, a proxy, HF_TOKEN for a gated model), or give a folder"
            findings.append(Finding("model", "failure", where, report.model_problem, fix))
        if report.save_problem:
            fix = "choose a SAVE_PATH that every node can write to, on storage they share"
            findings.append(Finding("files", "failure", where, report.save_problem, fix))
        if report.digest != driver.digest:
            drivers_source = f"{driver.digest}, {driver.source}"
            what = f"convrec {report.digest} from {report.source}, the driver has {drivers_source}"
            findings.append(Finding("project", "failure", where, what, "install this version of convrec on every node"))
        for name, version in driver.versions.items():
            if report.versions.get(name) != version:
                what = f"{name} {report.versions.get(name)}, the driver has {version}"
                findings.append(Finding("versions", "failure", where, what, "install the same set on every node"))
        if report.unreachable:
            what = f"cannot connect to the driver: {report.unreachable}"
            fix = "open all TCP ports between the nodes, or give `ray start` the --node-ip-address of a network they "
            findings.append(Finding("ports", "failure", where, what, fix + "share"))
        if ipaddress.ip_address(report.address).is_global:
            what = f"{report.address} is a public address: torch's store and NCCL accept connections without a key"
            fix = "give `ray start` the --node-ip-address of a private network, or close its ports to others"
            findings.append(Finding("network", "warning", where, what, fix))
        if report.build_problem:
            fix = "install gcc and Python's headers (Debian: gcc, libc6-dev, python3-dev), or set CC"
            what = f"{report.build_problem}; on GPUs vLLM compiles C code when it starts"
            findings.append(Finding("compiler", "failure", where, what, fix))
        if report.shm_free < node.SHM_BYTES:
            what = f"/dev/shm has {report.shm_free / GIB:.2f} GiB free, {node.SHM_BYTES / GIB:.2f} are needed"
            fix = "mount a larger one (docker: --shm-size=8g), or end the processes that fill it"
            findings.append(Finding("shared memory", "failure", where, what, fix))
    return findings or [Finding("nodes", "ok", ", ".join(r.where for r in nodes), "files, versions and ports are fine")]


def check_free_slots(run: Run[TrainingConfig], nodes: Sequence[NodeSlots]) -> list[Finding]:
    """Check that the cluster has the GPU and CPU slots of the run, and those of a separate rollout.

    verl and TransferQueue would wait for missing slots without a limit.

    Args:
        run: names the nodes and GPUs that it needs.
        nodes: the result of `node.collect_slots`.
    """
    needed = count_run_slots(run)
    keys = ("N_NODES={} with N_GPUS_PER_NODE={}", "{} with actor_rollout_ref.rollout.n_gpus_per_node={}")
    settings = ", and ".join(key.format(*group) for key, group in zip(keys, needed.groups, strict=False))
    slots = " and ".join(f"{number} x ({gpus} GPU, {cpus} CPU)" for number, gpus, cpus in needed.groups)
    free = [f"{n.where} {n.free_gpus:g} of {n.gpus:g} GPU and {n.free_cpus:g} of {n.cpus:g} CPU slots" for n in nodes]
    what = f"{settings} take {slots} slots, {needed.cpus} CPU slots in all; free: {', '.join(free) or 'no node'}"
    if not _have_room(needed, [(n.gpus, n.cpus) for n in nodes]):
        fix = f"use fewer devices, add nodes, or start Ray with more slots: ray start --num-cpus=N ({needed.cpus} in "
        fix += "all), on hosts without a GPU also --num-gpus=1"
        return [Finding("devices", "failure", "cluster", what, fix)]
    if not _have_room(needed, [(n.free_gpus, n.free_cpus) for n in nodes]):
        fix = "wait until it ends, or stop it: ray job list, ray job stop"
        return [Finding("devices", "failure", "cluster", f"{BUSY}; {what}", fix)]
    return [Finding("devices", "ok", "cluster", what)]


def wait_for_slots(run: Run[TrainingConfig], environment: Mapping[str, str]) -> list[NodeSlots]:
    """Return `node.collect_slots`; with WAITS_VARIABLE first wait until other jobs have freed the run's slots.

    Args:
        run: the run.
        environment: of this process. Without WAITS_VARIABLE the slots may be busy.
    """
    is_waiting = False
    while True:
        slots = node.collect_slots()
        busy = [finding.what for finding in check_free_slots(run, slots) if BUSY in finding.what]
        if not (busy and environment.get(WAITS_VARIABLE)):
            return slots
        if not is_waiting:
            is_waiting = True
            print(f"waiting: {busy[0]}", flush=True)
        time.sleep(WAIT_SECONDS)


def _have_room(needed: Slots, slots: Sequence[tuple[float, float]]) -> bool:
    """Return whether the nodes hold every group and all CPU slots; groups with more GPUs per node are placed first.

    slots: GPU and CPU slots of each node.
    """
    left = list(slots)
    for number, gpus, cpus in sorted(needed.groups, key=lambda group: -group[1]):
        left.sort(reverse=True)
        fitting = [index for index, node in enumerate(left) if node[0] >= gpus and node[1] >= cpus][:number]
        if len(fitting) < number:
            return False
        for index in fitting:
            left[index] = (left[index][0] - gpus, left[index][1] - cpus)
    return sum(int(node[1]) for node in slots) >= needed.cpus


def check_devices(
    run: Run[TrainingConfig],
    driver: NodeReport,
    nodes: Sequence[NodeReport],
    environment: Mapping[str, str],
) -> list[Finding]:
    """Check that the cluster has the device that the driver chose by its own node: GPUs, or none.

    Args:
        run: the run.
        driver: of the node where the run starts.
        nodes: of all nodes of the cluster.
        environment: of this process; VERL_PLATFORM says that the other nodes have GPUs.

    Returns:
        Failures; [] if all is well.
    """
    findings = []
    if not run.uses_gpu:
        if driver.device_memory:
            return []  # the driver sees GPUs too: the user chose host=cpu
        for report in nodes:
            if report.device_memory:
                what = "has GPUs, but the driver's node has none, so training would run on CPUs"
                group = "sft_host" if run.is_sft else "host"
                fix = "start Ray's head on a node with GPUs, or add "
                fix += f"{group}=gpu, N_GPUS_PER_NODE and VERL_PLATFORM=nvidia"
                findings.append(Finding("devices", "failure", report.where, what, fix))
        return findings
    if not driver.device_memory and not environment.get("VERL_PLATFORM"):
        what = "PyTorch sees no GPU here, and verl would assume the same of the other nodes"
        findings.append(Finding("devices", "failure", "driver", what, "set VERL_PLATFORM=nvidia"))
    for report in nodes:
        if report.gpu_slots >= run.gpus_per_node and not report.device_memory:
            what = "offers GPU slots to Ray, but PyTorch sees no GPU there"
            fix = "fix its driver (580 or newer) or environment, or start Ray there with --num-gpus=0"
            findings.append(Finding("devices", "failure", report.where, what, fix))
    return findings
