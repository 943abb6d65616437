"""Micro-batches of rows of like length: every row once, within the limit, little padding, and verl's order restored."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from verl.utils import tensordict_utils
from verl.utils.seqlen_balancing import restore_dynamic_batch

from convrec.training.attention import without_flash as micro_batches
from convrec.training.attention.without_flash import (
    MIN_LENGTH_SHARE,
    compute_label_log_probs,
    group_by_length,
    split_groups,
)

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=60)


@given(LENGTHS, st.integers(300, 2000), st.integers(1, 60))
def test_every_row_once_within_the_limit_and_of_like_length(lengths: list[int], limit: int, asked: int) -> None:
    asked = min(asked, len(lengths))
    groups = split_groups(group_by_length(lengths, limit), asked)
    assert sorted(row for group in groups for row in group) == list(range(len(lengths)))
    assert len(groups) >= asked
    for group in groups:
        longest = max(lengths[row] for row in group)
        assert len(group) * longest <= limit
        assert min(lengths[row] for row in group) >= MIN_LENGTH_SHARE * longest


def test_padding_is_a_fraction_of_what_one_micro_batch_has() -> None:
    """8 rows of 100 and one of 300: 9 x 300 positions together, 8 x 100 + 300 apart."""
    groups = group_by_length([100] * 4 + [300] + [100] * 4, 10_000)
    assert groups == [[4], [0, 1, 2, 3, 5, 6, 7, 8]]


def batch(lengths: list[int], **options: object):
    rows = [torch.full((length,), row) for row, length in enumerate(lengths)]
    data = {"input_ids": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}
    return tensordict_utils.get_tensordict(data, {"use_remove_padding": False, **options})


def test_verl_puts_the_outputs_back_in_order() -> None:
    lengths = [6, 90, 7, 80, 6, 100]
    parts, groups = micro_batches.prepare_micro_batches(batch(lengths, max_token_len_per_gpu=1000))
    assert groups is not None
    assert [[int(row[0]) for row in part["input_ids"].unbind()] for part in parts] == groups
    assert len(groups) == 2
    values = [row for part in parts for row in part["input_ids"].unbind()]
    outputs = torch.nested.as_nested_tensor(values, layout=torch.jagged)
    restored = restore_dynamic_batch(outputs, groups)
    assert [(int(row[0]), len(row)) for row in restored.unbind()] == list(enumerate(lengths))


def test_a_row_longer_than_a_micro_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="a row of 90 tokens is longer than a micro-batch may be, 50 tokens"):
        micro_batches.prepare_micro_batches(batch([5, 90], max_token_len_per_gpu=50))


def test_packed_rows_and_fixed_counts_are_left_to_verl() -> None:
    data = batch([5, 90, 7, 80], max_token_len_per_gpu=100)
    tensordict_utils.assign_non_tensor(data, use_remove_padding=True)
    _, groups = micro_batches.prepare_micro_batches(data)
    assert groups is not None
    assert sorted(map(sorted, groups)) != sorted(map(sorted, group_by_length([5, 90, 7, 80], 100)))
    assert sorted(len(group) for group in groups) == [1, 3]  # a long row balances the rest: no padding to save
    data = batch([5, 90, 7, 80], use_dynamic_bsz=False, micro_batch_size_per_gpu=2)
    parts, groups = micro_batches.prepare_micro_batches(data)
    assert groups is None
    assert [len(part) for part in parts] == [2, 2]


def test_verls_engine_calls_it() -> None:
    from verl.workers.engine.fsdp import transformer_impl

    before = transformer_impl.prepare_micro_batches
    try:
        micro_batches.install()
        assert transformer_impl.prepare_micro_batches is micro_batches.prepare_micro_batches
    finally:
        transformer_impl.prepare_micro_batches = before


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_log_probs_of_labels_are_verls(dtype: torch.dtype, tolerance: float) -> None:
    from verl.utils.torch_functional import logprobs_from_logits_v2

    logits = (30 * torch.randn(7, 50, generator=torch.Generator().manual_seed(0), dtype=dtype)).requires_grad_()
    labels = torch.arange(7)
    ours, theirs = compute_label_log_probs(logits, labels), logprobs_from_logits_v2(logits, labels)
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=0)
    weights = torch.arange(7, dtype=dtype)
    (ours_grad,) = torch.autograd.grad((ours * weights).sum(), logits)
    (theirs_grad,) = torch.autograd.grad((theirs * weights).sum(), logits)
    torch.testing.assert_close(ours_grad, theirs_grad, atol=tolerance, rtol=0)
