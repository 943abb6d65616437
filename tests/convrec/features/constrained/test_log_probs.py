"""Values and gradients of constrained log-probs, compared with numpy and with masks over the vocabulary."""

import random
from typing import Any

import numpy as np
import pytest
import torch

from convrec.features.constrained import log_probs as module
from convrec.features.constrained.catalog_trie import CatalogTrie
from convrec.features.constrained.choices import ChoiceReader, joined
from convrec.features.constrained.log_probs import ConstrainedHead
from convrec.rank_grpo.policy_loss import BatchCounts, RankLossSettings, compute_rank_policy_loss
from tests.convrec.features.constrained.numpy_policy import loss_and_gradients, policy
from tests.convrec.features.constrained.test_choices import sampled

CONSTRAINTS = [[3], [3, 3, 5], [3, 0, 1, 2, 999], [3, 6]]
D = 6


class Lists:
    """Sampled lists, concatenated in one row of hidden states."""

    def __init__(self, catalog: CatalogTrie, vocabulary: int) -> None:
        rng, generator = random.Random(0), torch.Generator().manual_seed(0)
        self.tokens = [sampled(catalog, n, excluded, rng) for n, *excluded in CONSTRAINTS]
        self.starts = np.cumsum([0, *map(len, self.tokens)])
        read = list(map(ChoiceReader(catalog).read, self.tokens, CONSTRAINTS))
        self.choices = joined(read, self.starts[:-1].tolist())
        shapes = (int(self.starts[-1]), D), (vocabulary, D), (vocabulary, D), (vocabulary, D)
        self.hidden, *self.weights = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)

    def policies(self, catalog: CatalogTrie, weight: torch.Tensor) -> list[Any]:
        logits = (self.hidden @ weight.T).numpy()
        parts = [slice(*self.starts[place : place + 2]) for place in range(len(CONSTRAINTS))]
        return [
            policy(catalog, *of) for of in zip(CONSTRAINTS, self.tokens, (logits[part] for part in parts), strict=True)
        ]


@pytest.fixture(scope="module")
def lists(catalog: CatalogTrie, tokenizer: Any) -> Lists:
    return Lists(catalog, len(tokenizer))


@pytest.fixture(params=[0, 20, 10**9], ids=["matrices", "both", "pairs"])
def ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to compute logits, and several sizes of chunks."""
    monkeypatch.setattr(module, "MIN_MATRIX_LOGITS", request.param)
    monkeypatch.setattr(module, "PAIRS_PER_CHUNK", 3)


@pytest.mark.usefixtures("ways")
def test_log_probs_and_entropy_are_those_of_the_definition(catalog: CatalogTrie, lists: Lists) -> None:
    head = ConstrainedHead(catalog)
    log_probs, entropy = head.log_probs(lists.hidden, lists.weights[0], lists.choices, with_entropy=True)
    expected = lists.policies(catalog, lists.weights[0])
    np.testing.assert_allclose(log_probs, np.concatenate([one.log_prob_T for one in expected]), atol=1e-12)
    np.testing.assert_allclose(entropy, np.concatenate([one.entropy_T for one in expected]), atol=1e-12)
    warm, _ = head.log_probs(lists.hidden, lists.weights[0], lists.choices, temperature=2.0)
    np.testing.assert_allclose(
        warm, np.concatenate([one.log_prob_T for one in lists.policies(catalog, lists.weights[0] / 2)]), atol=1e-12
    )


@pytest.mark.usefixtures("ways")
@pytest.mark.parametrize("moved", [0.0, 0.3])
def test_ratios_loss_and_gradient_are_those_of_the_definition(catalog: CatalogTrie, lists: Lists, moved: float) -> None:
    """`moved` is the distance of the old policy, so that some ratios are clipped."""
    new, ref, noise = lists.weights
    old = new + moved * noise
    policies = [lists.policies(catalog, weight) for weight in (new, old, ref)]
    advantages_BK = np.random.default_rng(0).normal(size=(len(CONSTRAINTS), 3))
    expected, grad_logits = loss_and_gradients(*policies, advantages_BK, (0.06, 0.08), 0.5)

    hidden, weight = lists.hidden.clone().requires_grad_(), new.clone().requires_grad_()
    head = ConstrainedHead(catalog)

    def by_response(flat: torch.Tensor) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence(flat.split(np.diff(lists.starts).tolist()), batch_first=True)

    log_probs, old_log_probs, ref_log_probs = (
        by_response(head.log_probs(hidden, w, lists.choices)[0]) for w in (weight, old, ref)
    )
    rank_BT = by_response(torch.from_numpy(np.concatenate([one.rank_T for one in policies[0]])).long())
    free_BT = by_response(torch.from_numpy(np.concatenate([one.is_free_T for one in policies[0]])).bool())
    loss, metrics = compute_rank_policy_loss(
        log_probs,
        torch.from_numpy(advantages_BK).gather(1, rank_BT),
        rank_BT.masked_fill(~free_BT, -1),
        RankLossSettings(num_ranks=3, kl_coef=0.5),
        BatchCounts(len(CONSTRAINTS)),
        old_log_prob_BT=old_log_probs.detach(),
        ref_log_prob_BT=ref_log_probs.detach(),
    )
    assert metrics["tokens:sum"] == free_BT.sum()
    assert bool(metrics["clip_low/all:sum"] + metrics["clip_high/all:sum"]) == bool(moved)
    assert loss.item() == pytest.approx(expected, abs=1e-12)
    loss.backward()
    grad = np.concatenate(grad_logits)
    np.testing.assert_allclose(hidden.grad, grad @ new.numpy(), atol=1e-12)
    np.testing.assert_allclose(weight.grad, grad.T @ lists.hidden.numpy(), atol=1e-12)


def test_batch_without_choices_is_zero_and_keeps_a_gradient(catalog: CatalogTrie) -> None:
    """Each FSDP process must take part in the backward pass of every micro-batch."""
    hidden = torch.randn(4, D, requires_grad=True)
    weight = torch.randn(int(catalog.trie.token_L.max()) + 1, D, requires_grad=True)
    head = ConstrainedHead(catalog)
    log_probs, _ = head.log_probs(hidden, weight, joined([], []), with_entropy=True)
    assert torch.equal(log_probs, torch.zeros(4))
    log_probs.sum().backward()
    assert hidden.grad is not None
    assert not hidden.grad.any()
    assert weight.grad is not None
    assert not weight.grad.any()


def test_bf16_hidden_states_give_float32_log_probs(catalog: CatalogTrie, lists: Lists) -> None:
    head = ConstrainedHead(catalog)
    exact, _ = head.log_probs(lists.hidden, lists.weights[0], lists.choices)
    rounded, _ = head.log_probs(lists.hidden.bfloat16(), lists.weights[0].bfloat16(), lists.choices)
    assert rounded.dtype == torch.float32
    assert (rounded - exact).abs().max() < 0.1


@pytest.mark.usefixtures("ways")
def test_bf16_log_probs_do_not_depend_on_the_micro_batch(catalog: CatalogTrie, lists: Lists) -> None:
    """Under autocast, as in verl's engine: rounding alone could exceed the clip of .06."""
    head, hidden, weight = ConstrainedHead(catalog), lists.hidden.bfloat16(), lists.weights[0].bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        together, _ = head.log_probs(hidden, weight, lists.choices)
        for index, (tokens, constraint) in enumerate(zip(lists.tokens, CONSTRAINTS, strict=True)):
            part = slice(*lists.starts[index : index + 2])
            one = joined([ChoiceReader(catalog).read(tokens, constraint)], [0])
            torch.testing.assert_close(head.log_probs(hidden[part], weight, one)[0], together[part], atol=1e-6, rtol=0)
