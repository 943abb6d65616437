"""What is asked of vLLM for a constrained list, and what travels with it."""

from pathlib import Path
from typing import Any

from convrec.constrained.catalog_trie import build_catalog_trie, save_catalog_trie
from convrec.constrained.vllm_lists import EXCLUDE, ITEMS, TRIE
from convrec.lists.catalog import Catalog
from convrec.lists.matching import Matcher
from convrec.rollout.constraint import CONSTRAINT, ListConstraint, load_trie


def test_a_sample_excludes_what_it_has_seen_and_its_lists_know_their_choices(
    line_tokenizer: Any, tmp_path: Path
) -> None:
    matcher = Matcher(Catalog.from_items([("Heat", 1995), ("Up", 2009), ("Alien", 1979), ("Aliens", 1986)]))
    file = tmp_path / "trie.npz"
    save_catalog_trie(file, build_catalog_trie(matcher, line_tokenizer, "\n"))
    trie = load_trie({"engine_kwargs": {"vllm": {"additional_config": {TRIE: str(file)}}}})
    assert load_trie({"engine_kwargs": {"vllm": {}}}) is None
    assert trie is not None
    constraint = ListConstraint(trie, matcher, 2)

    def sample(*rows: list[str] | None) -> dict[str, Any]:
        truths = [{"groundtruth": [], "seen": seen} for seen in rows]
        return {"reward_model": {"ground_truth": truths[0] if len(rows) == 1 else {"rows": truths}}}

    assert constraint.extra_args(sample(None)) == {ITEMS: 2, EXCLUDE: []}
    assert constraint.extra_args(sample(["HEAT"], ["Alien", "no film"])) == {ITEMS: 2, EXCLUDE: [0, 2]}
    response = [*line_tokenizer.encode("Up (2009)\nAliens (1986)"), line_tokenizer.eos_token_id]
    fields = constraint.fields(sample(["HEAT"], ["Alien"]), response)
    assert fields[CONSTRAINT].tolist() == [2, 0, 2]
    assert fields["loss_mask"].sum() == 1  # Up or Aliens; then there is nothing left to choose
    assert fields["loss_mask"][0] == 1
    assert constraint.fields(sample(["Heat"]), response)["loss_mask"].sum() > 1
