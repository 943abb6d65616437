"""Weighted reciprocal ranks by hand, and as properties of any lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.retrieval.retriever import DEPTH, Fusion, fuse

LISTS = st.lists(st.lists(st.integers(0, 30), unique=True), min_size=2, max_size=2)


def test_fusion_by_hand() -> None:
    """Constant 10, weights 1 and 2: a is 1/11 = .0909, b 1/12 + 2/11 = .2652, c 2/12 = .1667."""
    assert fuse([["a", "b"], ["b", "c"]], [1, 2], 10) == ["b", "c", "a"]  # type: ignore[list-item, comparison-overlap]
    # 1 has 1/11, 2 and 3 tie with 1/12: the first list's order decides
    assert fuse([[1, 2], [1, 3]], [0.5, 0.5], 10) == [1, 2, 3]


def test_small_constant_favours_top_ranks_and_large_agreement() -> None:
    first, second = [1, 2, 3, 4], [5, 6, 7, 4]
    # item 4 is last in both: 2/(c + 4) against 1/(c + 1): 2/4.5 < 1/1.5 for c = .5, 2/14 > 1/11 for c = 10
    assert fuse([first, second], [1, 1], 0.5)[:2] == [1, 5]
    assert fuse([first, second], [1, 1], 10)[0] == 4


@given(LISTS, st.sampled_from([1.0, 10.0, 60.0]))
def test_weights_1_and_0_are_either_list_alone(lists: list[list[int]], constant: float) -> None:
    written, retrieved = lists
    assert Fusion(1.0, constant).of(written, retrieved) == written
    assert Fusion(0.0, constant).of(written, retrieved) == retrieved


@given(LISTS, st.floats(0.05, 0.95), st.sampled_from([1.0, 10.0, 60.0]))
def test_fused_list_is_duplicate_free_and_keeps_agreed_order(
    lists: list[list[int]], weight: float, constant: float
) -> None:
    fused = Fusion(weight, constant).of(*lists)
    assert sorted(fused) == sorted({*lists[0], *lists[1]})
    both = [item for item in lists[0] if item in lists[1]]
    for first in both:
        for second in both:
            if all(items.index(first) < items.index(second) for items in lists):
                assert fused.index(first) < fused.index(second)


def test_long_retrieval_is_cut_before_fusion() -> None:
    fused = Fusion(0.5, 10.0).of([DEPTH + 5], range(DEPTH + 10))
    assert len(fused) == DEPTH + 1
    assert fused[:2] == [DEPTH + 5, 0]  # they tie with 1/11, so the model's comes first


def test_a_list_for_each_weight_is_needed() -> None:
    with pytest.raises(ValueError, match="zip"):
        fuse([[1]], [1, 1], 10)
