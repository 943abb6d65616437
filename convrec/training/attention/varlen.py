"""Attention over packed sequences without flash-attn: `attn_implementation="varlen"` of transformers.

verl packs a micro-batch into one row without padding (`use_remove_padding`); the position ids of each sequence start at
0. flash-attn, which transformers uses for such rows, has no wheel on the package index. PyTorch has the same kernel for
CUDA, with its gradient: `torch.nn.attention.varlen.varlen_attn`. On a CPU, scaled_dot_product_attention is called for
each sequence, so that no padding is computed either.

Shapes: H query heads, K key/value heads (H is a multiple of K), T tokens of all sequences, D head size, S sequences.
"""

from typing import Any

import torch

NAME = "varlen"


def find_sequence_starts(position_ids_1T: torch.Tensor) -> torch.Tensor:
    """Find where packed sequences begin: at position ids of 0.

    Args:
        position_ids_1T: position ids of the packed row.

    Returns:
        The first position of each sequence, and T: (S + 1,) int32.

    Raises:
        ValueError: the row does not begin with a position id of 0.
    """
    positions_T = position_ids_1T.reshape(-1)
    starts = (positions_T == 0).nonzero().view(-1).to(torch.int32)
    if not len(starts) or starts[0] != 0:
        raise ValueError("the first position id of a packed row must be 0")
    return torch.cat([starts, starts.new_tensor([len(positions_T)])])


def _packing(position_ids_1T: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return the starts of the sequences and the length of the longest one.

    They are cached on the tensor, which all layers of a forward pass share, because computing them makes the host wait
    for the device.
    """
    if not hasattr(position_ids_1T, "packing"):
        starts = find_sequence_starts(position_ids_1T)
        position_ids_1T.packing = starts, int(starts.diff().max())
    packing: tuple[torch.Tensor, int] = position_ids_1T.packing
    return packing


def varlen_attention(
    query_THD: torch.Tensor,
    key_THD: torch.Tensor,
    value_THD: torch.Tensor,
    starts: torch.Tensor,
    longest: int,
    scale: float | None,
    window: int | None = None,
) -> torch.Tensor:
    """Compute causal attention within each sequence.

    Args:
        query_THD: queries.
        key_THD: keys; on a GPU with as many heads as the query.
        value_THD: values, with as many heads as the keys.
        starts: the result of `find_sequence_starts`.
        longest: length of the longest sequence.
        scale: factor of the scores; None means 1 / sqrt(D).
        window: number of tokens that a token attends to, including itself; None means all.

    Returns:
        (T, H, D).
    """
    if query_THD.is_cuda:
        from torch.nn.attention.varlen import varlen_attn

        left = -1 if window is None else window - 1
        return varlen_attn(
            query_THD, key_THD, value_THD, starts, starts, longest, longest, scale=scale, window_size=(left, 0)
        )
    lengths = starts.diff().tolist()
    outputs = []
    for parts in zip(*(tensor.split(lengths) for tensor in (query_THD, key_THD, value_THD)), strict=True):
        # Each part is (1, heads, tokens, D): without the leading 1 PyTorch does not use its fast kernel.
        query, key, value = (part.transpose(0, 1).unsqueeze(0) for part in parts)
        length = query.shape[2]
        mask = None
        if window is not None and window < length:
            distance = torch.arange(length)[:, None] - torch.arange(length)
            mask = (distance >= 0) & (distance < window)
        output = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True
        )
        outputs.append(output.squeeze(0).transpose(0, 1))
    return torch.cat(outputs)


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    position_ids: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention with the interface of transformers: query (1, H, T, D), key and value (1, K, T, D).

    Returns:
        (1, T, H, D), and None for the weights.

    Raises:
        ValueError: the batch is padded, or has dropout or soft-capped scores, which are not supported.
    """
    if query.shape[0] != 1 or attention_mask is not None:
        raise ValueError("attn_implementation=varlen needs one packed row without a mask: set use_remove_padding=true")
    if dropout or kwargs.get("softcap"):
        raise ValueError("attn_implementation=varlen supports neither dropout nor soft-capped scores: use sdpa")
    if position_ids is None:
        raise ValueError("attn_implementation=varlen needs position ids, which separate packed sequences")
    starts, longest = _packing(position_ids)
    groups = query.shape[1] // key.shape[1]
    if groups > 1 and query.is_cuda:
        key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
    # under autocast, fp32 weights such as those of a norm give fp32 tensors, but the kernel needs 16 bits
    dtype = torch.get_autocast_dtype("cuda") if query.is_cuda and query.dtype == torch.float32 else query.dtype
    query_THD, key_THD, value_THD = (
        tensor.squeeze(0).transpose(0, 1).to(dtype).contiguous() for tensor in (query, key, value)
    )
    output_THD = varlen_attention(query_THD, key_THD, value_THD, starts, longest, scaling, sliding_window)
    return output_THD.to(query.dtype).unsqueeze(0), None


def _no_mask(*args: Any, attention_mask: torch.Tensor | None = None, **kwargs: Any) -> torch.Tensor | None:
    """Drop a mask without padding; `attention_forward` refuses other masks."""
    return None if attention_mask is None or bool(attention_mask.all()) else attention_mask


def register() -> None:
    """Register `varlen` with transformers in this process; a second call has no effect."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, _no_mask)
