"""What vLLM's start builds with on a GPU is looked for before: Triton itself is asked whether that is right."""

import os
import sysconfig
from pathlib import Path

import pytest
from triton.runtime.build import compile_module_from_src

from recipes.preflight import node
from tests.recipes.conftest import set_gpu_memory

MODULE = """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "empty", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_empty(void) { return PyModule_Create(&module); }
"""


@pytest.fixture(autouse=True)
def builds_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)


def test_where_a_compiler_and_pythons_headers_are_triton_builds() -> None:
    assert node._build_problem() == ""
    assert compile_module_from_src(MODULE, "empty").__name__ == "empty"


def test_a_machine_without_a_compiler_is_told_before_vllm_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert node._build_problem() == "no C compiler is found"
    with pytest.raises(RuntimeError, match="Failed to find C compiler"):
        compile_module_from_src(MODULE, "empty")


def test_a_python_without_its_headers_is_told_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda *_: str(tmp_path))
    assert node._build_problem() == f"{tmp_path}/Python.h: not there"


@pytest.mark.parametrize(("memory", "said"), [(80 * 2**30, "no C compiler is found"), (0, "")])
def test_only_a_node_with_gpus_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: int, said: str
) -> None:
    set_gpu_memory(monkeypatch, memory)
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    assert node.report([], None, str(tmp_path)).build_problem == said
