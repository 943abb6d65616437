"""What verl, Ray and vLLM must be told about this machine, in environment variables."""

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

# Variables that every process of a run needs, the driver included. What the user has set is kept.
OF_EVERY_RUN = {
    "TRANSFER_QUEUE_ENABLE": "1",  # its value picks code paths when verl is imported
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_NO_USAGE_STATS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # it would be compiled at every start, by nvcc, which a machine with a driver alone lacks
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    # verl: "1", as files were damaged when engines wrote at once; PyTorch writes them whole from 2.10 on
    "VLLM_DISABLE_COMPILE_CACHE": "0",
    "RAY_DEDUP_LOGS": "0",  # metrics agents of Ray: noise in the log of a local run
}
WITHOUT_ACCELERATOR = {
    "VERL_PLATFORM": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # vLLM compiles a count over log-probs: 7 s at every start (PyTorch keeps the header in the run's TMPDIR)
    "TORCH_COMPILE_DISABLE": "1",
}


def set_up_process() -> None:
    """For a command that starts engines. Must run before torch and Ray are imported, which read these once.

    Waiting OpenMP threads soon sleep instead of spinning: training, rollout and Ray's processes share the cores, and
    with two spinning pools on two busy cores a step took twice as long. Ray's workers inherit it. Asleep at once, SFT
    of a small model took 1.3 times as long on two cores as with some microseconds of GOMP_SPINCOUNT. Without a cluster,
    nothing of a run listens beyond 127.0.0.1; RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=1 undoes it: servers of Ray, verl, vLLM
    and TransferQueue bind to what Ray calls this node's address, and Ray's own switch for "this node is the only one"
    makes that the loopback.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # GNU's OpenMP: torch
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    os.environ.setdefault("KMP_BLOCKTIME", "0")  # Intel's: vLLM
    if not os.environ.get("RAY_ADDRESS"):
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")


def process_environment(has_accelerator: bool) -> dict[str, str]:
    """Return the variables of a run's processes on this machine, with the user's values where there are any."""
    defaults = dict(OF_EVERY_RUN)
    if not has_accelerator:
        defaults |= WITHOUT_ACCELERATOR
        # Ray gives an actor one thread unless told otherwise; actor and rollout take turns
        defaults["OMP_NUM_THREADS"] = str(len(os.sched_getaffinity(0)))
    return {name: os.environ.get(name, value) for name, value in defaults.items()}


def use_own_token(folder: Path) -> None:
    """Give the Ray that this process will start a token of its own, in the run's folder, which its user alone enters.

    Must run before Ray is imported, which reads RAY_AUTH_MODE once. By itself Ray would take or make ~/.ray/auth_token:
    readable for everybody where the umask says so, a failure where the home folder cannot be written, and a file that
    turns on tokens for each later `ray start`. RAY_AUTH_MODE=disabled is kept.
    """
    if os.environ.setdefault("RAY_AUTH_MODE", "token").lower() != "token":
        return
    token_file = folder / TOKEN_FILE
    with open(os.open(token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(token_file)
    os.environ.pop("RAY_AUTH_TOKEN", None)  # another cluster's, which Ray would prefer


@contextlib.contextmanager
def without_cloud_lookup(folder: Path) -> Iterator[None]:
    """Have a Ray that is started inside the block not ask in which cloud it runs.

    Its dashboard process, which Ray always starts, asks 169.254.169.254 and metadata.google.internal for the report of
    usage, even where that report is turned off; it does not where the home folder has a file of Ray's cluster launcher.
    So that process, and no other, has the run's folder as its home.
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
def without_hidden_devices() -> Iterator[None]:
    """Have a Ray that is started inside the block take the slots it is given where CUDA_VISIBLE_DEVICES hides all GPUs.

    Slots of a run without a GPU are what Ray calls GPUs, and it refuses more of them than the variable names.
    """
    hidden = os.environ.pop(DEVICES_VARIABLE) if gpus.is_hidden() else None
    try:
        yield
    finally:
        if hidden is not None:
            os.environ[DEVICES_VARIABLE] = hidden


def init_ray(**options: Any) -> None:
    """ray.init, more than once where the machine is busy.

    Ray gives its agent 15 s to start, which is little on busy cores; the next time its imports are cached.
    """
    import ray

    for attempt in range(1, RAY_STARTS + 1):
        try:
            ray.init(**options)
            return
        except Exception as error:
            if attempt == RAY_STARTS or "timed out during startup" not in str(error):
                raise
            print(f"Ray did not start ({error}); once more", file=sys.stderr)
            ray.shutdown()


def shut_down_ray(seconds: float = SHUTDOWN_SECONDS) -> None:
    """ray.shutdown, but not for ever: it waits for an answer of Ray's gcs_server, which may be stopped.

    What is there after so many seconds is left to the guard, which kills it.
    """
    import ray

    thread = threading.Thread(target=ray.shutdown, name=SHUTDOWN_THREAD, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        print(f"Ray has not ended within {seconds:g} s: its processes are killed", file=sys.stderr)


def leave(status: int) -> int:
    """The status; where Ray has not ended the process ends with it at once: Ray's exit handlers would wait again."""
    if any(thread.name == SHUTDOWN_THREAD for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status
