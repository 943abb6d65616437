"""Generated data: shares of Zipf's law, lists under the constraint of a catalog."""

import random
from typing import Any

import numpy as np

from benchmarks.generated import draw_zipf, sample_list
from convrec.features.constrained.catalog_trie import build_catalog_trie
from convrec.features.constrained.walk import Walk
from convrec.titles.catalog import Catalog
from convrec.titles.matching import Matcher


def test_the_first_number_has_the_largest_share() -> None:
    # shares 1, 1/2 and 1/3 of 11/6: 6/11, 3/11, 2/11
    drawn = draw_zipf(np.random.default_rng(0), 3, (11_000, 1), first=1)
    assert np.abs(np.bincount(drawn[:, 0]) - [6000, 3000, 2000]).max() < 200
    # shares 1/10, 1/11, 1/12
    drawn = draw_zipf(np.random.default_rng(0), 3, (30_000, 1))
    assert np.abs(np.bincount(drawn[:, 0]) / 30_000 - np.array([66, 60, 55]) / 181).max() < 0.01


def test_a_sampled_list_has_different_items_and_says_where_it_had_a_choice(line_tokenizer: Any) -> None:
    catalog = Catalog.from_items([("Heat", 1995), ("Toy Story", 1995), ("Amélie", 2001)])
    trie = build_catalog_trie(Matcher(catalog, "exact"), line_tokenizer, "\n")
    tokens, choices = sample_list(Walk(trie, 3), random.Random(0))
    lines = line_tokenizer.decode(tokens).removesuffix("<end>").strip().split("\n")
    assert sorted(lines) == ["Amélie (2001)", "Heat (1995)", "Toy Story (1995)"]
    assert len(choices) >= 2  # which item comes first, and which second
    assert all(len(allowed) > 1 for allowed in choices)
