"""The processor in vLLM's engine: tokens and log-probs, compared with transformers and the walk's allowed tokens."""

import json
import os
import random
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from convrec.features.constrained.catalog_trie import END, CatalogTrie, save_catalog_trie
from convrec.features.constrained.walk import Walk
from convrec.titles.matching import Matcher

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
NUM_ITEMS, MAX_TOKENS = 5, 70


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("model")
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    # vLLM's CPU attention has no kernel for heads narrower than 32
    config = Qwen2Config(
        vocab_size=len(tokenizer) + 5,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    network = Qwen2ForCausalLM(config)
    for parameter in network.parameters():
        parameter.data *= 3  # far from uniform
    network.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def trie_file(tmp_path_factory: pytest.TempPathFactory, catalog: CatalogTrie) -> Path:
    file = tmp_path_factory.mktemp("trie") / "catalog.trie.npz"
    save_catalog_trie(file, catalog)
    return file


def constrained_logprobs(
    model: Any, catalog: CatalogTrie, prompt: list[int], tokens: list[int], excluded: list[int]
) -> tuple[list[float], list[int]]:
    """Return each token's log-prob under the constrained policy, and the token that greedy decoding would choose."""
    with torch.no_grad():
        logits_TV = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].float()
    walk, logprobs, best = Walk(catalog, NUM_ITEMS, excluded), [], []
    for logits_V, token in zip(logits_TV, tokens, strict=True):
        allowed = walk.allowed()
        logprobs.append(logits_V[allowed].log_softmax(0)[allowed.index(token)].item())
        best.append(allowed[int(logits_V[allowed].argmax())])
        walk.advance(token)
    assert walk.node == END
    return logprobs, best


@pytest.mark.e2e
@pytest.mark.parametrize("second_runner", [False, True], ids=["first runner", "second runner"])
def test_lists_and_log_probs_are_those_of_the_constrained_policy(
    second_runner: bool,
    model: Path,
    trie_file: Path,
    catalog: CatalogTrie,
    matcher: Matcher,
    tokenizer: Any,
    tmp_path: Path,
) -> None:
    """One batch with greedy, sampled and free requests, each with its own exclusions.

    The prompts share beginnings (prefix caching), some are longer than a step (chunked prefill), and there are too few
    KV blocks for all (preemption).
    """
    if second_runner and not find_spec("vllm.v1.worker.gpu.sample.logits_processor"):
        pytest.skip("vLLM before 0.31 has no processors in its second runner: make test-next")
    assert catalog.longest_list(NUM_ITEMS) <= MAX_TOKENS
    rng = random.Random(0)
    texts = ["USER: Toy Story (1995)\n" * repeats + f"{number}\n" for number in range(4) for repeats in (2, 9, 13)]
    prompts = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    excluded = [rng.sample(range(12), 3) for _ in prompts]
    free, greedy = range(0, 12, 5), range(0, 12, 2)
    sampling: list[dict[str, Any]] = [
        {"max_tokens": MAX_TOKENS, "temperature": 0.0 if number in greedy else 1.0}
        | ({} if number in free else {"extra_args": {"constrained_items": NUM_ITEMS, "constrained_exclude": items}})
        for number, items in enumerate(excluded)
    ]
    refused = [{"constrained_items": 0}, {"constrained_items": 5, "constrained_exclude": ["Heat"]}]
    refused += [{"constrained_exclude": [1]}, {"constrained_items": 5, "constrained_version": "../other.npz"}]
    request = {
        "second_runner": second_runner,
        "model": str(model),
        "trie": str(trie_file),
        "prompts": prompts,
        "sampling": sampling,
        "refused": refused,
    }
    (tmp_path / "request.json").write_text(json.dumps(request))
    command = [sys.executable, str(HERE / "vllm_cases.py"), str(tmp_path / "request.json"), str(tmp_path / "answers")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads((tmp_path / "answers").read_text())

    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    for number, (answer, prompt, items) in enumerate(zip(result["answers"], prompts, excluded, strict=True)):
        tokens = answer["token_ids"]
        lines = tokenizer.decode(tokens, skip_special_tokens=True).split("\n")
        found = matcher.match_lines(lines, (), [])
        is_list = found.in_catalog == [True] * NUM_ITEMS and not any(found.duplicate)
        if number in free:
            assert not is_list
            continue
        assert is_list
        assert set(found.catalog_index).isdisjoint(items)
        assert (tokens[-1], answer["finish_reason"]) == (tokenizer.eos_token_id, "stop")
        logprobs, best = constrained_logprobs(network, catalog, prompt, tokens, items)
        assert answer["logprobs"] == pytest.approx(logprobs, abs=1e-4)
        if number in greedy:
            assert tokens == best
    assert len({tuple(answer["token_ids"]) for answer in result["answers"]}) > len(prompts) / 2
    assert result["counters"]["vllm:num_preemptions"] > 0
    assert result["counters"]["vllm:prefix_cache_hits"] > 0
    assert [message.split(" is ")[0] for message in result["refused"]] == [
        "constrained_items",
        "constrained_exclude",
        "constrained_items",
        "constrained_version",
    ]
