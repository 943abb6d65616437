"""A small sample of the project's own data, and the environment of a run that would start."""

import os
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from omegaconf import DictConfig, OmegaConf

from convrec.base import gpus
from data_prep.sample import write_sample
from recipes.launch.recipe import RECIPES
from recipes.launch.settings import compose
from recipes.launch.variables import VARIABLES
from recipes.plan import compose_planned_run
from recipes.tiny_model import make_tiny_model


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """Commands set variables of their process, which is that of the tests."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    counts = {"train": 40, "validation": 10, "test": 10}
    return write_sample(tmp_path_factory.mktemp("sample") / "data", counts=counts)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that the checks find sound."""
    sizes = {"hidden_size": 128, "num_layers": 1, "num_heads": 4, "num_kv_heads": 4, "intermediate_size": 32}
    folder = tmp_path_factory.mktemp("model") / "model"
    return make_tiny_model(folder, ["a b c\n" * 40], vocab_size=300, max_positions=1024, **sizes)


def set_gpus(patch: pytest.MonkeyPatch, count: int) -> None:
    """Have this machine this many usable GPUs.

    torch itself goes on saying what is there: verl and vLLM keep its first answer for all tests of the process.
    """
    patch.setattr(gpus, "usable_gpus", lambda: count)


def set_gpu_memory(patch: pytest.MonkeyPatch, size: int) -> None:
    """Have torch see a GPU of this many bytes, with 0 none."""
    import torch

    patch.setattr(torch.cuda, "is_available", lambda: size > 0)
    patch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=size))


@pytest.fixture
def set_variables(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, str]], None]:
    """These variables and no other of ours, on a host without accelerators."""

    def set_them(variables: Mapping[str, str]) -> None:
        for name in (*(variable.name for variable in VARIABLES), "RAY_ADDRESS", "LOCAL_RANK", "SWANLAB_API_KEY"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        set_gpus(monkeypatch, 0)

    return set_them


@pytest.fixture
def good(sample: Path, model: Path, tmp_path: Path) -> dict[str, str]:
    """Of a small Rank-GRPO run that would start."""
    files = {"TRAIN_FILE": "train", "VAL_FILE": "validation", "CATALOG_FILE": "catalog"}
    small = {"TRAIN_BATCH_SIZE": "4", "ROLLOUT_N": "2", "MAX_PROMPT_LENGTH": "256", "MAX_RESPONSE_LENGTH": "128"}
    paths = {"MODEL_PATH": str(model), "SAVE_PATH": str(tmp_path / "run")}
    return small | paths | {name: str(sample / f"{file}.parquet") for name, file in files.items()}


@pytest.fixture(scope="module")
def node() -> Iterator[pytest.MonkeyPatch]:
    """A machine with 4 GPUs, with no variable set; to be changed for a module's tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name in (*(variable.name for variable in VARIABLES), "RAY_ADDRESS", "SWANLAB_API_KEY"):
            patch.delenv(name, raising=False)
        set_gpus(patch, 4)
        yield patch


@pytest.fixture(scope="module")
def defaults(node: pytest.MonkeyPatch) -> dict[str, DictConfig]:
    """Each recipe's whole config there."""
    return {recipe: compose(recipe, []).verl_config for recipe in RECIPES}


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """None of our variables set, an address where nobody listens, and a folder that is not the project's."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:9")
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def composed() -> Iterator[dict[str, DictConfig]]:
    """A planned run of each recipe with no variable set: the defaults, on 8 GPUs. Composing takes a second."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in VARIABLES:
            patch.delenv(variable.name, raising=False)
        yield {name: compose_planned_run(RECIPES[name], []).verl_config for name in ("sft", "rank_grpo")}


@pytest.fixture
def config_with(composed: dict[str, DictConfig]) -> Callable[..., DictConfig]:
    """A copy of it with these keys set: config_with("sft", {"trainer.nnodes": 2})."""

    def changed(recipe: str = "rank_grpo", keys: Mapping[str, Any] | None = None) -> DictConfig:
        config = deepcopy(composed[recipe])
        for key, value in (keys or {}).items():
            OmegaConf.update(config, key, value)
        return config

    return changed
