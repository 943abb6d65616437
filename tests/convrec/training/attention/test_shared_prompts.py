"""A prompt computed once for all of its responses gives the log-probs and gradients of whole rows."""

import logging
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from convrec.training.attention import shared_prompts, without_flash
from convrec.training.attention.shared_prompts import GROUPS_BY_PROMPT, group_by_prompt, lay_out
from convrec.training.log_prob_head import leave_out_prompts
from tests.convrec.family_models import SHAPES, make_model
from tests.convrec.training.conftest import ALONE, MEETING, build_training_worker
from tests.convrec.training.engine_process import batch_of, train

# Rows of two prompts, not next to each other, responses of several lengths, and a prompt with one response.
SHORT = [[7, 8, 9], [5], [7, 8, 9], [7, 8, 9], [5], [6, 6]]
LONG = [[*range(20, 34), *prompt] for prompt in SHORT]  # longer than the windows of the families that have one
RESPONSES = [[3, 4, 5, 6], [8], [7, 7, 3], [4, 9], [6, 5, 3, 8], [9, 3]]
MICRO_BATCHES: dict[str, dict[str, Any]] = {
    "all rows": {"micro_batch_size_per_gpu": 6},
    "by prompt": {"use_dynamic_bsz": True, "max_token_len_per_gpu": 65},
}


def make_rows(prompts: list[list[int]]) -> dict[str, list[list[Any]]]:
    generator = torch.Generator().manual_seed(1)
    rows = [prompt + response for prompt, response in zip(prompts, RESPONSES, strict=True)]
    masks = [[1] * len(response) for response in RESPONSES]
    noise = [torch.randn(3, len(response), generator=generator).mul(0.1).tolist() for response in RESPONSES]
    return {
        "prompts": prompts,
        "responses": RESPONSES,
        "response_mask": masks,
        "loss_mask": masks,
        "input_ids": rows,
        "position_ids": [list(range(len(row))) for row in rows],
        "policy_units": [[min(rank, 2) + 1 for rank in range(len(response))] for response in RESPONSES],
        "advantages": [one[0] for one in noise],
        "old_log_probs": [[value - 6 for value in one[1]] for one in noise],
        "ref_log_prob": [[value - 6 for value in one[2]] for one in noise],
    }


def compute(worker: Any, rows: dict[str, list[list[Any]]], **form: Any) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Return the log-probs of each response, and the metrics of an update."""
    settings = {"use_remove_padding": False, "global_batch_size": 6, **form}
    log_probs = worker.infer_batch(batch_of(rows, compute_loss=False, **settings))["log_probs"].unbind()
    pairs = zip(log_probs, rows["prompts"], rows["responses"], strict=True)
    of_responses = [row[len(prompt) - 1 :][: len(response)] for row, prompt, response in pairs]
    return of_responses, train(worker, batch_of(rows, **settings))


@pytest.fixture
def environment(process_group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (ALONE | MEETING).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def lengths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the sequences that a test's models have computed."""
    found: list[int] = []
    compute_hidden_states = shared_prompts.Sequence1S.compute_hidden_states

    def compute_and_count(self: shared_prompts.Sequence1S, body: Any) -> torch.Tensor:
        hidden = compute_hidden_states(self, body)
        found.append(self.input_ids_1S.shape[1])
        return hidden

    monkeypatch.setattr(shared_prompts.Sequence1S, "compute_hidden_states", compute_and_count)
    return found


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("form", MICRO_BATCHES)
@pytest.mark.parametrize("prompts", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("shape", SHAPES)
def test_log_probs_and_gradients_are_those_of_whole_rows(
    shape: str, prompts: list[list[int]], form: str, tmp_path: Path, lengths: list[int]
) -> None:
    folder = make_model(tmp_path / "model", shape)
    rows = make_rows(prompts)
    in_rows, in_sequence = (build_training_worker(folder, lr=0.0) for _ in range(2))
    expected, expected_metrics = compute(in_rows, rows, micro_batch_size_per_gpu=1)
    leave_out_prompts(in_sequence.engine)
    found, metrics = compute(in_sequence, rows, **MICRO_BATCHES[form])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    assert metrics["loss"] == pytest.approx(expected_metrics["loss"], abs=1e-6)
    assert metrics["grad_norm"] == pytest.approx(expected_metrics["grad_norm"], rel=1e-4)
    window = in_rows.engine.module.config.get_text_config().to_dict().get("sliding_window")
    if window is not None and window < max(map(len, rows["input_ids"])):
        assert lengths == []
        return
    distinct = {tuple(prompt) for prompt in prompts}
    assert sum(lengths) == 2 * (sum(map(len, distinct)) + sum(map(len, RESPONSES)))


@pytest.mark.usefixtures("environment")
def test_gradients_are_the_same_with_checkpoints_of_activations(model_folder: Path, lengths: list[int]) -> None:
    """The backward pass computes the layers again, with the groups of the forward pass."""
    expected, found = (
        build_training_worker(model_folder, model={"enable_gradient_checkpointing": checkpoints})
        for checkpoints in (False, True)
    )
    leave_out_prompts(found.engine)
    rows = make_rows(SHORT)
    form = MICRO_BATCHES["all rows"]
    assert compute(found, rows, **form)[1]["grad_norm"] == pytest.approx(
        compute(expected, rows, **form)[1]["grad_norm"], rel=1e-4
    )
    assert len(lengths) == 2


@pytest.mark.usefixtures("environment")
def test_a_model_whose_layers_do_not_take_the_groups_is_computed_in_rows(
    model_folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, found = (build_training_worker(model_folder) for _ in range(2))
    leave_out_prompts(found.engine)
    rows = make_rows(SHORT)
    form = MICRO_BATCHES["all rows"]
    log_probs, _ = compute(expected, rows, **form)
    # Attention that drops what it does not know.
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def forward(*arguments: Any, shared_prompts: Any = None, **options: Any) -> Any:
        return sdpa_attention_forward(*arguments, **options)

    AttentionInterface.register("sdpa", forward)
    try:
        with caplog.at_level(logging.WARNING):
            of_rows, _ = compute(found, rows, **form)
    finally:
        shared_prompts.register()
    for one, other in zip(of_rows, log_probs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    assert [record.getMessage() for record in caplog.records] == [
        "Qwen2Model: each prompt is computed for each response: 0 of its layers take shared_prompts"
    ]


def test_a_sequence_has_each_prompt_once_and_every_token_in_its_place() -> None:
    rows = make_rows(SHORT)
    longest = max(map(len, rows["input_ids"]))
    sequence = lay_out(batch_of(rows), longest)
    for place_T, row in zip(sequence.place_BT, rows["input_ids"], strict=True):
        place_T = place_T[: len(row)]
        assert sequence.input_ids_1S[0, place_T].tolist() == row
        assert sequence.position_ids_1S[0, place_T].tolist() == list(range(len(row)))
    assert [group.parts for group in sequence.groups] == [(3, 4, 3, 2), (1, 1, 4), (4,)]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 300)), min_size=1, max_size=60), st.integers(310, 2000))
def test_every_row_is_in_one_group_beside_those_of_its_prompt(rows: list[tuple[int, int]], limit: int) -> None:
    prompts = [(prompt,) * (1 + prompt) for prompt, _ in rows]
    lengths = [len(prompt) + length for prompt, (_, length) in zip(prompts, rows, strict=True)]
    groups = group_by_prompt(prompts, lengths, limit)
    order = [row for group in groups for row in group]
    assert sorted(order) == list(range(len(rows)))
    changes = sum(prompts[one] != prompts[other] for one, other in pairwise(order))
    assert changes == len(set(prompts)) - 1
    sizes = [sum(lengths[row] for row in group) for group in groups]
    assert max(sizes) <= limit
    firsts = [lengths[group[0]] for group in groups]
    assert all(size + first > limit for size, first in zip(sizes, firsts[1:], strict=False))  # no smaller than needed


def test_rows_of_a_prompt_are_in_one_micro_batch_if_the_engine_shares_prompts() -> None:
    settings = {"use_remove_padding": False, "use_dynamic_bsz": True, "max_token_len_per_gpu": 20}
    data = batch_of(make_rows(SHORT), **settings, **{GROUPS_BY_PROMPT: True})
    _, groups = without_flash.prepare_micro_batches(data)
    assert groups == [[0, 2, 3, 1], [4, 5]]
