"""Log-probs that the model's head gives itself, of responses alone, in verl's FSDP engine.

verl's engine can have a model's forward give log-probs in place of logits, which its fused kernels do. The same way is
taken here, but inside of the head's own forward: FSDP2 wraps an untied head as a unit of its own and has its weights
gathered only there (verl's kernels read them outside, which ends in `mixed torch.Tensor and DTensor`). What is computed
is either the policy over the whole vocabulary, from all logits at once or in chunks of tokens, or the policy under the
constraint of a catalog (docs/explanation/method.md 9), for which the field CONSTRAINT of the batch is read. Places of
prompts are 0.

Shapes: T positions of hidden states, P of them that predict a token of a response, D their size, V words.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from types import MethodType, SimpleNamespace
from typing import Any, cast

import torch
from tensordict import TensorDict
from verl.models.transformers.dense_common import CausalLMOutputForPPO
from verl.utils import tensordict_utils
from verl.utils.experimental.torch_functional import _fused_linear_for_ppo_bwd, _fused_linear_for_ppo_fwd
from verl.utils.torch_functional import entropy_from_logits

from convrec.checkpoints.logits import OTHER_LOGITS
from convrec.features.constrained.catalog_trie import CatalogTrie
from convrec.features.constrained.choices import ChoiceReader, Choices, joined
from convrec.features.constrained.log_probs import ConstrainedHead
from convrec.features.constrained.rollout import CONSTRAINT

CHUNK = 512  # tokens whose logits are in memory at a time
Pair = tuple[torch.Tensor, torch.Tensor]  # log-probs and entropies


def constrain(engine: Any, catalog: CatalogTrie) -> None:
    """Have this engine's log-probs and entropies be those of the policy under the constraint."""
    _compute_in_head(engine, partial(choices_of, ChoiceReader(catalog)), ConstrainedHead(catalog).log_probs)


def fuse(engine: Any) -> None:
    """Have this engine's log-probs be made in chunks, in place of verl's fused kernels."""
    _compute_in_head(engine, response_tokens, in_chunks)


def leave_out_prompts(engine: Any) -> None:
    """Have this engine's logits be made for trained tokens alone: the head is a large part of a small model's work. A
    model whose logits are more than the product of hidden states and head stays as it is."""
    model = _model_with_head(engine)
    is_plain = isinstance(model.lm_head, torch.nn.Linear) and model.lm_head.bias is None and hasattr(model, "model")
    if not is_plain or any(getattr(model.config, name, None) for name in OTHER_LOGITS):
        return
    _compute_in_head(engine, trained_tokens, at_once)


def choices_of(reader: ChoiceReader, batch: TensorDict, padded_length: int | None) -> Choices:
    """The choices of a micro-batch, each at the position of the hidden state that it was made from.

    padded_length: tokens of a row; None where rows are packed one behind the other.
    """
    rows = list(_responses(batch, padded_length))
    constraints = batch[CONSTRAINT].unbind()
    choices = [reader.read(response.tolist(), constraints[row].tolist()) for row, _, response in rows]
    return joined(choices, [start for _, start, _ in rows])


def response_tokens(batch: TensorDict, padded_length: int | None) -> Pair:
    """(P,) int64 each: the positions of the hidden states that predict a response's tokens, and these tokens."""
    rows = list(_responses(batch, padded_length))
    positions = [torch.arange(start, start + len(response)) for _, start, response in rows]
    no_token = batch["responses"].values()[:0]  # of a micro-batch of nothing but padding
    return torch.cat([no_token.cpu(), *positions]), torch.cat([no_token, *(response for *_, response in rows)])


def trained_tokens(batch: TensorDict, padded_length: int | None) -> Pair:
    """As `response_tokens`; of demonstrations, which have no responses, the tokens of their loss mask."""
    if batch.get("responses", None) is not None:
        return response_tokens(batch, padded_length)
    offsets, tokens = batch["input_ids"].offsets(), batch["input_ids"].values()
    place_P = batch["loss_mask"].values().nonzero().flatten()
    position_P = place_P - 1  # a token is predicted one position before it
    if padded_length is not None:
        row_P = torch.searchsorted(offsets, place_P, right=True) - 1
        position_P = position_P + row_P * padded_length - offsets[row_P]
    return position_P, tokens[place_P]


def _responses(batch: TensorDict, padded_length: int | None) -> Iterator[tuple[int, int, torch.Tensor]]:
    """(row, position of the hidden state that predicts its first token, tokens), without the rows that verl pads a
    batch with, whose response mask is 0. Waits for the device three times, whatever the number of rows."""
    offsets = batch["input_ids"].offsets()
    ends, lengths = offsets[1:].tolist(), offsets.diff().tolist()
    is_trained = torch.stack([mask.any() for mask in batch["response_mask"].unbind()]).tolist()
    for row, (response, trains) in enumerate(zip(batch["responses"].unbind(), is_trained, strict=True)):
        if trains:
            end = ends[row] if padded_length is None else row * padded_length + lengths[row]
            yield row, end - len(response) - 1, response  # a token is predicted one position before it


def _compute_in_head(
    engine: Any, choose: Callable[[TensorDict, int | None], Any], compute: Callable[..., Pair]
) -> None:
    """Replace the forwards of the engine's model and head.

    choose: a micro-batch and the length of its padded rows -> what of it is to be computed. compute: (T, D) hidden
    states, (V, D) weights of the head, what was chosen, temperature, whether entropies are wanted -> (T,) log-probs and
    entropies.
    """
    prepare = engine.prepare_model_inputs

    def prepare_model_inputs(micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
        tensordict_utils.assign_non_tensor(micro_batch, use_fused_kernels=True)  # log-probs are asked for, no logits
        inputs, output_arguments = prepare(micro_batch=micro_batch)
        with_entropy = tensordict_utils.get_non_tensor_data(micro_batch, "calculate_entropy", False)
        length = None if inputs["attention_mask"] is None else inputs["input_ids"].shape[1]
        # as a namespace: FSDP looks for tensors in tuples, mappings and dataclasses
        asked = (choose(micro_batch, length), inputs.pop("temperature"), bool(with_entropy))
        inputs["asked"] = SimpleNamespace(arguments=asked)
        return inputs, output_arguments

    def head_forward(self: torch.nn.Linear, hidden: torch.Tensor, asked: SimpleNamespace) -> Pair:
        return compute(hidden.flatten(0, 1), self.weight, *asked.arguments)

    engine.prepare_model_inputs = prepare_model_inputs
    model = _model_with_head(engine)
    model.forward = MethodType(_forward, model)
    model.lm_head.forward = MethodType(head_forward, model.lm_head)


def _model_with_head(engine: Any) -> Any:
    """Below FSDP's and LoRA's wrappers."""
    return next(part for part in engine.module.modules() if "lm_head" in part._modules)


def _forward(
    model: Any,
    *,
    asked: SimpleNamespace,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    **_: Any,
) -> CausalLMOutputForPPO:
    hidden = model.model(
        input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, use_cache=False
    ).last_hidden_state
    log_probs, entropy = model.lm_head(hidden, asked)
    shape = hidden.shape[:2]
    return CausalLMOutputForPPO(log_probs=log_probs.view(shape), entropy=entropy.view(shape))


def in_chunks(
    hidden_TD: torch.Tensor, weight_VD: torch.Tensor, chosen: Pair, temperature: float, with_entropy: bool = True
) -> Pair:
    """(T,) float32 log-probs and entropies; 0 but at the positions in chosen: (P,) positions and the tokens there.
    Entropies come with the log-probs, wanted or not."""
    position_P, token_P = (values.to(hidden_TD.device) for values in chosen)
    hidden_PD = hidden_TD.index_select(0, position_P).to(weight_VD.dtype)
    values = cast(Pair, _InChunks.apply(hidden_PD, weight_VD, token_P, temperature))
    return _placed(len(hidden_TD), position_P, values)


def at_once(
    hidden_TD: torch.Tensor, weight_VD: torch.Tensor, chosen: Pair, temperature: float, with_entropy: bool
) -> Pair:
    """As `in_chunks`, with all logits in memory and none computed twice; entropies are 0 where not asked for."""
    position_P, token_P = (values.to(hidden_TD.device) for values in chosen)
    hidden_PD = hidden_TD.index_select(0, position_P).to(weight_VD.dtype)
    logits_PV = torch.nn.functional.linear(hidden_PD, weight_VD).float() / temperature
    log_probs_P = -torch.nn.functional.cross_entropy(logits_PV, token_P, reduction="none")
    entropy_P = entropy_from_logits(logits_PV) if with_entropy else torch.zeros_like(log_probs_P)
    return _placed(len(hidden_TD), position_P, (log_probs_P, entropy_P))


def _placed(length: int, position_P: torch.Tensor, values: Pair) -> Pair:
    log_probs_T, entropy_T = (
        torch.zeros(length, device=value.device).index_put((position_P,), value) for value in values
    )
    return log_probs_T, entropy_T


class _InChunks(torch.autograd.Function):
    """verl's fused head, whose arithmetic this is, but the head's gradient is summed over chunks in float32."""

    @staticmethod
    def forward(
        context: Any, hidden_PD: torch.Tensor, weight_VD: torch.Tensor, token_P: torch.Tensor, temperature: float
    ) -> Pair:
        """(P,) float32 each."""
        context.set_materialize_grads(False)  # none of entropies where only log-probs are trained on
        context.save_for_backward(hidden_PD, weight_VD, token_P)
        context.temperature = temperature
        parts = [
            _fused_linear_for_ppo_fwd(hidden, weight_VD, token, temperature)
            for hidden, token in zip(hidden_PD.split(CHUNK), token_P.split(CHUNK), strict=True)
        ]
        log_probs_P, entropy_P = (torch.cat([*values]) for values in zip(*parts, strict=True))
        return log_probs_P, entropy_P.float()

    @staticmethod
    def backward(
        context: Any, log_prob_P: torch.Tensor | None, entropy_P: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None, None, None]:
        hidden_PD, weight_VD, token_P = context.saved_tensors
        sum_VD = torch.zeros_like(weight_VD, dtype=torch.float32) if context.needs_input_grad[1] else None
        hidden_gradients = []
        by_chunk = (values.split(CHUNK) for values in (hidden_PD, token_P))
        of_values = (repeat(None) if values is None else values.split(CHUNK) for values in (log_prob_P, entropy_P))
        for hidden, token, log_prob, entropy in zip(*by_chunk, *of_values, strict=False):
            of_hidden, of_weight = _fused_linear_for_ppo_bwd(
                log_prob, entropy, hidden, weight_VD, token, context.temperature
            )
            hidden_gradients.append(of_hidden)
            if sum_VD is not None:
                sum_VD += of_weight
        of_head = None if sum_VD is None else sum_VD.to(weight_VD.dtype)
        return torch.cat(hidden_gradients), of_head, None, None
