"""verl's FSDP engine under the constraint: packed and padded, in micro-batches, with LoRA; updates and log-probs."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from convrec.constrained.catalog_trie import CatalogTrie, build_catalog_trie
from convrec.constrained.choices import ChoiceReader
from convrec.lists.catalog import Catalog
from convrec.lists.matching import Matcher
from convrec.rank_grpo.policy_loss import RankLossSettings
from tests.convrec.constrained.numpy_policy import loss_and_gradients, policy
from tests.convrec.constrained.test_choices import sampled

TITLES = ["a b", "a b c", "a c", "b", "b a", "b c a", "c", "c c", "c a b", "a"]
CONSTRAINTS = [[3], [3, 1, 4], [2, 0, 6, 7], [3, 9]]
PROMPTS = [[7, 8, 9], [7], [9, 9, 9, 9, 9], [8, 7]]


@pytest.fixture(scope="module")
def tokenizer(model_folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_folder)


@pytest.fixture(scope="module")
def catalog(tokenizer: Any) -> CatalogTrie:
    items = [(title, 1990 + place) for place, title in enumerate(TITLES)]
    return build_catalog_trie(Matcher(Catalog.from_items(items), "exact"), tokenizer, "\n")


def nested(rows: list[list[Any]]) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


@pytest.fixture(scope="module")
def lists(catalog: CatalogTrie) -> list[list[int]]:
    rng = random.Random(3)
    return [sampled(catalog, n, excluded, rng) for n, *excluded in CONSTRAINTS]


@pytest.fixture
def batch(catalog: CatalogTrie, lists: list[list[int]]) -> Callable[..., Any]:
    """A batch in verl's form, the last row one that verl pads with; `more` are further fields and settings."""
    from verl.utils.tensordict_utils import get_tensordict

    free = [one.place_F.tolist() for one in ChoiceReader(catalog).of(lists, CONSTRAINTS)]
    masks = [[int(place in places) for place in range(len(one))] for places, one in zip(free, lists, strict=True)]

    def make(fields: dict[str, list[list[Any]]] | None = None, **more: Any) -> Any:
        prompts, responses = [*PROMPTS, [5, 5]], [*lists, [5]]
        rows = {
            "prompts": prompts,
            "responses": responses,
            "response_mask": [*([1] * len(one) for one in lists), [0]],
            "loss_mask": [*masks, [0]],
            "constraint": [*CONSTRAINTS, CONSTRAINTS[0]],
            "input_ids": [a + b for a, b in zip(prompts, responses, strict=True)],
            "position_ids": [list(range(len(a + b))) for a, b in zip(prompts, responses, strict=True)],
        }
        tensors = {name: nested(values) for name, values in (rows | (fields or {})).items()}
        return get_tensordict(tensors, {"global_batch_size": 4, "temperature": 1.0} | more)

    return make


def expected(worker: Any, catalog: CatalogTrie, lists: list[list[int]]) -> list[Any]:
    """The policies of the definition, from the whole logits of a model that is not constrained yet."""
    results = []
    for prompt, constraint, tokens in zip(PROMPTS, CONSTRAINTS, lists, strict=True):
        with torch.no_grad():
            logits = worker.engine.module(input_ids=torch.tensor([prompt + tokens]), use_cache=False).logits[0]
        results.append(policy(catalog, constraint, tokens, logits[len(prompt) - 1 : -1].double().numpy()))
    return results


def log_probs_of(output: torch.Tensor, lists: list[list[int]]) -> list[np.ndarray]:
    """Those of the responses; verl has a token's one place before it."""
    rows = output.unbind()
    return [
        row[len(prompt) - 1 : len(prompt) - 1 + len(one)].numpy()
        for row, prompt, one in zip(rows, PROMPTS, lists, strict=False)
    ]


@pytest.mark.parametrize("micro_batch", [5, 1])
@pytest.mark.parametrize("fused", [False, True])
def test_log_probs_are_those_of_the_constrained_policy(
    training_worker: Callable[..., Any],
    catalog: CatalogTrie,
    lists: list[list[int]],
    batch: Callable[..., Any],
    micro_batch: int,
    fused: bool,
) -> None:
    """Whatever verl's own setting of fused kernels says. Without the constraint they are others."""
    from convrec.training.constrained_engine import constrain

    worker = training_worker(micro_batch=micro_batch)
    policies = expected(worker, catalog, lists)
    data = {"calculate_entropy": True, "compute_loss": False, "micro_batch_size_per_gpu": micro_batch}
    free = worker.infer_batch(batch(**data))
    constrain(worker.engine, catalog)
    output = worker.infer_batch(batch(use_fused_kernels=fused, **data))
    for of, name in ((output["log_probs"], "log_prob_T"), (output["entropy"], "entropy_T")):
        for row, one in zip(log_probs_of(of, lists), policies, strict=True):
            np.testing.assert_allclose(row, getattr(one, name), atol=1e-5)
    off = [
        np.abs(row - one.log_prob_T).max()
        for row, one in zip(log_probs_of(free["log_probs"], lists), policies, strict=True)
    ]
    assert min(off) > 1.0  # nats: the comparison of rollout and actor, which allows 1e-4, would fail


def test_packed_rows_have_the_same_log_probs(
    training_worker: Callable[..., Any], catalog: CatalogTrie, lists: list[list[int]], batch: Callable[..., Any]
) -> None:
    from convrec.training import packed_attention
    from convrec.training.constrained_engine import constrain

    packed_attention.register()
    worker = training_worker(micro_batch=5)
    constrain(worker.engine, catalog)
    data = {"compute_loss": False, "micro_batch_size_per_gpu": 5}
    padded = worker.infer_batch(batch(**data))["log_probs"]
    worker.engine.module.config._attn_implementation = packed_attention.NAME
    packed = worker.infer_batch(batch(**data, use_remove_padding=True))["log_probs"]
    for one, other in zip(log_probs_of(packed, lists), log_probs_of(padded, lists), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_an_update_has_the_loss_of_the_definition_in_whatever_micro_batches(
    training_worker: Callable[..., Any], catalog: CatalogTrie, lists: list[list[int]], batch: Callable[..., Any]
) -> None:
    from verl.utils.tensordict_utils import get

    from convrec.training.constrained_engine import constrain
    from convrec.training.loss import rank_grpo_loss

    rng = np.random.default_rng(1)
    advantages_BK, noise = rng.normal(size=(4, 3)), [rng.normal(0, 0.1, (2, len(one))) for one in lists]
    norms = []
    for micro_batch in (5, 1):
        worker = training_worker(micro_batch=micro_batch)
        new = expected(worker, catalog, lists)
        constrain(worker.engine, catalog)
        old, ref = (
            [
                one._replace(log_prob_T=(one.log_prob_T + moved[which]) * one.is_free_T)
                for one, moved in zip(new, noise, strict=True)
            ]
            for which in (0, 1)
        )
        loss, _ = loss_and_gradients(new, old, ref, advantages_BK, (0.06, 0.08), 0.5)
        rank_T = [one.rank_T.astype(int) for one in new]
        fields = {
            "policy_units": [(ranks + 1) * one.is_free_T.astype(int) for ranks, one in zip(rank_T, new, strict=True)],
            "advantages": [advantages_BK[row][ranks] for row, ranks in enumerate(rank_T)],
            "old_log_probs": [one.log_prob_T for one in old],
            "ref_log_prob": [one.log_prob_T for one in ref],
        }
        padded = {
            name: [*(row.tolist() for row in rows), [rows[0].dtype.type(0).item()]] for name, rows in fields.items()
        }
        settings = RankLossSettings(num_ranks=3, kl_coef=0.5)
        worker.set_loss_fn(partial(rank_grpo_loss, settings=settings))
        metrics = get(worker.train_batch(batch(padded)), "metrics")
        assert metrics["loss"] == pytest.approx(loss, abs=1e-5)
        norms.append(metrics["grad_norm"])
    assert norms[0] > 0
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
