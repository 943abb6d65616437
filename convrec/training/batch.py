"""Read and write the rows of a training step in TransferQueue; no other module of the training side knows its fields.

verl's trainer passes a KVBatchMeta (keys and tags) from phase to phase. The tensors stay in TransferQueue, nested, one
row per response. The rollout writes the fields of `convrec.features.responses.SampledResponse.fields`.

Shapes: B rows, T response tokens (padded here, nested there).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.utils.padding import response_from_nested, response_to_nested

from convrec.rank_grpo.credit import Credit, RankBatch

UNITS = "policy_units"


def encode_units(units_BT: torch.Tensor) -> torch.Tensor:
    """Return unit ids for TransferQueue, one higher: verl pads nested tensors with 0, which then means no unit."""
    return units_BT + 1


def decode_units(field_BT: torch.Tensor) -> torch.Tensor:
    """Return the unit ids of a padded field, -1 for none."""
    return field_BT.long() - 1


def read_fields(meta: KVBatchMeta, *fields: str) -> TensorDict:
    """Return fields of the rows, nested."""
    return tq.kv_batch_get(keys=meta.keys, partition_id=meta.partition_id, select_fields=list(fields))


def read_padding_flags(meta: KVBatchMeta) -> list[bool]:
    """Return for each row whether verl added it as padding of the batch."""
    return [bool(tag.get("is_padding", False)) for tag in meta.tags]


def read_rank_batch(meta: KVBatchMeta, pad_token_id: int, optional: Sequence[str] = ()) -> RankBatch:
    """Read the rows of a step.

    Args:
        meta: the step's rows.
        pad_token_id: pads the shorter responses.
        optional: further response fields for `RankBatch.optional_BT`, padded with 0.
    """
    fields = ["uid", "responses", "response_mask", "extra_fields", *optional]
    data = read_fields(meta, *dict.fromkeys(fields))
    padding_B = read_padding_flags(meta)
    prompts = [row if padding else uid for row, (uid, padding) in enumerate(zip(data["uid"], padding_B, strict=True))]
    return RankBatch(
        prompts=prompts,
        is_padding_B=torch.tensor(padding_B),
        extra_fields=list(data["extra_fields"]),
        responses_BT=data["responses"].to_padded_tensor(padding=pad_token_id),
        mask_BT=data["response_mask"].to_padded_tensor(padding=0),
        optional_BT={name: data[name].to_padded_tensor(padding=0) for name in optional},
    )


def write_credit(
    meta: KVBatchMeta, batch: RankBatch, credit: Credit, extra_fields_BT: Mapping[str, torch.Tensor]
) -> KVBatchMeta:
    """Write the advantages and units that the loss reads.

    Args:
        meta: the step's rows.
        batch: the result of `read_rank_batch`.
        credit: the batch's credit.
        extra_fields_BT: further fields, for instance another loss mask.

    Returns:
        The rows with the new fields.
    """
    output = {
        "advantages": credit.advantages_BT,
        "returns": credit.spread_returns(batch.returns_BK),
        UNITS: encode_units(credit.units_BT),
        **extra_fields_BT,
    }
    nested_mask = read_fields(meta, "response_mask")["response_mask"]
    nested = {name: response_to_nested(values_BT, nested_mask) for name, values_BT in output.items()}
    fields = TensorDict(nested, batch_size=len(meta))
    return tq.kv_batch_put(keys=meta.keys, partition_id=meta.partition_id, fields=fields)


def read_log_probs(meta: KVBatchMeta) -> TensorDict:
    """Return the response mask and the log-probs of rollout and old policy, padded to (B, T)."""
    return read_fields(meta, "response_mask", "rollout_log_probs", "old_log_probs").to_padded_tensor()


def read_comparison(meta: KVBatchMeta) -> TensorDict:
    """Return the fields that verl's comparison of rollout and actor reads, padded to (B, T)."""
    names = ("responses", "response_mask", "rollout_log_probs", "old_log_probs")
    return read_fields(meta, *names).to_padded_tensor()


def read_rollout_and_actor(meta: KVBatchMeta) -> TensorDict:
    """Return the loss mask and the log-probs of rollout and actor, padded to (B, T).

    The actor's log-probs are the latest ones that `compute_log_prob` wrote, for prompts and responses.
    """
    data = read_fields(meta, "log_probs", "rollout_log_probs", "loss_mask")
    data["log_probs"] = response_from_nested(data["log_probs"], data["loss_mask"])
    return data.to_padded_tensor()


@dataclass(frozen=True)
class ScoredResponses:
    """The responses of a step that have one score each, without verl's padding rows.

    Attributes:
        rows: index of each response in the batch.
        prompts: label of each response's prompt.
        rollouts: number of the response among those to its prompt, from 0.
        sources: `extra_info` of the data set's row.
        infos: result of the reward function for each response.
    """

    rows: list[int]
    prompts: list[Any]
    rollouts: list[int]
    sources: list[dict[str, Any]]
    infos: list[dict[str, Any]]


def read_scored_responses(meta: KVBatchMeta) -> ScoredResponses:
    """Read the responses of a step with the results of the reward function."""
    data = read_fields(meta, "uid", "extra_info", "extra_fields")
    rows = [row for row, padding in enumerate(read_padding_flags(meta)) if not padding]
    prompts = list(data["uid"])
    sources = list(data["extra_info"])
    extra_fields = list(data["extra_fields"])
    return ScoredResponses(
        rows=rows,
        prompts=[prompts[row] for row in rows],
        # A key is PROMPT_ROLLOUT_OUTPUT (convrec.features.responses.SampledResponse.key).
        rollouts=[int(meta.keys[row].rsplit("_", 2)[1]) for row in rows],
        sources=[sources[row] for row in rows],
        infos=[extra_fields[row]["reward_extra_info"] for row in rows],
    )


def write_scores(meta: KVBatchMeta, rows: Sequence[int], scores: Sequence[float]) -> None:
    """Replace the scores of some rows, at their last token and in the result of the reward function.

    Args:
        meta: the step's rows.
        rows: indices of rows in `meta`.
        scores: the new score of each of these rows.
    """
    data = read_fields(meta, "rm_scores", "extra_fields")
    scores_BT = data["rm_scores"].unbind()
    extra_fields = list(data["extra_fields"])
    fields = [replace_score(scores_BT[row], extra_fields[row], score) for row, score in zip(rows, scores, strict=True)]
    _write_rows(meta, rows, fields)


def replace_score(scores_T: torch.Tensor, extra_fields: dict[str, Any], score: float) -> dict[str, Any]:
    """Return the changed fields of a row whose score is replaced; the row itself stays unchanged.

    Args:
        scores_T: the row's score at its last token, 0 before.
        extra_fields: fields that the rollout added, with the result of the reward function.
        score: the new score.
    """
    changed_T = scores_T.clone()
    changed_T[-1] = score
    info = extra_fields["reward_extra_info"] | {"score": score}
    return {"rm_scores": changed_T, "extra_fields": extra_fields | {"reward_extra_info": info}}


def write_prompt_labels(meta: KVBatchMeta, rows: Sequence[int], labels: Sequence[str]) -> None:
    """Replace the prompt labels of some rows: rows with the same label form one group.

    Args:
        meta: the step's rows.
        rows: indices of rows in `meta`.
        labels: the new label of each of these rows.
    """
    _write_rows(meta, rows, [{"uid": label} for label in labels])


def _write_rows(meta: KVBatchMeta, rows: Sequence[int], fields: Sequence[Mapping[str, Any]]) -> None:
    """Write fields of some rows of the batch, one mapping per row."""
    keys = [meta.keys[row] for row in rows]
    tq.kv_batch_put(keys=keys, partition_id=meta.partition_id, fields=list_of_dict_to_tensordict(list(fields)))


def clear_rows(meta: KVBatchMeta) -> None:
    """Remove the rows of a finished step from TransferQueue."""
    tq.kv_clear(keys=meta.keys, partition_id=meta.partition_id)
