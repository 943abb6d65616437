"""Lists sampled under the constraint of a run's catalog: what vLLM is asked for, and what travels with a list."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from convrec.constrained.catalog_trie import CatalogTrie, excluded_items, load_catalog_trie
from convrec.constrained.choices import ChoiceReader
from convrec.constrained.vllm_lists import EXCLUDE, ITEMS, TRIE
from convrec.lists.matching import Matcher

OPEN = "open_questions"  # of a sample: what excluded items have of questions that a walk opens
CONSTRAINT = "constraint"  # of a batch: of each row the number of items, then the excluded items


def load_trie(rollout: Mapping[str, Any]) -> CatalogTrie | None:
    """The catalog's trie of a run by verl's settings of its rollout; None where lists are free."""
    engine = (rollout.get("engine_kwargs") or {}).get("vllm") or {}
    if not (given := engine.get("additional_config")):
        return None
    file = given.get(TRIE)
    return load_catalog_trie(Path(file)) if file else None


class ListConstraint:
    """The constraint of a run's lists, `num_items` items each: a sample's seen titles are excluded."""

    def __init__(self, catalog: CatalogTrie, matcher: Matcher, num_items: int):
        self.reader = ChoiceReader(catalog)
        self.matcher, self.num_items = matcher, num_items
        self._excluded = lru_cache(maxsize=4096)(lambda seen: excluded_items(matcher, seen))

    def excluded(self, sample: Mapping[str, Any]) -> list[int]:
        """What any row of the sample has seen, as items, and the questions that are open to it."""
        truth = sample["reward_model"]["ground_truth"]
        truth = json.loads(truth) if isinstance(truth, str) else truth
        seen = [row["seen"] for row in truth.get("rows", [truth]) if row.get("seen") is not None]
        return [*sample.get(OPEN, ()), *self._excluded(tuple(sorted({title for titles in seen for title in titles})))]

    def row_of(self, item: int) -> int | None:
        """The catalog row whose line lists write for an item; None for one that is in no list."""
        lines = self.reader.catalog.lines_of(item)
        return int(self.reader.catalog.row_W[lines[0]]) if lines else None

    def extra_args(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Of vLLM's sampling parameters."""
        return {ITEMS: self.num_items, EXCLUDE: self.excluded(sample)}

    def fields(self, sample: Mapping[str, Any], response: Sequence[int]) -> dict[str, torch.Tensor]:
        """Of a response in TransferQueue: CONSTRAINT, and the loss's mask, 1 where the list had a choice."""
        constraint = [self.num_items, *self.excluded(sample)]
        mask = torch.zeros(len(response), dtype=torch.int64)
        mask[torch.from_numpy(self.reader.read(response, constraint).place_F).long()] = 1
        return {CONSTRAINT: torch.tensor(constraint), "loss_mask": mask}
