"""What vLLM makes of our settings, as its own code reads them; no engine starts."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from convrec.generation import engine_settings as module
from convrec.generation.engine_settings import engine_settings
from recipes.tiny_model import make_tiny_model


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """Settings are given to vLLM as variables, too."""
    with mock.patch.dict(os.environ):
        os.environ.pop("VLLM_WORKER_MULTIPROC_METHOD", None)
        yield


@pytest.mark.parametrize(("gpus", "method"), [(1, "spawn"), (0, "fork")])
def test_engine_processes_are_spawned_where_cuda_was_looked_at(
    monkeypatch: pytest.MonkeyPatch, gpus: int, method: str
) -> None:
    """After torch.cuda.is_available() a fork of this process cannot use CUDA; without a GPU a fork is faster."""
    monkeypatch.setattr(module, "usable_gpus", lambda: gpus)
    engine_settings(tensor_parallel=2)
    from vllm.utils.system_utils import get_mp_context

    assert get_mp_context().get_start_method() == method


def test_a_models_own_penalties_change_no_answer_but_its_stops_count(tmp_path: Path) -> None:
    """In served chat, where vLLM's defaults would come from generation_config.json, as in batches."""
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
