"""Lists sampled under the constraint of a run's catalog: what vLLM is asked for, and what travels with a list."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from convrec.features.constrained.catalog_trie import CatalogTrie, excluded_items, load_catalog_trie
from convrec.features.constrained.choices import ChoiceReader
from convrec.features.constrained.vllm_lists import EXCLUDE, ITEMS, TRIE
from convrec.features.feature import RolloutFeature
from convrec.features.responses import OPEN, SampledResponse
from convrec.titles.matching import Matcher

CONSTRAINT = "constraint"  # field of a batch: of each row the number of items, then the excluded items


def load_trie(rollout: Mapping[str, Any]) -> CatalogTrie | None:
    """Return the catalog's trie that verl's settings of a rollout name; None where lists are free."""
    engine = (rollout.get("engine_kwargs") or {}).get("vllm") or {}
    file = (engine.get("additional_config") or {}).get(TRIE)
    return load_catalog_trie(Path(file)) if file else None


class ListConstraint(RolloutFeature):
    """The constraint of a run's lists, `num_items` items each. The titles that a sample has seen are excluded."""

    needs_groups = True

    def __init__(self, catalog: CatalogTrie, matcher: Matcher, num_items: int) -> None:
        self.reader = ChoiceReader(catalog)
        self.matcher = matcher
        self.num_items = num_items
        self._excluded = lru_cache(maxsize=4096)(lambda seen: excluded_items(matcher, seen))

    def excluded(self, sample: Mapping[str, Any]) -> list[int]:
        """Return the items that any row of the sample has seen, and the questions that are open to it."""
        truth = sample["reward_model"]["ground_truth"]
        truth = json.loads(truth) if isinstance(truth, str) else truth
        seen = [row["seen"] for row in truth.get("rows", [truth]) if row.get("seen") is not None]
        titles = {title for row in seen for title in row}
        return [*sample.get(OPEN, ()), *self._excluded(tuple(sorted(titles)))]

    def find_row(self, item: int) -> int | None:
        """Return the catalog row whose line lists write for an item; None for an item that no list may hold."""
        lines = self.reader.catalog.find_lines(item)
        return int(self.reader.catalog.row_W[lines[0]]) if lines else None

    def sampling_params(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        return {"extra_args": {ITEMS: self.num_items, EXCLUDE: self.excluded(sample)}}

    def response_fields(self, response: SampledResponse) -> dict[str, Any]:
        return self.constraint_fields(response.sample, response.output.response_ids)

    def constraint_fields(self, sample: Mapping[str, Any], response: Sequence[int]) -> dict[str, torch.Tensor]:
        """Return CONSTRAINT, and the loss's mask: 1 where the list had a choice."""
        constraint = [self.num_items, *self.excluded(sample)]
        mask_T = torch.zeros(len(response), dtype=torch.int64)
        mask_T[torch.from_numpy(self.reader.read(response, constraint).place_F).long()] = 1
        return {CONSTRAINT: torch.tensor(constraint), "loss_mask": mask_T}
