"""How vLLM's engine draws tokens on a CPU."""

import pytest
import torch
from scipy.stats import chisquare
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

from convrec.cpu.sampling import draw_tokens, forward_cpu, install

V = 500
DRAWS = 40_000


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("has_generators", [False, True])
def test_tokens_are_drawn_as_often_as_they_are_likely(has_generators: bool) -> None:
    torch.manual_seed(3)
    logits_V = torch.randn(V, generator=seeded(1)) * 2
    logits_V[::7] = -torch.inf  # words that a mask forbids
    rows = 2000
    generators = {row: seeded(row) for row in range(rows)} if has_generators else {}
    drawn = torch.cat([draw_tokens(logits_V.expand(rows, V), generators) for _ in range(DRAWS // rows)])
    times_V = drawn.bincount(minlength=V).double()
    expected_V = logits_V.double().softmax(0) * DRAWS
    assert not times_V[::7].any()
    often = expected_V >= 5
    found, expected = ([*counts[often], counts[~often].sum()] for counts in (times_V, expected_V))
    assert chisquare(found, expected).pvalue > 1e-3


def test_a_word_that_is_certain_is_drawn() -> None:
    logits_BV = torch.full((1000, V), -torch.inf)
    logits_BV[:, 0], logits_BV[500:, 0], logits_BV[500:, V - 1] = 0, -torch.inf, 0
    assert draw_tokens(logits_BV, {}).tolist() == [0] * 500 + [V - 1] * 500


def test_rows_with_a_generator_do_not_depend_on_other_rows() -> None:
    logits_BV = torch.randn(8, V, generator=seeded(2))
    alone = [draw_tokens(logits_BV[row : row + 1], {0: seeded(row)}).item() for row in range(8)]
    assert draw_tokens(logits_BV, {row: seeded(row) for row in range(8)}).tolist() == alone
    some = draw_tokens(logits_BV, {2: seeded(2), 5: seeded(5)})  # vLLM forgets generators where not all rows have one
    assert (some[2], some[5]) == (alone[2], alone[5])


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logits", "processed_logprobs"])
def test_vllms_sampler_keeps_to_top_k_and_what_it_returns(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TopKTopPSampler, "forward_cpu", TopKTopPSampler.forward_cpu)
    own = TopKTopPSampler(mode)
    install()
    ours = TopKTopPSampler(mode)
    assert ours.forward.__func__ is forward_cpu
    logits_BV, top = torch.randn(64, V, generator=seeded(5)), torch.full((64,), 3)
    best = logits_BV.topk(3).indices
    seeds = {row: seeded(row) for row in range(64)}
    same, expected = own(logits_BV.clone(), seeds, top, None)
    assert ours(logits_BV.clone(), {row: seeded(row) for row in range(64)}, top, None)[0].tolist() == same.tolist()
    tokens, returned = ours(logits_BV.clone(), {}, top, None)
    assert (tokens[:, None] == best).any(dim=1).all()
    assert len(set(tokens.tolist())) > 32
    assert returned is expected is None if mode == "raw_logprobs" else torch.equal(returned, expected)
