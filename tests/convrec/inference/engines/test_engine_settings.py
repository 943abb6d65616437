"""Our settings as vLLM's own code reads them; no engine starts."""

import __future__

import ast
import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from convrec.inference.engines import engine_settings as module
from convrec.inference.engines.engine_settings import engine_settings
from recipes.tiny_model import make_tiny_model


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """Restore the environment: some of vLLM's settings are variables."""
    with mock.patch.dict(os.environ):
        os.environ.pop("VLLM_WORKER_MULTIPROC_METHOD", None)
        yield


@pytest.mark.parametrize(("gpus", "method"), [(1, "spawn"), (0, "fork")])
def test_engine_processes_are_spawned_on_gpus(monkeypatch: pytest.MonkeyPatch, gpus: int, method: str) -> None:
    """After torch.cuda.is_available() a fork of this process cannot use CUDA; without a GPU a fork is faster."""
    monkeypatch.setattr(module, "usable_gpus", lambda: gpus)
    engine_settings(tensor_parallel=2)
    from vllm.utils.system_utils import get_mp_context

    assert get_mp_context().get_start_method() == method


def test_model_penalties_are_ignored_but_its_stop_tokens_count(tmp_path: Path) -> None:
    """This also holds for served chat, where vLLM's defaults would come from generation_config.json."""
    sizes = {"hidden_size": 32, "num_layers": 1, "num_heads": 1, "num_kv_heads": 1, "intermediate_size": 32}
    folder = make_tiny_model(tmp_path / "model", ["Heat (1995)\n" * 40], vocab_size=400, max_positions=256, **sizes)
    file = folder / "generation_config.json"
    own = json.loads(file.read_text())
    file.write_text(json.dumps(own | {"repetition_penalty": 1.3, "temperature": 0.2}))
    from vllm import AsyncEngineArgs

    _, settings = engine_settings(tensor_parallel=1)
    model_config = AsyncEngineArgs(str(folder), max_model_len=128, **settings).create_model_config()
    assert model_config.get_diff_sampling_param() == {}
    assert model_config.try_get_generation_config()["eos_token_id"] == own["eos_token_id"]


def test_a_b200_without_nvcc_gets_flash_attention(monkeypatch: pytest.MonkeyPatch, b200_without_nvcc: None) -> None:
    from vllm import AsyncEngineArgs

    monkeypatch.setattr(module, "usable_gpus", lambda: 1)
    _, settings = engine_settings(tensor_parallel=1)
    assert settings["attention_backend"] == "FLASH_ATTN"
    assert AsyncEngineArgs("model", **settings).attention_backend == "FLASH_ATTN"


def test_vllm_still_prefers_flashinfer_on_a_b200_alone() -> None:
    """When this fails, `attention_settings` may no longer be needed. The module needs CUDA, the function does not."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    package = importlib.util.find_spec("vllm")
    assert package is not None
    assert package.origin is not None
    module_tree = ast.parse((Path(package.origin).parent / "platforms" / "cuda.py").read_text(encoding="utf-8"))
    (function,) = (node for node in module_tree.body if getattr(node, "name", "") == "_get_backend_priorities")
    flags = __future__.annotations.compiler_flag
    code = compile(ast.Module([function], []), "cuda.py", "exec", flags=flags, dont_inherit=True)
    namespace: dict[str, Any] = {"AttentionBackendEnum": AttentionBackendEnum, "cache": lambda one: one}
    exec(code, namespace)
    choose = namespace["_get_backend_priorities"]
    first = {major: choose(False, SimpleNamespace(major=major))[0].name for major in (8, 9, 10, 12)}
    assert first == {8: "FLASH_ATTN", 9: "FLASH_ATTN", 10: "FLASHINFER", 12: "FLASH_ATTN"}
