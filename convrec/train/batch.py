"""The rows of a training step in TransferQueue: the only place of the training side that knows its fields.

verl's trainer passes a KVBatchMeta (keys and tags) from phase to phase. The tensors stay in TransferQueue, nested, a
row per response. What the rollout puts there is `convrec.features.responses.SampledResponse.fields`.

Shapes: B rows, T response tokens (padded here, nested there).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.utils.padding import response_from_nested, response_to_nested

from convrec.rank_grpo.credit import Credit, RankBatch

UNITS = "policy_units"  # unit id + 1 of every response token, 0 for none: verl pads nested tensors with 0


def read_fields(meta: KVBatchMeta, *fields: str) -> TensorDict:
    """Return these fields of the rows, nested."""
    return tq.kv_batch_get(keys=meta.keys, partition_id=meta.partition_id, select_fields=list(fields))


def is_padding(meta: KVBatchMeta) -> list[bool]:
    """Return for each row whether verl added it to fill the batch up."""
    return [bool(tag.get("is_padding", False)) for tag in meta.tags]


def read_rank_batch(meta: KVBatchMeta, pad_token_id: int, optional: Sequence[str] = ()) -> RankBatch:
    """Read the rows of a step.

    Args:
        meta: the step's rows.
        pad_token_id: what shorter responses are padded with.
        optional: further response fields, padded with 0, for `RankBatch.optional_BT`.
    """
    fields = ["uid", "responses", "response_mask", "extra_fields", *optional]
    data = read_fields(meta, *dict.fromkeys(fields))
    padding_B = is_padding(meta)
    prompts = [row if padding else uid for row, (uid, padding) in enumerate(zip(data["uid"], padding_B, strict=True))]
    return RankBatch(
        prompts=prompts,
        is_padding_B=torch.tensor(padding_B),
        extra_fields=list(data["extra_fields"]),
        responses_BT=data["responses"].to_padded_tensor(padding=pad_token_id),
        mask_BT=data["response_mask"].to_padded_tensor(padding=0),
        optional_BT={name: data[name].to_padded_tensor(padding=0) for name in optional},
    )


def write_credit(meta: KVBatchMeta, batch: RankBatch, credit: Credit, more: Mapping[str, torch.Tensor]) -> KVBatchMeta:
    """Write what the loss reads: advantages and units.

    Args:
        meta: the step's rows.
        batch: as `read_rank_batch` returned it.
        credit: of the batch.
        more: further (B, T) fields, for instance another loss mask.
    """
    output = {
        "advantages": credit.advantages_BT,
        "returns": credit.returns_BT(batch.returns_BK),
        UNITS: credit.units_BT + 1,
        **more,
    }
    nested_mask = read_fields(meta, "response_mask")["response_mask"]
    nested = {name: response_to_nested(values_BT, nested_mask) for name, values_BT in output.items()}
    fields = TensorDict(nested, batch_size=len(meta))
    return tq.kv_batch_put(keys=meta.keys, partition_id=meta.partition_id, fields=fields)


def read_policies(meta: KVBatchMeta) -> TensorDict:
    """Return the response mask and the log-probs of rollout and old policy, padded to (B, T)."""
    return read_fields(meta, "response_mask", "rollout_log_probs", "old_log_probs").to_padded_tensor()


def read_rollout_and_actor(meta: KVBatchMeta) -> TensorDict:
    """Return the loss mask and the log-probs of rollout and actor, padded to (B, T).

    The actor's are those that `compute_log_prob` wrote last, of prompts and responses.
    """
    data = read_fields(meta, "log_probs", "rollout_log_probs", "loss_mask")
    data["log_probs"] = response_from_nested(data["log_probs"], data["loss_mask"])
    return data.to_padded_tensor()


def write_rows(meta: KVBatchMeta, rows: Sequence[int], fields: Sequence[Mapping[str, Any]]) -> None:
    """Write fields of some rows of the batch, one mapping per row."""
    keys = [meta.keys[row] for row in rows]
    tq.kv_batch_put(keys=keys, partition_id=meta.partition_id, fields=list_of_dict_to_tensordict(list(fields)))


def clear_rows(meta: KVBatchMeta) -> None:
    """Remove the rows of a finished step from TransferQueue."""
    tq.kv_clear(keys=meta.keys, partition_id=meta.partition_id)
