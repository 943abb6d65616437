"""What does not fit is said, and what is proposed makes it fit."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from omegaconf import DictConfig

from recipes.launch.recipe import RANK_GRPO, SFT
from recipes.planning import scale
from recipes.planning.fitting import lacks, remedies, replica_sizes
from recipes.planning.models import KNOWN, ModelSize, known_size
from recipes.planning.run import Data
from tests.recipes.planning.conftest import cluster

Config = Callable[..., DictConfig]
KEYS = {"N_NODES": "trainer.nnodes", "TENSOR_PARALLEL": "actor_rollout_ref.rollout.tensor_model_parallel_size"}


def size_of(model: str) -> ModelSize:
    size = known_size(model)
    assert size is not None
    return size


def keys_of(remedy: str) -> dict[str, Any]:
    """The keys that a command line's words set."""
    pairs = (word.split("=") for word in remedy.split())
    return {KEYS.get(name, name): text == "true" if text in ("true", "false") else int(text) for name, text in pairs}


def test_the_papers_run_fits(config_with: Config) -> None:
    assert (
        lacks(config_with(keys={"trainer.n_gpus_per_node": 4}), size_of("0.5B"), cluster(1, 4), RANK_GRPO.requirements)
        == []
    )


def test_70b_on_one_node_lacks_everything(config_with: Config) -> None:
    """20 bytes x 70.55e9 / 8 = 164 GiB of state alone; 141 GB of weights are more than vLLM's 40."""
    said = lacks(config_with(), size_of("70B"), cluster(1), RANK_GRPO.requirements)
    assert [text.split()[0] for text in said] == ["training", "sampling", "vLLM's"]
    assert "67.1 can be used" in said[0]


@pytest.mark.parametrize(
    ("recipe", "model", "keys"),
    [
        ("rank_grpo", "70B", {}),
        ("rank_grpo", "70B", {KEYS["TENSOR_PARALLEL"]: 8}),
        ("rank_grpo", "32B", {}),
        ("rank_grpo", "32B", {KEYS["TENSOR_PARALLEL"]: 4, "trainer.nnodes": 2}),
        ("rank_grpo", "8B", {"actor_rollout_ref.model.use_fused_kernels": False}),
        ("sft", "70B", {}),
        ("sft", "8B", {"data.max_token_len_per_gpu": 65_536}),
    ],
)
def test_every_remedy_makes_it_fit(recipe: str, model: str, keys: dict[str, Any], config_with: Config) -> None:
    requirements = (SFT if recipe == "sft" else RANK_GRPO).requirements
    config, size = config_with(recipe, keys), size_of(model)
    here = cluster(config.trainer.nnodes)
    assert lacks(config, size, here, requirements)
    proposed = remedies(config, size, here, requirements)
    assert proposed
    for remedy in proposed:
        changed = config_with(recipe, keys | keys_of(remedy))
        assert lacks(changed, size, cluster(changed.trainer.nnodes), requirements) == [], remedy


def test_a_replica_divides_a_nodes_gpus_and_the_models_heads() -> None:
    """14 heads of the 0.5B, 24 of the 3B."""
    assert replica_sizes(size_of("0.5B"), cluster(1)) == [1, 2]
    assert replica_sizes(size_of("3B"), cluster(1)) == [1, 2, 4, 8]
    assert replica_sizes(size_of("3B"), cluster(1, 6)) == [1, 2, 3, 6]


@pytest.mark.parametrize("recipe", ["sft", "rank_grpo"])
def test_the_table_has_every_size_and_number_of_nodes(recipe: str, config_with: Config) -> None:
    """What does not fit says why, and more nodes never make a run stop fitting."""
    requirements = (SFT if recipe == "sft" else RANK_GRPO).requirements
    config = config_with(recipe, {"data.train_batch_size": 1024})
    rows = list(scale.rows(config, cluster(1), Data(100_000, 0), requirements))
    assert [(row.model, row.nodes) for row in rows] == [(name, nodes) for name in KNOWN for nodes in scale.NODES]
    for row, wider in pairwise(rows):
        assert (row.plan is None) == bool(row.lacks)
        assert wider.model != row.model or row.plan is None or wider.plan is not None
    assert config.trainer.nnodes == 1  # the caller's is left alone
