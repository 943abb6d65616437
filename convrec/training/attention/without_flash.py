"""What changes where flash-attn is missing: micro-batches of rows of similar length, log-probs in one call.

Without flash-attn verl pads a micro-batch to its longest row, and it balances micro-batches by putting long and short
rows together. What that costs depends on the longest prompt (docs/explanation/performance.md).
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch

SHORTEST = 0.75  # of the longest row's length: more micro-batches cost more than the padding they save


def group_by_length(lengths: Sequence[int], max_tokens: int, num_groups: int = 1) -> list[list[int]]:
    """Rows from the longest to the shortest, cut so that no group is longer than `max_tokens` with its padding.

    Args:
        num_groups: at least so many; groups with the most rows are halved until there are. At most one a row.
    """
    groups: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        longest = lengths[groups[-1][0]] if groups else 0
        if groups and lengths[row] >= SHORTEST * longest and (len(groups[-1]) + 1) * longest <= max_tokens:
            groups[-1].append(row)
        else:
            groups.append([row])
    while len(groups) < num_groups:
        index = max(range(len(groups)), key=lambda index: len(groups[index]))
        rows = groups[index]
        groups[index : index + 1] = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    return groups


def prepare_micro_batches(data: Any, dp_group: Any = None, **options: Any) -> tuple[list[Any], list[list[int]] | None]:
    """In place of verl's: the same for packed rows and for micro-batches of a fixed count, else `group_by_length`."""
    from verl.utils import tensordict_utils
    from verl.utils.device import get_device_name
    from verl.workers.engine import utils

    asked = {
        name: tensordict_utils.get_non_tensor_data(data=data, key=name, default=default)
        for name, default in (("use_remove_padding", True), ("use_dynamic_bsz", True), ("force_group_size", 1))
    }
    if asked["use_remove_padding"] or not asked["use_dynamic_bsz"] or asked["force_group_size"] > 1:
        return utils.prepare_micro_batches(data, dp_group=dp_group, **options)
    lengths = data["input_ids"].offsets().diff().tolist()
    limit = int(data["max_token_len_per_gpu"])
    if max(lengths) > limit:
        raise ValueError(f"a row of {max(lengths)} tokens is longer than a micro-batch may be, {limit} tokens")
    groups = group_by_length(lengths, limit)
    if dp_group is not None:  # FSDP gathers once a micro-batch: every process needs as many
        count = torch.tensor([len(groups)], device=get_device_name())
        torch.distributed.all_reduce(count, op=torch.distributed.ReduceOp.MAX, group=dp_group)
        groups = group_by_length(lengths, limit, int(count))
    return [tensordict_utils.index_select_tensor_dict(data, rows) for rows in groups], groups


def log_probs_of_labels(logits: torch.Tensor, labels: torch.Tensor, inplace_backward: bool = True) -> torch.Tensor:
    """log softmax(logits)[label] for logits (..., V) and labels (...), in float32 at least; verl's signature."""
    vocab_size = logits.shape[-1]
    flat = logits.reshape(-1, vocab_size)
    if flat.dtype in (torch.bfloat16, torch.float16):
        flat = flat.float()
    loss = torch.nn.functional.cross_entropy(flat, labels.reshape(-1), reduction="none")
    return -loss.view(labels.shape)


def install() -> None:
    """Have verl's FSDP engine make its micro-batches by our rule. Calling it again does nothing.

    Where flash-attn is missing, verl takes log-probs in a Python loop over tokens, which was about 70 % of an update of
    the demo's model; take them in one call, which needs a second tensor the size of the logits.
    """
    from verl.workers.engine.fsdp import transformer_impl

    transformer_impl.prepare_micro_batches = prepare_micro_batches
    if find_spec("flash_attn") is None:
        transformer_impl.logprobs_from_logits = log_probs_of_labels
