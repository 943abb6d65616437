"""The processor's two adapters, called as vLLM's model runners call them; test_vllm_processor.py runs the runners."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm import SamplingParams

from convrec.features.constrained.catalog_trie import CatalogTrie, save_catalog_trie
from convrec.features.constrained.vllm_lists import EXCLUDE, ITEMS, TRIE
from convrec.features.constrained.vllm_processor import CatalogLogitsProcessor, V1Processor, V2Processor
from convrec.features.constrained.walk import Walk

PROMPT, LONGEST = [7, 8, 9], 60


@dataclass
class Written:
    """A request as the second runner sees it: its slot, its prompt and its tokens so far."""

    slot: int
    items: int | None
    exclude: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(extra_args=self.items and {ITEMS: self.items, EXCLUDE: self.exclude})


class SecondRunner:
    """vLLM 0.31's runner: tokens on the device, prompt lengths on the host, rows in a different order every step."""

    def __init__(self, config: Any):
        self.prompt_len = SimpleNamespace(np=np.zeros(4, np.int32))
        self.all_token_ids = SimpleNamespace(gpu=torch.full((4, LONGEST), -1, dtype=torch.int32))
        self.device = torch.device("cpu")
        self.processor: Any = CatalogLogitsProcessor(config, self)

    def add(self, request: Written) -> bool:
        self.prompt_len.np[request.slot] = len(PROMPT)
        self._write(request)
        return self.processor.add_request(request.slot, request.params)

    def _write(self, request: Written) -> None:
        whole = PROMPT + request.tokens
        self.all_token_ids.gpu[request.slot, : len(whole)] = torch.tensor(whole, dtype=torch.int32)

    def step(self, batch: list[tuple[Written, int]], words: int) -> list[list[int]]:
        """Run a step of (request, number of its tokens computed by then); return each row's allowed tokens."""
        for request, _ in batch:
            self._write(request)
        context = SimpleNamespace(
            idx_mapping_np=np.array([request.slot for request, _ in batch]),
            seq_lens_upper_bound_np=np.array([length for _, length in batch]),
        )
        logits_BV = self.processor.apply(torch.zeros(len(batch), words), context)
        return [torch.isfinite(row).nonzero().flatten().tolist() for row in logits_BV]


@pytest.fixture
def config(tmp_path: Path, catalog: CatalogTrie) -> SimpleNamespace:
    save_catalog_trie(tmp_path / "catalog.npz", catalog)
    additional = {TRIE: str(tmp_path / "catalog.npz")}
    return SimpleNamespace(additional_config=additional, speculative_config=None, use_v2_model_runner=True)


def allowed(catalog: CatalogTrie, request: Written, words: int) -> list[int]:
    if request.items is None:
        return list(range(words))
    walk = Walk(catalog, request.items, request.exclude)
    for token in request.tokens:
        walk.advance(token)
    return walk.allowed()


def test_walks_follow_requests_through_slots_and_preemption(
    config: SimpleNamespace, catalog: CatalogTrie, tokenizer: Any
) -> None:
    words = len(tokenizer)
    runner = SecondRunner(config)
    first, free, second = Written(2, 3, [0, 5]), Written(0, None), Written(1, 2)
    assert [runner.add(request) for request in (first, free, second)] == [True, False, True]

    def write(*requests: Written) -> None:
        batch = [(request, len(PROMPT) + len(request.tokens)) for request in requests]
        for request, left in zip(requests, runner.step(batch, words), strict=True):
            assert left == allowed(catalog, request, words)
            request.tokens.append(left[len(request.tokens) % len(left)])

    runner.step([(first, 2), (free, 3)], words)  # part of the prompt: nothing is sampled or taken
    write(first, free)
    for _ in range(6):
        write(second, first, free)
        write(free, second, first)
    # `first` is preempted; another list gets its slot, and it comes back with its tokens, in two chunks
    newcomer = Written(first.slot, 4, [1])
    runner.add(newcomer)
    write(newcomer, second)
    first.slot = 3
    runner.add(first)
    runner.step([(newcomer, len(PROMPT) + 1), (first, len(PROMPT) + 5)], words)
    for _ in range(12):
        write(newcomer, first)
    # an unconstrained request in the slot of a list that has ended
    later = Written(second.slot, None)
    assert not runner.add(later)
    write(later, first)


def test_each_runner_gets_its_adapter(config: SimpleNamespace) -> None:
    states = SimpleNamespace(device=torch.device("cpu"))
    assert type(CatalogLogitsProcessor(config, states)) is V2Processor
    config.use_v2_model_runner = False
    assert type(CatalogLogitsProcessor(config, torch.device("cpu"), False)) is V1Processor


def test_both_runners_accept_the_class_given_by_name() -> None:
    from vllm.v1.sample.logits_processor import LogitsProcessor as FirstInterface

    assert issubclass(CatalogLogitsProcessor, FirstInterface)
    second = pytest.importorskip("vllm.v1.worker.gpu.sample.logits_processor", reason="vLLM before 0.31")
    assert issubclass(CatalogLogitsProcessor, second.LogitsProcessor)


def test_speculative_decoding_is_refused(config: SimpleNamespace) -> None:
    config.speculative_config = object()
    with pytest.raises(ValueError, match="without speculative decoding"):
        CatalogLogitsProcessor(config, SimpleNamespace(device=torch.device("cpu")))
