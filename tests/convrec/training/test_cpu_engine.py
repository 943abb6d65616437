"""verl's FSDP engine on a CPU: the gradients of a plain loop, without masks and without copies of the weights."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from transformers import AutoModelForCausalLM
from verl.utils import tensordict_utils
from verl.workers.utils.losses import sft_loss

from convrec.cpu.engine import leave_out_mask
from convrec.training.log_prob_head import leave_out_prompts
from tests.convrec.training.engine_process import batch_of

PROMPTS = [[7, 8, 9], [7], [9, 9, 9, 9, 9], [8, 7]]
COMPLETIONS = [[3, 4, 5, 6], [8, 8, 9, 5], [7, 7, 3], [4, 9, 6, 5]]
NUM_TRAINED = sum(map(len, COMPLETIONS))
MICRO_BATCHES = 2  # of two rows each, all of which have padding


def demonstrations() -> Any:
    rows = [prompt + completion for prompt, completion in zip(PROMPTS, COMPLETIONS, strict=True)]
    masks = [[0] * len(prompt) + [1] * len(completion) for prompt, completion in zip(PROMPTS, COMPLETIONS, strict=True)]
    fields = {"input_ids": rows, "position_ids": [list(range(len(row))) for row in rows], "loss_mask": masks}
    settings = {"use_remove_padding": False, "use_dynamic_bsz": False}
    return batch_of(fields, micro_batch_size_per_gpu=len(rows) // MICRO_BATCHES, **settings)


def build_engine(make_worker: Callable[..., Any], dtype: str = "fp32", forward_only: bool = False) -> Any:
    engine = make_worker(dtype=dtype, forward_only=forward_only).engine
    assert leave_out_prompts(engine) == ""
    return engine


def compute_log_probs(engine: Any) -> torch.Tensor:
    """Return those of all tokens of a batch, row after row."""
    with engine.eval_mode():
        output = engine.infer_batch(demonstrations())
    values: torch.Tensor = output["model_output"]["log_probs"].values()
    return values


def compute_gradients(engine: Any) -> dict[str, torch.Tensor]:
    """Return the gradients of a batch by weight name, after earlier gradients were cleared."""
    with engine.train_mode():
        engine.optimizer_zero_grad()
        engine.forward_backward_batch(demonstrations(), partial(sft_loss, config=None))
        return {name: weight.grad.full_tensor() for name, weight in engine.module.named_parameters()}


def plain_gradients(folder: Path) -> dict[str, torch.Tensor]:
    """Compute row by row, without padding, with transformers' eager attention."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").train()
    for prompt, completion in zip(PROMPTS, COMPLETIONS, strict=True):
        tokens = torch.tensor([prompt + completion])
        logits = model(input_ids=tokens).logits[0, len(prompt) - 1 : -1]
        loss = torch.nn.functional.cross_entropy(logits, tokens[0, len(prompt) :], reduction="sum")
        (loss / NUM_TRAINED).backward()
    return {name: weight.grad for name, weight in model.named_parameters()}


def relative_difference(gradients: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    assert gradients.keys() == expected.keys()
    return max(
        ((gradients[name] - expected[name]).norm() / expected[name].norm()).item()
        for name in expected
        if expected[name].norm() > 0
    )


@pytest.mark.parametrize(("dtype", "bound"), [("fp32", 1e-5), ("bf16", 0.05)])
def test_gradients_are_those_of_a_plain_loop(
    training_worker: Callable[..., Any],
    model_folder: Path,
    dtype: str,
    bound: float,
) -> None:
    """Also the second time: weights that stay gathered between micro-batches must be current."""
    engine = build_engine(training_worker, dtype)
    expected = plain_gradients(model_folder)
    assert relative_difference(compute_gradients(engine), expected) < bound
    assert relative_difference(compute_gradients(engine), expected) < bound


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_passes_use_updated_and_restored_weights(
    training_worker: Callable[..., Any],
    dtype: str,
) -> None:
    engine = build_engine(training_worker, dtype)
    at_start = {name: weight.full_tensor().clone() for name, weight in engine.module.state_dict().items()}
    before = compute_log_probs(engine)
    with engine.train_mode():
        engine.train_batch(demonstrations(), partial(sft_loss, config=None))
    after = compute_log_probs(engine)
    assert (after - before).abs().max() > 1e-3
    with torch.no_grad():
        for name, weight in engine.module.named_parameters():
            weight.to_local().copy_(at_start[name])  # as verl goes back to other weights
    torch.testing.assert_close(compute_log_probs(engine), before, rtol=0, atol=0)


def test_engine_builds_a_forward_only_model_as_a_resident_one(training_worker: Callable[..., Any]) -> None:
    """verl would offload it to pinned memory, which needs an accelerator. The setting is given back."""
    engine = build_engine(training_worker, forward_only=True)
    assert engine.engine_config.forward_only
    expected = compute_log_probs(build_engine(training_worker))
    torch.testing.assert_close(compute_log_probs(engine), expected, rtol=0, atol=0.1)  # its weights are in bf16


def test_in_fp32_layers_compute_with_the_weights_themselves(training_worker: Callable[..., Any]) -> None:
    engine = build_engine(training_worker)
    (projection,) = [part for name, part in engine.module.named_modules() if name.endswith("layers.0.mlp.up_proj")]
    weight = projection.weight
    seen: list[torch.Tensor] = []
    projection.register_forward_pre_hook(lambda module, inputs: seen.append(module.weight))
    compute_gradients(engine)
    assert len(seen) >= MICRO_BATCHES  # more where layers are computed again
    assert all(used is not weight and used.data_ptr() == weight.to_local().data_ptr() for used in seen)
    assert projection.weight is weight


def test_in_bf16_weights_are_cast_once_per_update(
    training_worker: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = build_engine(training_worker, "bf16")
    casts: list[str] = []
    init = FSDPParam.init_all_gather_outputs

    def count(parameter: FSDPParam, *arguments: Any, **options: Any) -> None:
        casts.append(str(parameter._param_fqn))
        init(parameter, *arguments, **options)

    monkeypatch.setattr(FSDPParam, "init_all_gather_outputs", count)
    for update in (1, 2):
        compute_gradients(engine)
        assert len(casts) == update * len(set(casts))


def test_gradients_of_batches_add_up_until_they_are_cleared(training_worker: Callable[..., Any]) -> None:
    engine = build_engine(training_worker)
    once = compute_gradients(engine)
    with engine.train_mode():
        engine.optimizer_zero_grad()
        for _ in range(2):
            engine.forward_backward_batch(demonstrations(), partial(sft_loss, config=None))
        twice = {name: weight.grad.full_tensor() for name, weight in engine.module.named_parameters()}
    assert relative_difference(twice, {name: 2 * gradient for name, gradient in once.items()}) < 1e-6


def padded_inputs(mask: list[list[int]], positions: list[list[int]]) -> dict[str, Any]:
    return {"attention_mask": torch.tensor(mask), "position_ids": torch.tensor(positions)}


def test_a_mask_of_rows_that_end_in_padding_is_left_out() -> None:
    inputs = padded_inputs([[1, 1, 1], [1, 0, 0]], [[0, 1, 2], [0, 0, 0]])
    leave_out_mask(inputs)
    assert inputs["attention_mask"] is None
    assert inputs["position_ids"].tolist() == [[0, 1, 2], [0, 1, 2]]


@pytest.mark.parametrize(
    ("mask", "positions"),
    [
        ([[1, 1, 1], [0, 1, 1]], [[0, 1, 2], [0, 0, 1]]),
        ([[1, 1, 1], [1, 0, 1]], [[0, 1, 2], [0, 0, 2]]),
        ([[1, 1, 1], [1, 1, 0]], [[0, 1, 2], [3, 4, 0]]),
        ([[1, 1, 1], [1, 1, 1]], [[0, 1, 0], [0, 1, 2]]),
    ],
    ids=["padding before", "a hole", "positions from 3 on", "two sequences in a row"],
)
def test_another_mask_stays(mask: list[list[int]], positions: list[list[int]]) -> None:
    inputs = padded_inputs(mask, positions)
    leave_out_mask(inputs)
    assert inputs["attention_mask"].tolist() == mask
    assert inputs["position_ids"].tolist() == positions


def test_packed_rows_have_no_mask_to_leave_out() -> None:
    inputs = {"attention_mask": None, "position_ids": torch.tensor([[0, 1, 0]])}
    leave_out_mask(inputs)
    assert inputs["position_ids"].tolist() == [[0, 1, 0]]


def test_every_micro_batch_of_these_tests_is_padded() -> None:
    lengths = demonstrations()["input_ids"].offsets().diff().view(MICRO_BATCHES, -1)
    assert (lengths.min(dim=1).values < lengths.max(dim=1).values).all()
    assert tensordict_utils.get_non_tensor_data(demonstrations(), "use_remove_padding", True) is False
