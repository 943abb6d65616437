"""A repaired list: one line differs, it is a wanted title as the catalog has it, and tokens say what text says."""

from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from convrec.features.constrained.catalog_trie import build_catalog_trie
from convrec.features.constrained.rollout import ListConstraint
from convrec.features.repair.maths import ListRepair
from convrec.lists.catalog import Catalog
from convrec.lists.matching import Matcher
from convrec.lists.ranks import format_item, split_lines
from convrec.lists.settings import ListSettings
from convrec.lists.token_ranks import token_rank_ids
from tests.convrec.lists.test_token_ranks import BUILDERS, get_table, get_tokenizer

ITEMS = [("Heat", 1995), ("Up", 2009), ("Amélie", 2001), ("8 Mile", 2002), ("Alien", 1979), ("Se7en", 1995)]
MATCHER = Matcher(Catalog.from_items(ITEMS))
N = 3


def repair_of(tokenizer: Any, ranks: int = N, most_tokens: int = 200, find_row: Any = None) -> ListRepair:
    return ListRepair(
        tokenizer, MATCHER, ListSettings(num_items=N), ranks, most_tokens, find_row or (lambda item: item)
    )


def tokens(tokenizer: Any, text: str) -> list[int]:
    return [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]


def text_of(tokenizer: Any, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True)


WRITTEN = st.sampled_from(
    [*(format_item(*item) for item in ITEMS), "1. Heat (1995)", "no film", " - Up (2009)", "Ran (1985) ", "千と千尋"]
)


@settings(max_examples=50, deadline=None)
@given(
    kind=st.sampled_from(sorted(BUILDERS)),
    lines=st.lists(WRITTEN, min_size=1, max_size=6),
    ends=st.sampled_from(["", "\n", "\n\n"]),
    between=st.sampled_from(["\n", "\n\n", "\n \n"]),
    seed=st.integers(0, 99),
    wanted=st.lists(st.sampled_from(ITEMS), min_size=1, max_size=3, unique=True),
    seen=st.lists(st.sampled_from([title for title, _ in ITEMS]), max_size=2),
)
def test_exactly_one_line_differs_and_tokens_say_what_text_says(
    kind: str, lines: list[str], ends: str, between: str, seed: int, wanted: list[Any], seen: list[str]
) -> None:
    tokenizer, table = get_tokenizer(kind), get_table(kind)
    ids = tokens(tokenizer, between.join(lines) + ends)
    old = split_lines(text_of(tokenizer, ids))
    found = repair_of(tokenizer).repaired(ids, wanted, seen, Random(seed))
    assert found == repair_of(tokenizer).repaired(ids, wanted, seen, Random(seed))
    held = MATCHER.match_lines(old, (), None).catalog_index
    can_hit = [ITEMS.index(item) for item in wanted if item[0] not in seen and ITEMS.index(item) not in held]
    if not can_hit:
        assert found is None
        return
    if found is None and kind in ("unsplit", "unigram"):
        return  # a token may have the end of one line and the start of the next; unigram lacks some letters
    assert found is not None
    new, rank, kept = found
    changed = split_lines(text_of(tokenizer, new))
    assert [place for place, (a, b) in enumerate(zip(old, changed, strict=True)) if a != b] == [rank]
    assert rank < N
    assert changed[rank] in [format_item(*ITEMS[item]) for item in can_hit]
    relevance = MATCHER.match_lines(changed[:N], wanted, seen).relevance
    assert relevance[rank] == 1

    def ranks(ids: list[int]) -> list[int]:
        row = torch.tensor([ids])
        return token_rank_ids(row, torch.ones_like(row), table, [tokenizer.eos_token_id])[0].tolist()

    # the other lines have the tokens that they had, in the order that they had; so has the end of the sequence
    assert new[-1] == ids[-1] == tokenizer.eos_token_id
    for other in {*ranks(ids)} - {rank}:
        assert [t for t, r in zip(new, ranks(new), strict=True) if r == other] == [
            t for t, r in zip(ids, ranks(ids), strict=True) if r == other
        ]
    assert new[:kept] == ids[:kept]
    assert ranks(new)[kept] == rank
    assert rank not in ranks(ids)[:kept]


def test_ranks_and_titles_are_drawn_evenly() -> None:
    tokenizer = get_tokenizer("qwen2")
    ids = tokens(tokenizer, "Ran (1985)\nRan (1985)\nRan (1985)\nRan (1985)")

    def drawn(ranks: int) -> tuple[set[int], dict[str, int]]:
        places, titles = set(), dict.fromkeys(("Heat (1995)", "Up (2009)"), 0)
        for seed in range(200):
            found = repair_of(tokenizer, ranks).repaired(ids, [("Heat", 1995), ("Up", 2009)], (), Random(seed))
            assert found is not None
            places.add(found[1])
            titles[split_lines(text_of(tokenizer, found[0]))[found[1]]] += 1
        return places, titles

    places, titles = drawn(N)
    assert places == {0, 1, 2}  # the fourth line is overflow
    assert min(titles.values()) > 70
    assert drawn(2)[0] == {0, 1}


@pytest.mark.parametrize(
    ("text", "wanted", "seen", "most_tokens"),
    [
        ("Ran (1985)", [("Solaris", 1972)], [], 200),  # not in the catalog
        ("Ran (1985)", [], [], 200),
        ("Ran (1985)", [("Heat", 1995)], ["Heat"], 200),  # seen
        ("Ran (1985)\nUp (2009)\nRan (1985)\nHeat (1995)", [("Heat", 1995)], [], 200),  # stands behind the N-th
        ("", [("Heat", 1995)], [], 200),
        ("Ran (1985)", [("Heat", 1995)], [], 5),  # cut off
    ],
)
def test_what_cannot_be_repaired_is_left(text: str, wanted: list[Any], seen: list[str], most_tokens: int) -> None:
    tokenizer = get_tokenizer("qwen2")
    assert (
        repair_of(tokenizer, most_tokens=most_tokens).repaired(tokens(tokenizer, text), wanted, seen, Random(1)) is None
    )


def test_a_longer_line_must_fit() -> None:
    tokenizer = get_tokenizer("qwen2")
    ids = tokens(tokenizer, "A\nB")
    found = repair_of(tokenizer).repaired(ids, [("Amélie", 2001)], (), Random(1))
    assert found is not None
    assert len(found[0]) > len(ids) + 1
    enough = repair_of(tokenizer, most_tokens=len(found[0])).repaired(ids, [("Amélie", 2001)], (), Random(1))
    assert enough == found
    assert repair_of(tokenizer, most_tokens=len(found[0]) - 1).repaired(ids, [("Amélie", 2001)], (), Random(1)) is None


@pytest.mark.parametrize("seed", range(12))
def test_a_constrained_list_stays_one_with_its_forced_tokens(line_tokenizer: Any, seed: int) -> None:
    """Read back under the constraint, which raises for a list that it cannot have made; items that it cannot write are
    not put in."""
    trie = build_catalog_trie(MATCHER, line_tokenizer, "\n", allowed_rows=[0, 1, 2, 3, 4])  # without Se7en
    constraint = ListConstraint(trie, MATCHER, N)
    repair = repair_of(line_tokenizer, find_row=constraint.find_row)
    ids = tokens(line_tokenizer, "Alien (1979)\n8 Mile (2002)\nAmélie (2001)")
    sample = {"reward_model": {"ground_truth": {"groundtruth": [], "seen": ["Up"]}}}
    found = repair.repaired(ids, [("Heat", 1995), ("Se7en", 1995), ("Up", 2009)], ["Up"], Random(seed))
    assert found is not None
    new, rank, _ = found
    assert split_lines(text_of(line_tokenizer, new))[rank] == "Heat (1995)"
    fields = constraint.constraint_fields(sample, new)
    assert 0 < fields["loss_mask"].sum() < len(new)
    assert repair.repaired(ids, [("Se7en", 1995)], (), Random(seed)) is None
