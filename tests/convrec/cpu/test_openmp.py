"""Which OpenMP torch uses on a CPU."""

import os
import subprocess
import sys

import pytest

from convrec.cpu import openmp

TORCH_IN_TWO_PROCESSES = """
import subprocess, sys
from convrec.cpu.openmp import use_intel_openmp

use_intel_openmp()
command = "import torch; print(torch.rand(1000, 1000).exp().isfinite().all())"
exec(command)
print(subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True))
"""
BANNER = "Intel(R) OMP version"


@pytest.mark.skipif(openmp.find_library() is None, reason="intel-openmp is not installed: it is for x86")
def test_torch_has_intels_openmp_in_this_process_and_its_children() -> None:
    environment = os.environ | {"KMP_VERSION": "1", openmp.PRELOAD_VARIABLE: ""}  # the library says when it starts
    done = subprocess.run(
        [sys.executable, "-c", TORCH_IN_TWO_PROCESSES], env=environment, capture_output=True, text=True, check=True
    )
    assert BANNER in done.stderr
    assert BANNER in done.stdout


def test_an_openmp_that_the_user_preloads_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(openmp.PRELOAD_VARIABLE, "/usr/lib/libgomp.so.1")
    openmp.use_intel_openmp()
    assert os.environ[openmp.PRELOAD_VARIABLE] == "/usr/lib/libgomp.so.1"


def test_another_preloaded_library_stays_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(openmp.PRELOAD_VARIABLE, "libjemalloc.so")
    monkeypatch.setenv("KMP_BLOCKTIME", "1")  # and back afterwards
    monkeypatch.setattr(openmp.ctypes, "CDLL", lambda *_: None)
    monkeypatch.setattr(openmp, "find_library", lambda: "/env/lib/libiomp5.so")
    openmp.use_intel_openmp()
    assert os.environ[openmp.PRELOAD_VARIABLE] == "/env/lib/libiomp5.so:libjemalloc.so"


@pytest.mark.parametrize("missing", ["ENGINE", "PACKAGE"])
def test_on_arm_and_for_gpus_nothing_changes(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setenv(openmp.PRELOAD_VARIABLE, "")
    monkeypatch.setattr(openmp, missing, "not-installed-here")
    openmp.use_intel_openmp()
    assert os.environ[openmp.PRELOAD_VARIABLE] == ""
