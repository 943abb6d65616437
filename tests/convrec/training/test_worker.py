"""A learning-rate schedule by steps, and its resume."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from verl.utils.torch_functional import get_constant_schedule_with_warmup

SCHEDULE = [(0, 1e-3), (3, 1e-4), (5, 1e-5)]
WANTED = [1e-3] * 3 + [1e-4] * 2 + [1e-5] * 3


def engine() -> SimpleNamespace:
    """An engine as verl has built it: an optimizer with verl's own schedule."""
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))], lr=1e-3)
    schedule = get_constant_schedule_with_warmup(optimizer, num_warmup_steps=2)
    return SimpleNamespace(
        optimizer=optimizer,
        lr_scheduler=schedule,
        optimizer_config=SimpleNamespace(lr=1e-3),
        checkpoint_manager=SimpleNamespace(lr_scheduler=schedule),
    )


def train(engine: Any, steps: int) -> list[float]:
    """The learning rates these steps were trained with."""
    rates = []
    for _ in range(steps):
        rates.append(engine.optimizer.param_groups[0]["lr"])
        engine.optimizer.step()
        engine.lr_scheduler.step()
    return rates


@pytest.mark.parametrize("stop_after", [2, 3, 4])
def test_a_resumed_run_goes_on_in_the_schedule(stop_after: int) -> None:
    from convrec.training.worker import ConvRecWorker

    def start() -> Any:
        worker = object.__new__(ConvRecWorker)
        worker.actor = SimpleNamespace(engine=engine())
        worker.set_lr_schedule(SCHEDULE)
        return worker.actor.engine

    first, resumed = start(), start()
    rates = train(first, stop_after)
    # in verl's order: the optimizer, then the schedule of the checkpoint manager
    resumed.optimizer.load_state_dict(first.optimizer.state_dict())
    resumed.checkpoint_manager.lr_scheduler.load_state_dict(first.checkpoint_manager.lr_scheduler.state_dict())
    rates += train(resumed, len(WANTED) - stop_after)
    assert rates == pytest.approx(WANTED)
