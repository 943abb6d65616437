"""Which OpenMP torch uses in SFT on a CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from convrec.cpu import openmp

USE_AND_DIE = """
import os, signal
from convrec.cpu.openmp import use_intel_openmp

assert use_intel_openmp()
import torch

assert torch.rand(1000, 1000).exp().isfinite().all()
print(os.getpid(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(openmp.find_library() is None, reason="intel-openmp is not installed: it is for x86")
def test_torch_has_intels_openmp_and_a_killed_process_leaves_no_file() -> None:
    environment = os.environ | {"KMP_VERSION": "1", "OMP_NUM_THREADS": "2"}  # the library says when it starts
    done = subprocess.run([sys.executable, "-c", USE_AND_DIE], env=environment, capture_output=True, text=True)
    assert "Intel(R) OMP version" in done.stderr
    assert not Path(openmp.REGISTRATION.format(pid=int(done.stdout), user=os.getuid())).exists()


@pytest.mark.parametrize("missing", ["ENGINE", "PACKAGE"])
def test_on_arm_and_for_gpus_torch_keeps_its_own(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setattr(openmp, missing, "not-installed-here")
    assert openmp.find_library() is None
    assert not openmp.use_intel_openmp()


def test_it_is_too_late_once_torch_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmp, "find_library", lambda: "/not/loaded.so")
    import torch  # noqa: F401

    assert not openmp.use_intel_openmp()
