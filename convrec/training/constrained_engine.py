"""Log-probs of the constrained policy in verl's FSDP engine (docs/explanation/method.md 9).

verl's engine can have a model's forward give log-probs in place of logits, which its fused kernels do. The same way is
taken here: inside of that forward, where FSDP has the head's weights gathered, from the choices of the responses, which
are read from the tokens and the field CONSTRAINT of the batch.
"""

from types import MethodType
from typing import Any

import torch
from tensordict import TensorDict
from verl.models.transformers.dense_common import CausalLMOutputForPPO
from verl.utils import tensordict_utils

from convrec.constrained.catalog_trie import CatalogTrie
from convrec.constrained.choices import ChoiceReader, Choices, joined
from convrec.constrained.log_probs import ConstrainedHead
from convrec.rollout.constraint import CONSTRAINT


class _Request:
    """What the model's forward is to compute. A class of its own: FSDP looks for tensors in tuples and dataclasses."""

    def __init__(self, choices: Choices, with_entropy: bool):
        self.choices, self.with_entropy = choices, with_entropy


def constrain(engine: Any, catalog: CatalogTrie) -> None:
    """Have this engine's log-probs and entropies be those of the policy under the constraint."""
    reader = ChoiceReader(catalog)
    prepare = engine.prepare_model_inputs

    def prepare_model_inputs(micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
        tensordict_utils.assign_non_tensor(micro_batch, use_fused_kernels=True)  # log-probs are asked for, no logits
        inputs, output_arguments = prepare(micro_batch=micro_batch)
        with_entropy = tensordict_utils.get_non_tensor_data(micro_batch, "calculate_entropy", False)
        length = None if inputs["attention_mask"] is None else inputs["input_ids"].shape[1]
        inputs["constrained"] = _Request(choices_of(reader, micro_batch, length), bool(with_entropy))
        return inputs, output_arguments

    engine.prepare_model_inputs = prepare_model_inputs
    model = _causal_model(engine.module)
    head = ConstrainedHead(catalog)

    def head_forward(self: torch.nn.Linear, hidden: torch.Tensor, asked: _Request, temperature: float) -> Any:
        return head.log_probs(hidden.flatten(0, 1), self.weight, asked.choices, temperature, asked.with_entropy)

    model.forward = MethodType(_forward, model)
    model.lm_head.forward = MethodType(head_forward, model.lm_head)  # FSDP gathers an untied head for its forward alone


def choices_of(reader: ChoiceReader, batch: TensorDict, padded_length: int | None) -> Choices:
    """The choices of a micro-batch, each at the place of the hidden state that it was made from.

    padded_length: tokens of a row; None where rows are packed one behind the other. Rows that verl pads a batch with,
    whose response mask is 0, have none.
    """
    rows, starts = [], []
    ends = batch["input_ids"].offsets()[1:].tolist()
    lengths = batch["input_ids"].offsets().diff().tolist()
    for row, (response, mask, constraint) in enumerate(
        zip(batch["responses"].unbind(), batch["response_mask"].unbind(), batch[CONSTRAINT].unbind(), strict=True)
    ):
        if not mask.any():
            continue
        rows.append(reader.read(response.tolist(), constraint.tolist()))
        end = ends[row] if padded_length is None else row * padded_length + lengths[row]
        starts.append(end - len(response) - 1)  # a token is predicted one place before it
    return joined(rows, starts)


def _causal_model(module: torch.nn.Module) -> torch.nn.Module:
    """The model with the head, below FSDP's and LoRA's wrappers."""
    return next(part for part in module.modules() if "lm_head" in part._modules)


def _forward(
    model: Any,
    *,
    constrained: _Request,
    temperature: float,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    **_: Any,
) -> CausalLMOutputForPPO:
    hidden = model.model(
        input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, use_cache=False
    ).last_hidden_state
    log_probs, entropy = model.lm_head(hidden, constrained, temperature)
    shape = hidden.shape[:2]
    return CausalLMOutputForPPO(log_probs=log_probs.view(shape), entropy=entropy.view(shape))
