"""Attention over packed sequences without flash-attn: `attn_implementation="varlen"` of transformers.

verl packs a micro-batch into one row without padding (`use_remove_padding`); sequences are told apart by position ids
that begin again at 0. flash-attn, which transformers takes for such rows, has no wheel on the package index. PyTorch
has the same kernel for CUDA, with its gradient: `torch.nn.attention.varlen.varlen_attn`. On a CPU the same interface
is computed sequence by sequence with scaled_dot_product_attention: no padding is computed there either.

Shapes: H query heads, K key/value heads (H is a multiple of K), T tokens of all sequences, D of a head, S sequences.
"""

from typing import Any

import torch

NAME = "varlen"


def sequence_starts(position_ids_1T: torch.Tensor) -> torch.Tensor:
    """(S + 1,) int32: where each packed sequence begins, and T. A sequence begins where the position id is 0."""
    positions_T = position_ids_1T.reshape(-1)
    starts = (positions_T == 0).nonzero().view(-1).to(torch.int32)
    if not len(starts) or starts[0] != 0:
        raise ValueError("the first position id of a packed row must be 0")
    return torch.cat([starts, starts.new_tensor([len(positions_T)])])


def _packing(position_ids_1T: torch.Tensor) -> tuple[torch.Tensor, int]:
    """(sequence_starts, tokens of the longest sequence), kept on the tensor, which all layers of a forward share: each
    makes the host wait for the device."""
    if not hasattr(position_ids_1T, "packing"):
        starts = sequence_starts(position_ids_1T)
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
    """(T, H, D): causal attention within each sequence. On a GPU key and value have as many heads as the query.

    Args:
        starts: (S + 1,) int32, as `sequence_starts` gives it; longest: tokens of the longest sequence.
        window: a token sees itself and so many minus one before it; None for all.
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
        # (1, heads, tokens, D): without the 1 PyTorch does not take its fast kernel
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
    """transformers' attention interface: query (1, H, T, D), key and value (1, K, T, D) -> (1, T, H, D).

    Raises ValueError for what it does not compute: padded batches, dropout, soft-capped scores.
    """
    if query.shape[0] != 1 or attention_mask is not None:
        raise ValueError("attn_implementation=varlen takes one packed row without a mask: set use_remove_padding=true")
    if dropout or kwargs.get("softcap"):
        raise ValueError("attn_implementation=varlen has neither dropout nor soft-capped scores: use sdpa")
    if position_ids is None:
        raise ValueError("attn_implementation=varlen needs the position ids, which tell packed sequences apart")
    starts, longest = _packing(position_ids)
    groups = query.shape[1] // key.shape[1]
    if groups > 1 and query.is_cuda:
        key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
    # fp32 weights (a norm kept in fp32, say) under autocast: the kernel takes 16-bit tensors only
    dtype = torch.get_autocast_dtype("cuda") if query.is_cuda and query.dtype == torch.float32 else query.dtype
    query_THD, key_THD, value_THD = (
        tensor.squeeze(0).transpose(0, 1).to(dtype).contiguous() for tensor in (query, key, value)
    )
    output_THD = varlen_attention(query_THD, key_THD, value_THD, starts, longest, scaling, sliding_window)
    return output_THD.to(query.dtype).unsqueeze(0), None


def _no_mask(*args: Any, attention_mask: torch.Tensor | None = None, **kwargs: Any) -> torch.Tensor | None:
    """A packed row needs none; a padded one is refused by `attention_forward`, unless nothing of it is padding."""
    return None if attention_mask is None or bool(attention_mask.all()) else attention_mask


def register() -> None:
    """Make `varlen` known to transformers in this process. Calling it again does nothing."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, _no_mask)
