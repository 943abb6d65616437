"""Every architecture of the table of families in verl's engine on a CPU: log-probs and gradients are transformers'."""

from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from convrec.training.sft.trainer import prepare_engine
from tests.convrec.family_models import SHAPES, make_model
from tests.convrec.training.conftest import ALONE, MEETING, build_training_worker
from tests.convrec.training.engine_process import batch_of

# Longer than the sliding windows, and of different lengths, so that micro-batches are padded.
LENGTHS = (17, 9, 12, 5)
TRAINED = 4  # tokens of each row, the last ones


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("shape", SHAPES)
def test_the_engine_computes_what_transformers_does(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (ALONE | MEETING).items():
        monkeypatch.setenv(name, value)
    folder = make_model(tmp_path / "model", shape)
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(3, 250, (length,), generator=generator) for length in LENGTHS]
    expected, norm = log_probs_and_gradient_norm(folder, rows)

    from verl.utils.tensordict_utils import get
    from verl.workers.utils.losses import sft_loss

    worker = build_training_worker(folder)
    prepare_engine(worker.engine)
    fields = {
        "input_ids": [row.tolist() for row in rows],
        "position_ids": [list(range(len(row))) for row in rows],
        "loss_mask": [[0] * (len(row) - TRAINED) + [1] * TRAINED for row in rows],
    }
    batch = partial(batch_of, fields, micro_batch_size_per_gpu=2)
    found = worker.infer_batch(batch(compute_loss=False))["log_probs"].unbind()
    for row, of_transformers in zip(found, expected, strict=True):
        torch.testing.assert_close(row[-TRAINED - 1 : -1], of_transformers, rtol=0, atol=1e-5)
    worker.set_loss_fn(partial(sft_loss, config=None))
    metrics = get(worker.train_batch(batch()), "metrics")
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)


def log_probs_and_gradient_norm(folder: Path, rows: list[torch.Tensor]) -> tuple[list[torch.Tensor], float]:
    """Of the trained tokens, a row at a time; the gradient is that of their mean."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    log_probs = []
    for row in rows:
        of_row = model(input_ids=row[None], use_cache=False).logits[0, :-1].log_softmax(-1)
        log_probs.append(of_row.gather(1, row[1:, None])[-TRAINED:, 0])
    (-torch.cat(log_probs).mean()).backward()
    norm = torch.nn.utils.get_total_norm([weight.grad for weight in model.parameters() if weight.grad is not None])
    return [row.detach() for row in log_probs], norm.item()
