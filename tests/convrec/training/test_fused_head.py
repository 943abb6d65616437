"""Log-probs of trained tokens alone in verl's FSDP engine, in chunks and at once, against those of whole logits: tied
and untied, packed, padded, LoRA."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from verl.utils import tensordict_utils
from verl.workers.utils.losses import sft_loss

from convrec.training import log_prob_head, token_log_probs
from convrec.training.attention import varlen
from convrec.training.log_prob_head import fuse, leave_out_prompts
from tests.convrec.training.conftest import build_training_worker
from tests.convrec.training.engine_process import batch_of, train

PROMPTS = [[7, 8, 9], [7], [9, 9, 9, 9, 9], [8, 7], [5, 5]]
RESPONSES = [[3, 4, 5, 6], [8], [7, 7, 3], [4, 9, 6, 5, 3, 8], [5]]  # verl pads a batch with rows like the last one
LORA = {"lora_rank": 4, "lora_alpha": 8, "target_modules": "all-linear"}
PADDED = {"micro_batch_size_per_gpu": 5}
PACKED = {"use_dynamic_bsz": True, "max_token_len_per_gpu": 20, "use_remove_padding": True}


@pytest.fixture(params=[False, True], ids=["untied", "tied"], scope="module")
def folder(request: pytest.FixtureRequest, model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "model"
    shutil.copytree(model_folder, folder)
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32, tie_word_embeddings=request.param)
    model.save_pretrained(folder)
    return folder


def rows() -> dict[str, list[list[Any]]]:
    generator = torch.Generator().manual_seed(1)
    masks = [*([1] * len(one) for one in RESPONSES[:-1]), [0]]
    noise = [torch.randn(3, len(one), generator=generator).mul(0.1).tolist() for one in RESPONSES]
    return {
        "prompts": PROMPTS,
        "responses": RESPONSES,
        "response_mask": masks,
        "loss_mask": masks,
        "input_ids": [a + b for a, b in zip(PROMPTS, RESPONSES, strict=True)],
        "position_ids": [list(range(len(a + b))) for a, b in zip(PROMPTS, RESPONSES, strict=True)],
        "policy_units": [*([min(rank, 2) + 1 for rank in range(len(one))] for one in RESPONSES[:-1]), [0]],
        "advantages": [one[0] for one in noise],
        "old_log_probs": [[value - 6 for value in one[1]] for one in noise],
        "ref_log_prob": [[value - 6 for value in one[2]] for one in noise],
    }


def of_responses(values: torch.Tensor) -> torch.Tensor:
    """verl has a token's value one position before it."""
    pairs = zip(values.unbind(), PROMPTS[:-1], RESPONSES, strict=False)
    return torch.cat([row[len(prompt) - 1 :][: len(response)] for row, prompt, response in pairs])


@pytest.mark.parametrize("lora", [{}, LORA], ids=["whole", "lora"])
@pytest.mark.parametrize("form", [PADDED, PACKED], ids=["padded", "packed"])
def test_fused_head_matches_whole_logits_in_values_and_gradients(
    training_worker: Any, folder: Path, form: dict[str, Any], lora: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """training_worker: its environment and process group."""
    monkeypatch.setattr(token_log_probs, "CHUNK", 3)
    varlen.register()
    found = []
    for change in (None, fuse, leave_out_prompts):
        torch.manual_seed(0)  # of the adapters
        worker = build_training_worker(folder, model=lora)
        if form is PACKED:
            worker.engine.module.config._attn_implementation = varlen.NAME
        if change:
            change(worker.engine)
        output = worker.infer_batch(batch_of(rows(), calculate_entropy=True, compute_loss=False, **form))
        metrics = train(worker, batch_of(rows(), **form))
        after = worker.infer_batch(batch_of(rows(), compute_loss=False, **form))
        found.append((*map(of_responses, (output["log_probs"], output["entropy"], after["log_probs"])), metrics))
    (*plain, plain_metrics), *others = found
    assert (plain[0] - plain[2]).abs().max() > 1e-3  # the update changed something
    for *values, metrics in others:
        for one, other in zip(plain, values, strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=0)
        assert metrics["loss"] == pytest.approx(plain_metrics["loss"], abs=1e-5)
        assert metrics["grad_norm"] == pytest.approx(plain_metrics["grad_norm"], rel=1e-4)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("form", [PADDED, PACKED], ids=["padded", "packed"])
def test_fused_head_matches_whole_logits_on_demonstrations(
    training_worker: Any, folder: Path, form: dict[str, Any], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, as on a CPU, and in chunks, as on a GPU. In bf16 both paths round, whole logits too."""
    monkeypatch.setattr(token_log_probs, "CHUNK", 3)
    varlen.register()
    of_both = rows()
    names = ("input_ids", "position_ids")
    demonstrations = {name: of_both[name] for name in names} | {
        "loss_mask": [[0] * len(a) + [1] * len(b) for a, b in zip(PROMPTS, RESPONSES, strict=True)]
    }
    found = []
    for change in (None, leave_out_prompts, partial(leave_out_prompts, chunked=True)):
        worker = build_training_worker(folder, dtype=dtype)
        worker.set_loss_fn(partial(sft_loss, config=None))
        if form is PACKED:
            worker.engine.module.config._attn_implementation = varlen.NAME
        if change:
            assert change(worker.engine) == ""
        found.append(
            [tensordict_utils.get(worker.train_batch(batch_of(demonstrations, **form)), "metrics") for _ in range(2)]
        )
    plain_metrics, *others = found
    precision = {"fp32": 1e-6, "bf16": 2**-8}[dtype]
    for metrics in others:
        for plain, other in zip(plain_metrics, metrics, strict=True):
            assert other["loss"] == pytest.approx(plain["loss"], rel=precision)
            assert other["grad_norm"] == pytest.approx(plain["grad_norm"], rel=precision)
    assert plain_metrics[0]["loss"] > plain_metrics[1]["loss"]  # the update changed something


def test_model_changing_logits_after_head_keeps_its_forward(training_worker: Any, folder: Path) -> None:
    engine = build_training_worker(folder).engine
    model, before = engine.module, engine.module.forward
    model.config.final_logit_softcapping = 30.0
    assert "changes its logits after the head (final_logit_softcapping)" in leave_out_prompts(engine)
    assert model.forward == before
    model.config.final_logit_softcapping = None
    leave_out_prompts(engine)
    assert model.forward != before


def test_incompatible_setups_keep_their_forward_and_are_named(
    training_worker: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build_training_worker(folder).engine
    before = engine.module.forward
    for section, name, value in (
        (engine.engine_config, "ulysses_sequence_parallel_size", 2),
        (engine.model_config, "use_fused_kernels", True),
    ):
        with monkeypatch.context() as changed:
            changed.setitem(vars(section), name, value)  # verl's records are frozen
            assert name in leave_out_prompts(engine, chunked=True)
    del engine.module.lm_head
    assert "lm_head" in leave_out_prompts(engine, chunked=True)
    assert engine.module.forward == before


@pytest.mark.parametrize("folder", [True], ids=["tied"], indirect=True)  # FSDP takes no adapter in a unit of its own
def test_a_head_with_an_adapter_keeps_its_own_forward(training_worker: Any, folder: Path) -> None:
    engine = build_training_worker(folder, model=LORA | {"target_modules": ["q_proj", "lm_head"]}).engine
    model = log_prob_head._model_with_head(engine)
    before = model.forward
    leave_out_prompts(engine)
    assert model.forward == before


def test_the_heads_gradient_is_summed_in_float32() -> None:
    """Of 64 chunks in bf16: closer to float64's than sums in bf16 are, and as close as one product."""
    generator = torch.Generator().manual_seed(2)
    hidden, weight = (torch.randn(n, 32, generator=generator) for n in (64 * token_log_probs.CHUNK, 50))
    tokens = torch.randint(0, 50, (len(hidden),), generator=generator)

    def gradient(dtype: torch.dtype) -> torch.Tensor:
        head = weight.detach().clone().to(dtype).requires_grad_()
        log_probs, _ = token_log_probs.compute_chunked_log_probs(hidden.to(dtype), head, tokens, 1.0, False)
        log_probs.sum().backward()
        return head.grad.double()

    exact = gradient(torch.float32)
    error = (gradient(torch.bfloat16) - exact).norm() / exact.norm()
    assert error < 0.004  # 2^-8, the rounding of one bf16 number
