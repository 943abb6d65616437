"""Environment variables for verl, Ray and vLLM, and the start and end of a Ray on this machine."""

import contextlib
import os
import secrets
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from convrec.base import gpus

DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"
TOKEN_FILE = "ray_token"
CLUSTER_LAUNCHER_FILE = "ray_bootstrap_config.yaml"
RAY_STARTS = 3
SHUTDOWN_SECONDS = 30.0
SHUTDOWN_THREAD = "ray.shutdown"

# vLLM's OpenAI server imports model_hosting_container_standards, which sets the root logger and its handlers to this
# level. Its default, ERROR, would hide every warning of this project and of verl from there on.
LOG_LEVEL = {"SAGEMAKER_CONTAINER_LOG_LEVEL": "WARNING"}
# Variables of every process of a run, the driver included. Values set by the user win.
RUN_VARIABLES = {
    "TRANSFER_QUEUE_ENABLE": "1",  # selects code paths when verl is imported
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_NO_USAGE_STATS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # The sampler would be compiled at every start with nvcc, which a machine with only the driver does not have.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    # verl sets "1", because engines that wrote at the same time damaged files. PyTorch 2.10 writes them atomically.
    "VLLM_DISABLE_COMPILE_CACHE": "0",
    "RAY_DEDUP_LOGS": "0",  # deduplication adds noise of Ray's metrics agents to the log of a local run
    **LOG_LEVEL,
}
CPU_VARIABLES = {
    "VERL_PLATFORM": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # vLLM compiles a count over log-probs, which takes 7 s at every start (PyTorch caches the header in TMPDIR only).
    "TORCH_COMPILE_DISABLE": "1",
}


def set_up_process() -> None:
    """Set variables for a command that starts engines, before torch and Ray are imported, which read them once.

    Idle OpenMP threads sleep soon instead of spinning: training, rollout and Ray share the cores, and two runs on two
    cores took more than three times as long with the default of GNU's OpenMP, which torch uses. Ray's workers inherit
    this. With threads that sleep at once, SFT of a small model took 1.3 times as long as with a GOMP_SPINCOUNT of some
    microseconds. SFT, a single process, uses Intel's instead (convrec.cpu.openmp).

    Without a cluster, no server of a run listens beyond 127.0.0.1: servers of Ray, verl, vLLM and TransferQueue bind to
    the address that Ray has for this node, and Ray's own switch for a single node makes this the loopback address.
    RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=1 undoes it.

    Warnings are still heard after the import of vLLM's server.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    for name, level in LOG_LEVEL.items():
        os.environ.setdefault(name, level)
    if not os.environ.get("RAY_ADDRESS"):
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")


def make_process_environment(has_accelerator: bool) -> dict[str, str]:
    """Return the variables of a run's processes on this machine; values set by the user win.

    Args:
        has_accelerator: whether the run uses a GPU; without one, processes may use all cores.
    """
    defaults = dict(RUN_VARIABLES)
    if not has_accelerator:
        defaults |= CPU_VARIABLES
        # By default Ray gives an actor one thread. Actor and rollout take turns, so each can use all cores.
        defaults["OMP_NUM_THREADS"] = str(len(os.sched_getaffinity(0)))
    return {name: os.environ.get(name, value) for name, value in defaults.items()}


def use_own_token(folder: Path) -> None:
    """Give the Ray that this process will start its own token, in a folder that only this user can enter.

    Must run before Ray is imported, which reads RAY_AUTH_MODE once. Ray's default is ~/.ray/auth_token: with some
    umasks everybody can read it, it fails if the home folder is not writable, and it turns tokens on for every later
    `ray start`. RAY_AUTH_MODE=disabled is kept.
    """
    if os.environ.setdefault("RAY_AUTH_MODE", "token").lower() != "token":
        return
    token_file = folder / TOKEN_FILE
    with open(os.open(token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(token_file)
    os.environ.pop("RAY_AUTH_TOKEN", None)  # another cluster's, which Ray would prefer


@contextlib.contextmanager
def skip_cloud_lookup(folder: Path) -> Iterator[None]:
    """Keep a Ray that is started inside the block from asking in which cloud it runs.

    Ray always starts a dashboard process, which asks 169.254.169.254 and metadata.google.internal for its usage report,
    even if the report is turned off. It does not ask if the home folder has a file of Ray's cluster launcher, so this
    process, and no other, gets the run's folder as its home.

    Args:
        folder: the run's temporary folder, which gets such a file.
    """
    import ray._private.ray_constants as constants
    import ray._private.services as services

    (folder / CLUSTER_LAUNCHER_FILE).write_text("{}\n")
    start_process = services.start_ray_process

    def start(command: list[str], process_type: str, *args: Any, **options: Any) -> Any:
        if process_type == constants.PROCESS_TYPE_DASHBOARD:
            options["env_updates"] = {"HOME": str(folder)}
        return start_process(command, process_type, *args, **options)

    services.start_ray_process = start
    try:
        yield
    finally:
        services.start_ray_process = start_process


@contextlib.contextmanager
def unhide_devices() -> Iterator[None]:
    """Let a Ray that is started inside the block offer GPU slots although CUDA_VISIBLE_DEVICES hides all GPUs.

    A run without a GPU uses Ray's GPU slots as logical ones, and Ray refuses more slots than the variable has GPUs.
    """
    hidden = os.environ.pop(DEVICES_VARIABLE) if gpus.is_hidden() else None
    try:
        yield
    finally:
        if hidden is not None:
            os.environ[DEVICES_VARIABLE] = hidden


def init_ray(**options: Any) -> None:
    """Call ray.init, and try again if Ray's agent did not start in time.

    Ray gives its agent 15 s, which is short on busy cores; the next attempt finds its imports in the page cache.

    Args:
        **options: arguments of ray.init. Its errors are raised, that of a slow agent after RAY_STARTS attempts.
    """
    import ray

    for attempt in range(1, RAY_STARTS + 1):
        try:
            ray.init(**options)
            return
        except Exception as error:
            if attempt == RAY_STARTS or "timed out during startup" not in str(error):
                raise
            print(f"Ray did not start ({error}): trying again", file=sys.stderr)
            ray.shutdown()


def shut_down_ray(seconds: float = SHUTDOWN_SECONDS) -> None:
    """Call ray.shutdown, with a time limit: it waits for Ray's GCS server, which may be stopped.

    The guard kills the processes that still run after the limit.
    """
    import ray

    thread = threading.Thread(target=ray.shutdown, name=SHUTDOWN_THREAD, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        print(f"Ray has not ended within {seconds:g} s: its processes are killed", file=sys.stderr)


def exit_if_ray_hangs(status: int) -> int:
    """Return the exit status; if ray.shutdown still hangs, exit with it at once: Ray's exit handlers would wait too."""
    if any(thread.name == SHUTDOWN_THREAD for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status
