"""verl's FSDP engine under the constraint: packed, padded, in any micro-batches, with LoRA, in two processes."""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from convrec.features.constrained.catalog_trie import build_catalog_trie, save_catalog_trie
from convrec.features.constrained.choices import ChoiceReader
from convrec.titles.catalog import Catalog
from convrec.titles.matching import Matcher
from convrec.training.attention import varlen
from convrec.training.log_prob_head import constrain
from tests.convrec.features.constrained.numpy_policy import Policy, loss_and_gradients, policy
from tests.convrec.features.constrained.test_choices import sampled
from tests.convrec.training import engine_process
from tests.convrec.training.conftest import build_training_worker
from tests.convrec.training.engine_process import KL_COEF, batch_of, train

ROOT = Path(__file__).resolve().parents[3]
TITLES = ["a b", "a b c", "a c", "b", "b a", "b c a", "c", "c c", "c a b", "a"]
CONSTRAINTS = [[3], [3, 1, 4], [2, 0, 6, 7], [3, 9]]
PROMPTS = [[7, 8, 9], [7], [9, 9, 9, 9, 9], [8, 7]]
ADVANTAGES_BK = np.random.default_rng(1).normal(size=(4, 3))
MICRO_BATCHES: dict[str, dict[str, Any]] = {
    "one": {"micro_batch_size_per_gpu": 5},
    "a row each": {"micro_batch_size_per_gpu": 1},
    "of like length": {"use_dynamic_bsz": True, "max_token_len_per_gpu": 50},
    "packed": {"use_dynamic_bsz": True, "max_token_len_per_gpu": 50, "use_remove_padding": True},
}


class Lists:
    """Lists sampled from a model, in the form of verl's engine."""

    def __init__(self, model_folder: Path) -> None:
        items = [(title, 1990 + place) for place, title in enumerate(TITLES)]
        tokenizer = AutoTokenizer.from_pretrained(model_folder)
        self.catalog = build_catalog_trie(Matcher(Catalog.from_items(items), "exact"), tokenizer, "\n")
        rng = random.Random(3)
        self.lists = [sampled(self.catalog, n, excluded, rng) for n, *excluded in CONSTRAINTS]
        self.model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)

    def logits(self, model: torch.nn.Module) -> list[torch.Tensor]:
        """(T, V) of each list, of the whole vocabulary."""
        return [
            model(input_ids=torch.tensor([prompt + tokens]), use_cache=False).logits[0, len(prompt) - 1 : -1]
            for prompt, tokens in zip(PROMPTS, self.lists, strict=True)
        ]

    def policies(self, model: torch.nn.Module) -> list[Policy]:
        """By the definition."""
        with torch.no_grad():
            logits = [rows.double().numpy() for rows in self.logits(model)]
        return [policy(self.catalog, *of) for of in zip(CONSTRAINTS, self.lists, logits, strict=True)]

    def rows(self) -> dict[str, list[list[Any]]]:
        """In verl's form, the last row one that verl pads with."""
        choices = list(map(ChoiceReader(self.catalog).read, self.lists, CONSTRAINTS))
        free = [one.place_F.tolist() for one in choices]
        masks = [
            [int(place in places) for place in range(len(one))] for places, one in zip(free, self.lists, strict=True)
        ]
        prompts, responses = [*PROMPTS, [5, 5]], [*self.lists, [5]]
        return {
            "prompts": prompts,
            "responses": responses,
            "response_mask": [*([1] * len(one) for one in self.lists), [0]],
            "loss_mask": [*masks, [0]],
            "constraint": [*CONSTRAINTS, CONSTRAINTS[0]],
            "input_ids": [a + b for a, b in zip(prompts, responses, strict=True)],
            "position_ids": [list(range(len(a + b))) for a, b in zip(prompts, responses, strict=True)],
        }

    def update(self) -> tuple[dict[str, list[list[Any]]], float, float]:
        """Rows of an update off-policy, and its loss and the norm of its gradient by the definition."""
        new, rng = self.policies(self.model), np.random.default_rng(2)
        old, ref = (
            [
                one._replace(log_prob_T=(one.log_prob_T + rng.normal(0, 0.1, len(one.rank_T))) * one.is_free_T)
                for one in new
            ]
            for _ in range(2)
        )
        loss, gradients = loss_and_gradients(new, old, ref, ADVANTAGES_BK, (0.06, 0.08), KL_COEF)
        rank_T = [one.rank_T.astype(int) for one in new]
        fields = {
            "policy_units": [(ranks + 1) * one.is_free_T.astype(int) for ranks, one in zip(rank_T, new, strict=True)],
            "advantages": [ADVANTAGES_BK[row][ranks] for row, ranks in enumerate(rank_T)],
            "old_log_probs": [one.log_prob_T for one in old],
            "ref_log_prob": [one.log_prob_T for one in ref],
        }
        padded = {
            name: [*(row.tolist() for row in rows), [rows[0].dtype.type(0).item()]] for name, rows in fields.items()
        }
        self.model.zero_grad()
        for logits, gradient in zip(self.logits(self.model), gradients, strict=True):
            (logits * torch.from_numpy(gradient).float()).sum().backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        return self.rows() | padded, loss, norm.item()


def of_responses(output: Iterable[torch.Tensor], lists: Lists) -> list[np.ndarray]:
    """verl stores a token's value one position before it."""
    return [
        row[len(prompt) - 1 : len(prompt) - 1 + len(one)].numpy()
        for row, prompt, one in zip(output, PROMPTS, lists.lists, strict=False)
    ]


@pytest.fixture(scope="module")
def lists(model_folder: Path) -> Lists:
    return Lists(model_folder)


def test_log_probs_differ_without_the_constraint(training_worker: Callable[..., Any], lists: Lists) -> None:
    """The comparison of rollout and actor, whose difference is below 1e-4 in fp32, would then fail."""
    worker = training_worker()
    free = worker.infer_batch(batch_of(lists.rows(), compute_loss=False, **MICRO_BATCHES["one"]))["log_probs"]
    for row, one in zip(of_responses(free.unbind(), lists), lists.policies(lists.model), strict=True):
        assert np.abs(row - one.log_prob_T).max() > 1.0  # nats
        assert np.abs(row - one.log_prob_T)[one.is_free_T == 0].mean() > 0.1


@pytest.mark.parametrize("micro_batches", MICRO_BATCHES)
@pytest.mark.parametrize("fused", [False, True])
def test_log_probs_and_entropy_match_the_constrained_policy(
    training_worker: Callable[..., Any], lists: Lists, micro_batches: str, fused: bool
) -> None:
    """This holds for every value of verl's own setting of fused kernels."""
    worker = prepared(training_worker, micro_batches)
    constrain(worker.engine, lists.catalog)
    settings = {"calculate_entropy": True, "compute_loss": False, "use_fused_kernels": fused}
    output = worker.infer_batch(batch_of(lists.rows(), **settings, **MICRO_BATCHES[micro_batches]))
    for of, name in ((output["log_probs"], "log_prob_T"), (output["entropy"], "entropy_T")):
        for row, one in zip(of_responses(of.unbind(), lists), lists.policies(lists.model), strict=True):
            np.testing.assert_allclose(row, getattr(one, name), atol=1e-5)


def prepared(training_worker: Callable[..., Any], micro_batches: str, **more: Any) -> Any:
    varlen.register()
    worker = training_worker(**more)
    if micro_batches == "packed":
        worker.engine.module.config._attn_implementation = varlen.NAME
    return worker


@pytest.mark.parametrize("micro_batches", MICRO_BATCHES)
def test_an_update_has_the_loss_and_gradient_of_the_definition(
    training_worker: Callable[..., Any], lists: Lists, micro_batches: str
) -> None:
    worker = prepared(training_worker, micro_batches)
    constrain(worker.engine, lists.catalog)
    rows, loss, norm = lists.update()
    metrics = train(worker, batch_of(rows, **MICRO_BATCHES[micro_batches]))
    assert metrics["loss"] == pytest.approx(loss, abs=1e-5)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)


def test_a_tied_head(training_worker: Callable[..., Any], lists: Lists, model_folder: Path, tmp_path: Path) -> None:
    """FSDP gathers a tied head with the whole model, not separately."""
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32, tie_word_embeddings=True)
    shutil.copytree(model_folder, tmp_path / "tied")
    model.save_pretrained(tmp_path / "tied")
    tied = Lists(tmp_path / "tied")
    worker = build_training_worker(tmp_path / "tied")
    constrain(worker.engine, tied.catalog)
    rows, loss, norm = tied.update()
    metrics = train(worker, batch_of(rows, **MICRO_BATCHES["one"]))
    assert metrics["loss"] == pytest.approx(loss, abs=1e-5)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)


def test_adapters_are_trained_and_absent_from_the_reference(training_worker: Callable[..., Any], lists: Lists) -> None:
    worker = training_worker(model={"lora_rank": 4, "lora_alpha": 8, "target_modules": "all-linear"})
    with torch.no_grad():
        for name, parameter in worker.engine.module.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.05)  # adapters begin at 0
    with_adapters, without = lists.policies(worker.engine.module), lists.policies(lists.model)
    constrain(worker.engine, lists.catalog)
    settings = {"compute_loss": False, **MICRO_BATCHES["one"]}
    for more, policies in (({}, with_adapters), ({"no_lora_adapter": True}, without)):
        output = worker.infer_batch(batch_of(lists.rows(), **settings, **more))["log_probs"]
        for row, one in zip(of_responses(output.unbind(), lists), policies, strict=True):
            np.testing.assert_allclose(row, one.log_prob_T, atol=1e-5)
    assert max(np.abs(a.log_prob_T - b.log_prob_T).max() for a, b in zip(with_adapters, without, strict=True)) > 0.01
    rows, *_ = lists.update()
    assert train(worker, batch_of(rows, **MICRO_BATCHES["one"]))["grad_norm"] > 0


@pytest.mark.long
def test_two_processes_have_loss_gradient_and_metrics_of_one(
    training_worker: Callable[..., Any], lists: Lists, model_folder: Path, tmp_path: Path
) -> None:
    rows, _, norm = lists.update()
    save_catalog_trie(tmp_path / "trie.npz", lists.catalog)
    (tmp_path / "settings.json").write_text(json.dumps(MICRO_BATCHES["of like length"]))
    for rank, part in enumerate((slice(2), slice(2, 4))):
        (tmp_path / f"{rank}_rows.json").write_text(json.dumps({name: values[part] for name, values in rows.items()}))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    commands = [
        [sys.executable, engine_process.__file__, str(rank), str(model_folder), str(tmp_path)] for rank in range(2)
    ]
    processes = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) for command in commands]
    try:
        errors = [process.communicate(timeout=300)[1].decode() for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    log_probs = [torch.tensor(row) for result in results for row in result["log_probs"]]
    for row, one in zip(of_responses(log_probs, lists), lists.policies(lists.model), strict=True):
        np.testing.assert_allclose(row, one.log_prob_T, atol=1e-5)
    alone = training_worker()
    constrain(alone.engine, lists.catalog)
    of_lists = {name: values[:4] for name, values in rows.items()}  # without verl's padding
    metrics = train(alone, batch_of(of_lists, **MICRO_BATCHES["of like length"]))
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert {"clip_low/all", "ratio_mean/1", "kl", "policy_loss"} < metrics.keys()
    for result in results:
        assert result["metrics"] == pytest.approx(metrics, rel=1e-4, abs=1e-6)
