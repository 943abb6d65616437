"""Compute log-probs in the forward pass of the model's head, for responses only, in verl's FSDP engine.

verl's engine lets a model's forward pass return log-probs in place of logits; its fused kernels do so. We do the same
inside the head's own forward: FSDP2 wraps an untied head as a separate unit, whose weights are gathered only there
(verl's kernels read them outside, which fails with `mixed torch.Tensor and DTensor`). The log-probs are those of the
policy over the whole vocabulary, from all logits or in chunks of tokens, or those of the policy under the constraint of
a catalog (docs/explanation/method.md 9), which reads the batch's field CONSTRAINT. At prompt positions they are 0.
On a CPU the responses to a prompt share its hidden states (convrec.training.attention.shared_prompts).

Shapes: T positions of hidden states, P of them that predict a token of a response, D hidden size, V vocabulary size.
"""

from collections.abc import Callable, Iterator
from functools import partial
from types import MethodType, SimpleNamespace
from typing import Any

import torch
from tensordict import TensorDict
from verl.models.transformers.dense_common import CausalLMOutputForPPO
from verl.utils import tensordict_utils
from verl.utils.device import get_device_name

from convrec.checkpoints.logits import OTHER_LOGITS
from convrec.cpu.platform import PLATFORM
from convrec.features.constrained.catalog_trie import CatalogTrie
from convrec.features.constrained.choices import ChoiceReader, Choices, joined
from convrec.features.constrained.log_probs import ConstrainedHead
from convrec.features.constrained.rollout import CONSTRAINT
from convrec.training.attention.shared_prompts import SHARED_LENGTH, PromptSharing
from convrec.training.token_log_probs import LogProbsAndEntropies, compute_chunked_log_probs, compute_whole_log_probs

Pair = tuple[torch.Tensor, torch.Tensor]  # log-probs and entropies


def constrain(engine: Any, catalog: CatalogTrie) -> None:
    """Let this engine compute log-probs and entropies of the policy under the catalog's constraint.

    Args:
        engine: verl's engine, whose model is changed in place.
        catalog: the lines that a list may contain.
    """
    _compute_in_head(engine, partial(read_choices, ChoiceReader(catalog)), ConstrainedHead(catalog).log_probs)


def fuse(engine: Any) -> None:
    """Let this engine compute log-probs in chunks of tokens, in place of verl's fused kernels."""
    _compute_in_head(engine, response_tokens, partial(compute_at_positions, compute_chunked_log_probs))


def leave_out_prompts(engine: Any, chunked: bool = False) -> str:
    """Let this engine compute logits for trained tokens only, if its model allows it.

    The head is a large part of a small model's work, and most tokens of SFT are prompt tokens.

    Args:
        engine: verl's engine, with its model.
        chunked: compute the logits in chunks, and twice, to save memory; else all at once.

    Returns:
        Why the engine was not changed; "" if it was.
    """
    obstacle = _find_obstacle(engine)
    if not obstacle:
        compute = compute_chunked_log_probs if chunked else compute_whole_log_probs
        _compute_in_head(engine, trained_tokens, partial(compute_at_positions, compute))
    return obstacle


def _find_obstacle(engine: Any) -> str:
    """Return why the engine or its model needs logits of all tokens; "" if it does not."""
    if engine.engine_config.ulysses_sequence_parallel_size > 1:
        return "sequences are split between processes (ulysses_sequence_parallel_size)"
    if engine.model_config.use_fused_kernels:
        return "verl's fused kernels are on (use_fused_kernels)"
    model = _model_with_head(engine)
    head = getattr(model, "lm_head", None)
    if not isinstance(head, torch.nn.Linear) or head.bias is not None or not hasattr(model, "model"):
        return "the model's head is not a plain matrix named lm_head"
    changes = [name for name in OTHER_LOGITS if getattr(model.config, name, None) not in (None, 1.0)]
    return f"the model changes its logits after the head ({', '.join(changes)})" if changes else ""


def read_choices(reader: ChoiceReader, batch: TensorDict, padded_length: int | None) -> Choices:
    """Return the choices of a micro-batch, each at the position of the hidden state that predicts it.

    Args:
        reader: finds the choices of a response.
        batch: the micro-batch, nested, with the field CONSTRAINT.
        padded_length: tokens per row; None if rows are packed.

    Raises:
        ValueError: a response cannot have been sampled under its constraint.
    """
    rows = list(_responses(batch, padded_length))
    constraints = batch[CONSTRAINT].unbind()
    choices = [reader.read(response.tolist(), constraints[row].tolist()) for row, _, response in rows]
    return joined(choices, [start for _, start, _ in rows])


def response_tokens(batch: TensorDict, padded_length: int | None) -> Pair:
    """Return where response tokens are predicted.

    Args:
        batch: the micro-batch, nested; verl's padding rows are skipped.
        padded_length: tokens per row; None if rows are packed.

    Returns:
        The positions of the hidden states that predict these tokens, and the tokens; both (P,) int64.
    """
    rows = list(_responses(batch, padded_length))
    positions = [torch.arange(start, start + len(response)) for _, start, response in rows]
    no_token = batch["responses"].values()[:0]  # for a micro-batch with only padding rows
    return torch.cat([no_token.cpu(), *positions]), torch.cat([no_token, *(response for *_, response in rows)])


def trained_tokens(batch: TensorDict, padded_length: int | None) -> Pair:
    """Return `response_tokens`; for demonstrations, which have no responses, the tokens of their loss mask.

    Args:
        batch: the micro-batch, nested.
        padded_length: tokens per row; None if rows are packed.
    """
    if batch.get("responses", None) is not None:
        return response_tokens(batch, padded_length)
    offsets = batch["input_ids"].offsets()
    tokens = batch["input_ids"].values()
    place_P = batch["loss_mask"].values().nonzero().flatten()
    position_P = place_P - 1  # a token is predicted one position before it
    if padded_length is not None:
        row_P = torch.searchsorted(offsets, place_P, right=True) - 1
        position_P = position_P + row_P * padded_length - offsets[row_P]
    return position_P, tokens[place_P]


def _responses(batch: TensorDict, padded_length: int | None) -> Iterator[tuple[int, int, torch.Tensor]]:
    """Yield (row, position of the hidden state that predicts the first token, tokens) of each response.

    verl's padding rows, whose response mask is 0, are skipped. The host waits for the device three times, independently
    of the number of rows.
    """
    offsets = batch["input_ids"].offsets()
    ends = offsets[1:].tolist()
    lengths = offsets.diff().tolist()
    is_trained = torch.stack([mask.any() for mask in batch["response_mask"].unbind()]).tolist()
    for row, (response, trains) in enumerate(zip(batch["responses"].unbind(), is_trained, strict=True)):
        if trains:
            end = ends[row] if padded_length is None else row * padded_length + lengths[row]
            yield row, end - len(response) - 1, response  # a token is predicted one position before it


def _compute_in_head(
    engine: Any, choose: Callable[[TensorDict, int | None], Any], compute: Callable[..., Pair]
) -> None:
    """Replace the forward methods of the engine's model and head.

    Args:
        engine: verl's engine.
        choose: (micro-batch, length of its padded rows) -> positions to compute, in the form that `compute` takes.
        compute: ((T, D) hidden states, (V, D) weights of the head, result of `choose`, temperature, whether to compute
            entropies) -> (T,) log-probs and entropies.
    """
    model = _model_with_head(engine)
    sharing = PromptSharing(model.model, is_wanted=get_device_name() == PLATFORM)
    prepare = engine.prepare_model_inputs
    forward_backward_batch = engine.forward_backward_batch

    def forward_backward(data: TensorDict, *arguments: Any, **options: Any) -> Any:
        tensordict_utils.assign_non_tensor(data, **{SHARED_LENGTH: sharing.longest})
        return forward_backward_batch(data, *arguments, **options)

    def prepare_model_inputs(micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
        tensordict_utils.assign_non_tensor(micro_batch, use_fused_kernels=True)  # verl then expects log-probs
        inputs, output_arguments = prepare(micro_batch=micro_batch)
        with_entropy = tensordict_utils.get_non_tensor_data(micro_batch, "calculate_entropy", False)
        is_packed = tensordict_utils.get_non_tensor_data(micro_batch, "use_remove_padding", True)
        length = None if is_packed else inputs["input_ids"].shape[1]
        arguments = (choose(micro_batch, length), inputs.pop("temperature"), bool(with_entropy))
        # They are in a namespace, because FSDP looks for tensors in tuples, mappings and dataclasses.
        inputs["head_request"] = SimpleNamespace(
            arguments=arguments, sequence=sharing.lay_out(micro_batch, length), sharing=sharing
        )
        return inputs, output_arguments

    def head_forward(self: torch.nn.Linear, hidden: torch.Tensor, head_request: SimpleNamespace) -> Pair:
        return compute(hidden.flatten(0, 1), self.weight, *head_request.arguments)

    engine.forward_backward_batch = forward_backward
    engine.prepare_model_inputs = prepare_model_inputs
    model.forward = MethodType(_forward, model)
    model.lm_head.forward = MethodType(head_forward, model.lm_head)


def _model_with_head(engine: Any) -> Any:
    """Return the model inside the wrappers of FSDP and LoRA; None if its head has another name."""
    return next((part for part in engine.module.modules() if "lm_head" in part._modules), None)


def _forward(
    model: Any,
    *,
    head_request: SimpleNamespace,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    **_: Any,
) -> CausalLMOutputForPPO:
    hidden = head_request.sharing.compute_hidden_states(
        head_request.sequence, input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids
    )
    log_probs, entropy = model.lm_head(hidden, head_request)
    shape = hidden.shape[:2]
    return CausalLMOutputForPPO(log_probs=log_probs.view(shape), entropy=entropy.view(shape))


def compute_at_positions(
    compute: Callable[..., LogProbsAndEntropies],
    hidden_TD: torch.Tensor,
    weight_VD: torch.Tensor,
    chosen: Pair,
    temperature: float,
    with_entropy: bool,
) -> Pair:
    """Compute log-probs and entropies at some positions.

    Args:
        compute: a function of convrec.training.token_log_probs.
        hidden_TD: hidden states of all positions.
        weight_VD: weights of the head.
        chosen: (P,) positions, and (P,) tokens that they predict.
        temperature: divisor of the logits.
        with_entropy: compute entropies.

    Returns:
        (T,) float32 log-probs and entropies; 0 at other positions, and entropies 0 if they are not computed.
    """
    position_P, token_P = (values.to(hidden_TD.device) for values in chosen)
    hidden_PD = hidden_TD.index_select(0, position_P).to(weight_VD.dtype)
    log_prob_P, entropy_P = compute(hidden_PD, weight_VD, token_P, temperature, with_entropy)
    zeros_T = log_prob_P.new_zeros(len(hidden_TD))
    log_probs_T = zeros_T.index_put((position_P,), log_prob_P)
    return log_probs_T, zeros_T if entropy_P is None else zeros_T.index_put((position_P,), entropy_P)
