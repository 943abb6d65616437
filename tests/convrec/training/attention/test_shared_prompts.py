"""A prompt computed once for all of its responses gives the log-probs and gradients of whole rows."""

import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from convrec.training.attention import shared_prompts, without_flash
from convrec.training.attention.shared_prompts import SHARED_LENGTH, Group, find_longest, group_by_prompt, lay_out
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
    window = in_rows.engine.module.config.get_text_config().to_dict().get("sliding_window") or sys.maxsize
    fits = [len(row) <= window for row in rows["input_ids"]]
    # A micro-batch of all rows is computed in rows if one of them is longer than the window.
    shared = [number for number, of_row in enumerate(fits) if of_row and (form == "by prompt" or all(fits))]
    prompt_tokens = sum(map(len, {tuple(prompts[number]) for number in shared}))
    assert sum(lengths) == 2 * (prompt_tokens + sum(len(RESPONSES[number]) for number in shared))


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
def test_layers_that_do_not_take_the_groups_are_an_error(model_folder: Path) -> None:
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def forward(*arguments: Any, shared_prompts: Any = None, **options: Any) -> Any:
        return sdpa_attention_forward(*arguments, **options)

    worker = build_training_worker(model_folder)
    leave_out_prompts(worker.engine)
    AttentionInterface.register("sdpa", forward)
    try:
        with pytest.raises(RuntimeError, match="Qwen2Model: 0 layers took shared_prompts"):
            compute(worker, make_rows(SHORT), **MICRO_BATCHES["all rows"])
    finally:
        shared_prompts.register()


@pytest.mark.parametrize(
    ("changes", "rope_types", "longest"),
    [
        ({}, "default", sys.maxsize),
        ({"sliding_window": 512}, {"full_attention": "linear", "sliding_attention": "default"}, 512),
        ({"model_type": "falcon_h1"}, "default", 0),
        ({"_attn_implementation": "eager"}, "default", 0),
        ({"attention_dropout": 0.1}, "default", 0),
        ({"use_bidirectional_attention": True}, "default", 0),
        ({}, "dynamic", 8000),
        ({"rope_parameters": {"original_max_position_embeddings": 4096}}, "longrope", 4096),
    ],
)
def test_prompts_are_shared_where_only_attention_looks_at_other_tokens(
    changes: dict[str, Any], rope_types: Any, longest: int
) -> None:
    settings = {
        "model_type": "qwen2",
        "_attn_implementation": "sdpa",
        "attention_dropout": 0.0,
        "rope_parameters": {},
        "max_position_embeddings": 8000,
    }
    config = SimpleNamespace(**settings | changes)
    config.get_text_config = lambda: config
    assert find_longest(SimpleNamespace(config=config, rotary_emb=SimpleNamespace(rope_type=rope_types))) == longest


def test_a_long_response_does_not_pad_the_short_ones_beside_it() -> None:
    assert list(Group(5, (100, 80, 75, 74, 60, 10, 8)).iter_alike()) == [[100, 80, 75], [74, 60], [10, 8]]


def test_a_sequence_has_each_prompt_once_and_every_token_in_its_place() -> None:
    rows = make_rows(SHORT)
    longest = max(map(len, rows["input_ids"]))
    sequence = lay_out(batch_of(rows), longest)
    for place_T, row in zip(sequence.place_BT, rows["input_ids"], strict=True):
        place_T = place_T[: len(row)]
        assert sequence.input_ids_1S[0, place_T].tolist() == row
        assert sequence.position_ids_1S[0, place_T].tolist() == list(range(len(row)))
    assert [group.parts for group in sequence.groups] == [(3, 4, 3, 2), (1, 4, 1), (2, 2)]


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


@pytest.mark.parametrize(
    ("longest", "expected"),
    [
        (100, [[0, 2, 3], [1, 4, 5]]),
        # Rows 0 and 2 have more tokens than may share a prompt: they are padded, as without sharing.
        (5, [[1, 4, 3, 5], [0, 2]]),
    ],
)
def test_rows_of_a_prompt_are_in_one_micro_batch_if_they_can_share_it(longest: int, expected: list[list[int]]) -> None:
    settings = {"use_remove_padding": False, "use_dynamic_bsz": True, "max_token_len_per_gpu": 18}
    data = batch_of(make_rows(SHORT), **settings, **{SHARED_LENGTH: longest})
    _, groups = without_flash.prepare_micro_batches(data)
    assert groups == expected
