"""Changes of verl without flash-attn: micro-batches with rows of similar length or one prompt, log-probs in one call.

Without flash-attn verl pads a micro-batch to its longest row, and balances micro-batches by combining long and short
rows. The cost depends on the longest prompt (docs/explanation/performance.md).
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch

from convrec.training.attention.shared_prompts import (
    MIN_LENGTH_SHARE,
    SHARED_LENGTH,
    group_by_prompt,
    read_prompts,
)


def group_by_length(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Split rows, sorted from long to short, into groups of at most `max_tokens` tokens with their padding.

    Args:
        lengths: tokens of each row.
        max_tokens: limit of a group.

    Returns:
        Indices of the rows of each group.
    """
    groups: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        longest = lengths[groups[-1][0]] if groups else 0
        if groups and lengths[row] >= MIN_LENGTH_SHARE * longest and (len(groups[-1]) + 1) * longest <= max_tokens:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def split_groups(groups: Sequence[list[int]], num_groups: int) -> list[list[int]]:
    """Halve the largest groups until there are `num_groups`, which is at most the number of rows."""
    groups = list(groups)
    while len(groups) < num_groups:
        index = max(range(len(groups)), key=lambda index: len(groups[index]))
        rows = groups[index]
        groups[index : index + 1] = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    return groups


def prepare_micro_batches(data: Any, dp_group: Any = None, **options: Any) -> tuple[list[Any], list[list[int]] | None]:
    """Make micro-batches in place of verl's function, by prompt or length if rows are padded and sizes dynamic.

    Args:
        data: the rows of this process, nested, with verl's settings of the batch.
        dp_group: processes that need the same number of micro-batches; None for this process alone.
        **options: further arguments of verl's function.

    Returns:
        The micro-batches, and the indices of the rows of each; None if all micro-batches keep the order of the rows.

    Raises:
        ValueError: a row is longer than a micro-batch may be.
    """
    from verl.utils import tensordict_utils
    from verl.utils.device import get_device_name
    from verl.workers.engine import utils

    options_of_batch = {
        name: tensordict_utils.get_non_tensor_data(data=data, key=name, default=default)
        for name, default in (
            ("use_remove_padding", True),
            ("use_dynamic_bsz", True),
            ("force_group_size", 1),
            (SHARED_LENGTH, 0),
        )
    }
    is_packed = options_of_batch["use_remove_padding"]
    if is_packed or not options_of_batch["use_dynamic_bsz"] or options_of_batch["force_group_size"] > 1:
        return utils.prepare_micro_batches(data, dp_group=dp_group, **options)
    lengths = data["input_ids"].offsets().diff().tolist()
    limit = int(data["max_token_len_per_gpu"])
    if max(lengths) > limit:
        raise ValueError(f"a row of {max(lengths)} tokens is longer than a micro-batch may be, {limit} tokens")
    longest_shared = options_of_batch[SHARED_LENGTH] if data.get("responses", None) is not None else 0
    shared = [row for row, length in enumerate(lengths) if length <= longest_shared]
    padded = [row for row, length in enumerate(lengths) if length > longest_shared]
    prompts = read_prompts(data) if shared else []
    groups = [
        *(
            [shared[place] for place in group]
            for group in group_by_prompt([prompts[row] for row in shared], [lengths[row] for row in shared], limit)
        ),
        *([padded[place] for place in group] for group in group_by_length([lengths[row] for row in padded], limit)),
    ]
    if dp_group is not None:  # FSDP gathers once per micro-batch, so every process needs the same number
        count = torch.tensor([len(groups)], device=get_device_name())
        torch.distributed.all_reduce(count, op=torch.distributed.ReduceOp.MAX, group=dp_group)
        groups = split_groups(groups, int(count))
    return [tensordict_utils.index_select_tensor_dict(data, rows) for rows in groups], groups


def compute_label_log_probs(logits: torch.Tensor, labels: torch.Tensor, inplace_backward: bool = True) -> torch.Tensor:
    """Return the log-probs of labels, in float32 or higher.

    Args:
        logits: (..., V).
        labels: (...), token ids.
        inplace_backward: not used; part of verl's signature.
    """
    vocab_size = logits.shape[-1]
    flat = logits.reshape(-1, vocab_size)
    if flat.dtype in (torch.bfloat16, torch.float16):
        flat = flat.float()
    loss = torch.nn.functional.cross_entropy(flat, labels.reshape(-1), reduction="none")
    return -loss.view(labels.shape)


def install() -> None:
    """Make verl's FSDP engine use our micro-batches; a second call has no effect.

    Without flash-attn, verl computes log-probs in a Python loop over tokens, which took about 70 % of an update of the
    demo's model. They are computed in one call instead, which needs a second tensor of the size of the logits.
    """
    from verl.workers.engine.fsdp import transformer_impl

    transformer_impl.prepare_micro_batches = prepare_micro_batches
    if find_spec("flash_attn") is None:
        transformer_impl.logprobs_from_logits = compute_label_log_probs
