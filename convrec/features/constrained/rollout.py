"""Sampling of constrained lists: the requests to vLLM, and the fields that accompany a list."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from convrec.features.constrained.catalog_trie import CatalogTrie, find_excluded_items, load_catalog_trie
from convrec.features.constrained.choices import ChoiceReader
from convrec.features.constrained.vllm_lists import EXCLUDE, ITEMS, TRIE
from convrec.features.feature import RolloutFeature
from convrec.features.responses import OPEN, SampledResponse
from convrec.titles.matching import Matcher

CONSTRAINT = "constraint"  # field of a batch: each row's number of items, then its excluded items


def load_trie(rollout: Mapping[str, Any]) -> CatalogTrie | None:
    """Load the catalog's trie that verl's rollout settings name.

    Args:
        rollout: the section actor_rollout_ref.rollout.

    Returns:
        The trie; None if lists are not constrained.

    Raises:
        FileNotFoundError: the file is missing.
        UserError: the file is damaged.
    """
    engine = (rollout.get("engine_kwargs") or {}).get("vllm") or {}
    file = (engine.get("additional_config") or {}).get(TRIE)
    return load_catalog_trie(Path(file)) if file else None


class ListConstraint(RolloutFeature):
    """The constraint of a run's lists: catalog items only, none of them seen in the conversation.

    Args:
        catalog: the lines that a list may contain.
        matcher: decides which items the seen titles are; it has the catalog that the lines come from.
        num_items: items in a list; a list has fewer if fewer are unseen.
    """

    needs_groups = True

    def __init__(self, catalog: CatalogTrie, matcher: Matcher, num_items: int) -> None:
        self.reader = ChoiceReader(catalog)
        self.matcher = matcher
        self.num_items = num_items
        self._excluded = lru_cache(maxsize=4096)(lambda seen: find_excluded_items(matcher, seen))

    def excluded(self, sample: Mapping[str, Any]) -> list[int]:
        """Return what a list must not contain, in the form that `Walk` takes.

        Args:
            sample: the columns of the prompt's row.

        Returns:
            The items, as their first rows, that any row of the sample has seen; and -1 - q for each open question q.
        """
        truth = sample["reward_model"]["ground_truth"]
        truth = json.loads(truth) if isinstance(truth, str) else truth
        seen = [row["seen"] for row in truth.get("rows", [truth]) if row.get("seen") is not None]
        titles = {title for row in seen for title in row}
        return [*sample.get(OPEN, ()), *self._excluded(tuple(sorted(titles)))]

    def find_row(self, item: int) -> int | None:
        """Return the catalog row whose line writes an item.

        Args:
            item: the item, as its first row.

        Returns:
            The row; None for an item that no list may contain.
        """
        lines = self.reader.catalog.find_lines(item)
        return int(self.reader.catalog.row_W[lines[0]]) if lines else None

    def sampling_params(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        return {"extra_args": {ITEMS: self.num_items, EXCLUDE: self.excluded(sample)}}

    def response_fields(self, response: SampledResponse) -> dict[str, Any]:
        return self.constraint_fields(response.sample, response.output.response_ids)

    def constraint_fields(self, sample: Mapping[str, Any], response: Sequence[int]) -> dict[str, torch.Tensor]:
        """Return the fields from which the trainer finds a response's choices again.

        Args:
            sample: the columns of the prompt's row.
            response: the tokens of the response.

        Returns:
            CONSTRAINT, the number of items and then the excluded items, int64; and "loss_mask", (T,) int64, 1
            where more than one token was allowed.

        Raises:
            ValueError: the response cannot have been sampled under this constraint.
        """
        constraint = [self.num_items, *self.excluded(sample)]
        mask_T = torch.zeros(len(response), dtype=torch.int64)
        mask_T[torch.from_numpy(self.reader.read(response, constraint).place_F).long()] = 1
        return {CONSTRAINT: torch.tensor(constraint), "loss_mask": mask_T}
