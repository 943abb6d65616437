"""Packed rows through `varlen` attention give what padded rows give through sdpa: log-probs and gradients."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen2Config

from convrec.training.attention import varlen
from convrec.training.attention.varlen import find_sequence_starts, varlen_attention
from recipes.tiny_model import make_tiny_model
from tests.convrec.training.conftest import build_training_worker
from tests.convrec.training.engine_process import batch_of, train
from tests.convrec.training.test_fused_head import PACKED, rows

LENGTHS = (5, 1, 9, 3)
SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}


def make_model(config: PretrainedConfig, attention: str) -> torch.nn.Module:
    varlen.register()
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation=attention).float()


@pytest.mark.parametrize("heads", [4, 2, 1])
@pytest.mark.parametrize("config_class", [Qwen2Config, LlamaConfig])
def test_packed_is_padded_in_log_probs_and_gradients(config_class: type[PretrainedConfig], heads: int) -> None:
    """Grouped key/value heads (4 of 4, 2 of 4, 1 of 4), sequences of one token, and starts behind each other."""
    config = config_class(**SIZES, num_key_value_heads=heads)
    padded, packed = make_model(config, "sdpa"), make_model(config, "varlen")
    rows = [torch.randint(50, (length,), generator=torch.Generator().manual_seed(length)) for length in LENGTHS]

    ids_BT = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask_BT = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    expected = padded(input_ids=ids_BT, attention_mask=mask_BT).logits.log_softmax(-1)[mask_BT.bool()]
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    found = packed(input_ids=torch.cat(rows)[None], position_ids=positions, attention_mask=None).logits.log_softmax(-1)
    torch.testing.assert_close(found[0], expected, atol=1e-5, rtol=0)

    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    (expected * weights).sum().backward()
    (found[0] * weights).sum().backward()
    largest = max(parameter.grad.abs().max() for parameter in padded.parameters())
    for (name, a), (_, b) in zip(padded.named_parameters(), packed.named_parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, atol=1e-5 * float(largest), rtol=1e-4, msg=name)


def test_a_window_of_tokens_is_that_of_a_banded_mask() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(6, 2, 4, generator=generator) for _ in range(3))
    starts = torch.tensor([0, 6], dtype=torch.int32)
    found = varlen_attention(query, key, value, starts, 6, None, window=2)
    scores = torch.einsum("qhd,khd->hqk", query, key) / 2  # sqrt(D)
    distance = torch.arange(6)[:, None] - torch.arange(6)
    scores.masked_fill_((distance < 0) | (distance > 1), -torch.inf)
    torch.testing.assert_close(found, torch.einsum("hqk,khd->qhd", scores.softmax(-1), value))


def test_sequences_begin_where_positions_begin_again() -> None:
    assert find_sequence_starts(torch.tensor([[0, 1, 2, 0, 0, 1]])).tolist() == [0, 3, 4, 6]
    with pytest.raises(ValueError, match="must be 0"):
        find_sequence_starts(torch.tensor([[1, 2, 0]]))


def test_where_sequences_begin_is_asked_once_a_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer makes the host wait for the device; all layers of a forward share the position ids."""
    asked = []
    monkeypatch.setattr(varlen, "find_sequence_starts", lambda ids: asked.append(ids) or find_sequence_starts(ids))
    module, position_ids = torch.nn.Identity(), torch.tensor([[0, 1, 0, 1, 2]])
    query, key = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8)
    for _ in range(3):
        varlen.attention_forward(module, query, key, key, None, position_ids=position_ids)
    varlen.attention_forward(module, query, key, key, None, position_ids=position_ids.clone())
    assert len(asked) == 2


@pytest.mark.parametrize("recomputes", [False, True])
def test_in_verls_engine_it_is_asked_once_a_micro_batch(
    training_worker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recomputes: bool
) -> None:
    """FSDP2 hands each layer the same position ids, and recomputation in the backward pass too. training_worker: its
    environment and process group."""
    varlen.register()
    sizes = {"hidden_size": 32, "num_layers": 3, "num_heads": 1, "num_kv_heads": 1, "intermediate_size": 32}
    folder = make_tiny_model(tmp_path / "model", ["a b c\n" * 40], vocab_size=300, **sizes)
    worker = build_training_worker(folder, model={"enable_gradient_checkpointing": recomputes})
    worker.engine.module.config._attn_implementation = varlen.NAME
    asked, layers = [], []
    starts, attention = varlen.find_sequence_starts, varlen.varlen_attention
    monkeypatch.setattr(varlen, "find_sequence_starts", lambda *ids: asked.append(ids) or starts(*ids))
    monkeypatch.setattr(varlen, "varlen_attention", lambda *given: layers.append(given) or attention(*given))
    train(worker, batch_of(rows(), **PACKED))
    assert (len(asked), len(layers)) == (2, 2 * 3 * (1 + recomputes))


def test_what_it_does_not_compute_is_refused() -> None:
    model = make_model(Qwen2Config(**SIZES, num_key_value_heads=2), "varlen")
    ids = torch.zeros(2, 3, dtype=torch.long)
    with pytest.raises(ValueError, match="use_remove_padding"):
        model(input_ids=ids, attention_mask=torch.tensor([[1, 1, 1], [1, 1, 0]]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel itself needs a GPU")
def test_the_kernel_is_the_computation_by_sequence() -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(18, 4, 64, generator=generator) for _ in range(3)]
    starts = torch.tensor([0, 5, 6, 15, 18], dtype=torch.int32)
    on_gpu = [tensor.to("cuda", torch.bfloat16).requires_grad_() for tensor in tensors]
    expected = varlen_attention(*(tensor.detach().cpu().float() for tensor in on_gpu), starts, 9, None)
    found = varlen_attention(*on_gpu, starts.cuda(), 9, None)
    torch.testing.assert_close(found.cpu().float(), expected, atol=2e-2, rtol=2e-2)
    found.sum().backward()
    assert all(tensor.grad is not None and tensor.grad.isfinite().all() for tensor in on_gpu)
