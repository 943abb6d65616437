"""The requests to vLLM for constrained lists, and the fields that accompany a list."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from convrec.features.constrained.catalog_trie import build_catalog_trie, save_catalog_trie
from convrec.features.constrained.rollout import CONSTRAINT, ListConstraint, load_trie
from convrec.features.constrained.vllm_lists import EXCLUDE, ITEMS, TRIE
from convrec.features.responses import OPEN, SampledResponse
from convrec.titles.catalog import Catalog
from convrec.titles.matching import Matcher


@pytest.fixture
def constraint(line_tokenizer: Any, tmp_path: Path) -> ListConstraint:
    """Lists of two items, with the trie that verl's settings name."""
    matcher = Matcher(Catalog.from_items([("Heat", 1995), ("Up", 2009), ("Alien", 1979), ("Aliens", 1986)]))
    file = tmp_path / "trie.npz"
    save_catalog_trie(file, build_catalog_trie(matcher, line_tokenizer, "\n"))
    trie = load_trie({"engine_kwargs": {"vllm": {"additional_config": {TRIE: str(file)}}}})
    assert trie is not None
    return ListConstraint(trie, matcher, 2)


def make_sample(*seen: list[str] | None) -> dict[str, Any]:
    """Return a sample whose rows have seen these titles."""
    truths = [{"groundtruth": [], "seen": titles} for titles in seen]
    return {"reward_model": {"ground_truth": truths[0] if len(seen) == 1 else {"rows": truths}}}


@pytest.mark.parametrize("settings", [{}, {"engine_kwargs": {"vllm": {}}}])
def test_free_lists_have_no_trie(settings: dict[str, Any]) -> None:
    assert load_trie(settings) is None


def test_vllm_excludes_seen_items_and_allows_open_questions(constraint: ListConstraint) -> None:
    def extra_args(sample: dict[str, Any]) -> dict[str, Any]:
        params = constraint.sampling_params(sample)
        assert params.keys() == {"extra_args"}
        return params["extra_args"]

    assert extra_args(make_sample(None)) == {ITEMS: 2, EXCLUDE: []}
    assert extra_args(make_sample(["HEAT"], ["Alien", "no film"])) == {ITEMS: 2, EXCLUDE: [0, 2]}
    assert extra_args({**make_sample(["HEAT"]), OPEN: [-1]}) == {ITEMS: 2, EXCLUDE: [-1, 0]}


def test_the_loss_counts_tokens_that_had_a_choice(constraint: ListConstraint, line_tokenizer: Any) -> None:
    def fields(sample: dict[str, Any]) -> dict[str, Any]:
        response_ids = [*line_tokenizer.encode("Up (2009)\nAliens (1986)"), line_tokenizer.eos_token_id]
        output: Any = SimpleNamespace(response_ids=response_ids)
        return constraint.response_fields(SampledResponse(sample, output))

    two_left = fields(make_sample(["HEAT"], ["Alien"]))
    assert two_left[CONSTRAINT].tolist() == [2, 0, 2]
    assert two_left["loss_mask"].sum() == 1  # Up or Aliens; then there is no choice left
    assert two_left["loss_mask"][0] == 1
    assert fields(make_sample(["Heat"]))["loss_mask"].sum() > 1
