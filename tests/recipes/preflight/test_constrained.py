"""CONSTRAINED=1: the settings that it refuses before Ray starts, and the trie that the rollout gets."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import DictConfig

from convrec.base.errors import UserError
from convrec.data.schema import RL_SCHEMA
from convrec.features.constrained import checks as constrained
from convrec.features.constrained.rollout import load_trie
from recipes.launch import settings
from recipes.preflight import checks, findings

Compose = Callable[..., DictConfig]


@pytest.fixture
def compose(
    sample: Path,
    good: dict[str, str],
    unread_model: Path,
    tmp_path: Path,
    set_variables: Callable[[Mapping[str, str]], None],
) -> Compose:
    """A run that would start, with these overrides and variables."""
    catalog = tmp_path / "catalog.parquet"
    catalog.write_bytes((sample / "catalog.parquet").read_bytes())

    def make(*overrides: str, **variables: str) -> DictConfig:
        own = {"CONSTRAINED": "1", "MODEL_PATH": str(unread_model), "CATALOG_FILE": str(catalog)}
        own |= {"NUM_ITEMS": "3", "MAX_RESPONSE_LENGTH": "1024"}
        set_variables(good | own | variables)
        return settings.compose("rank_grpo", list(overrides))

    return make


def test_the_trie_is_made_once_and_reaches_rollout_and_nodes(compose: Compose, tmp_path: Path) -> None:
    run = compose()
    checks.check_rank_grpo(run)
    assert not list(tmp_path.glob("*.npz"))  # a dry run writes nothing
    constrained.use_trie(run)
    (file,) = tmp_path.glob("catalog.parquet.trie-*.npz")
    rollout = run.verl_config.actor_rollout_ref.rollout
    assert rollout.engine_kwargs.vllm.distributed_executor_backend  # the host's own are still there
    trie = load_trie(rollout)
    assert trie is not None
    assert trie.num_items > 3
    assert str(file) in findings.list_paths(run)[0]
    assert load_trie(compose(CONSTRAINED="0").verl_config.actor_rollout_ref.rollout) is None


@pytest.mark.parametrize(
    ("variables", "overrides", "said"),
    [
        ({"ALGORITHM": "gspo"}, [], "GRPO and GSPO take ratios and means over all tokens"),
        ({"PRESET": "reference"}, [], "Set PRESET=paper"),
        ({}, ["+scale=separate_async_cpu"], "continues interrupted responses"),
        ({}, ["actor_rollout_ref.actor.strategy=megatron"], "no tensor parallelism"),
        ({}, ["actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=2"], "splits responses"),
        ({}, ["+scale=lora", "actor_rollout_ref.model.target_modules=[lm_head]"], "LoRA on lm_head"),
        ({}, ["actor_rollout_ref.rollout.name=sglang"], "only vLLM can constrain lists"),
        ({}, ["actor_rollout_ref.rollout.full_determinism=true"], "without full_determinism"),
        ({}, ["actor_rollout_ref.rollout.logprobs_mode=raw_logprobs"], "processed_logprobs"),
        ({"MAX_RESPONSE_LENGTH": "20"}, [], "MAX_RESPONSE_LENGTH=20: 3 items can take"),
    ],
)
def test_what_would_train_on_another_distribution_is_refused(
    compose: Compose, variables: dict[str, str], overrides: list[str], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        checks.check_rank_grpo(compose(*overrides, **variables))


def test_a_conversation_that_leaves_too_few_items_is_named(compose: Compose, tmp_path: Path) -> None:
    settings = compose().settings
    rows = pq.read_table(settings.train_file).to_pylist()
    rows[2]["seen_titles"] = pq.read_table(settings.catalog_file)["title"].to_pylist()
    pq.write_table(pa.Table.from_pylist(rows, RL_SCHEMA), tmp_path / "train.parquet")
    with pytest.raises(UserError, match=rf"train.parquet, {rows[2]['sample_id']}: .* leaves only 0 of the catalog's"):
        checks.check_rank_grpo(compose(TRAIN_FILE=str(tmp_path / "train.parquet")))
