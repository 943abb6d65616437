"""Phases of training: verl's FSDP2 engine in one process.

Bounds: fp32 sums in another order differ in the sixth digit; a bf16 number has a relative error of 2^-9 = 0.002,
log-probs of a pass about 0.01.
"""

import time
from typing import Any

import torch

from recipes.selftest.checks import Place, require, require_at_most
from recipes.selftest.engine import (
    LORA_RANK,
    build_engine,
    join_group,
    log_probs,
    make_batch,
    packed_attention_name,
    parameters,
    update,
)

UPDATES = 5


def collective(place: Place) -> dict[str, Any]:
    """A sum and a gather through the backend, and seconds of 64 MiB."""
    join_group(place)
    ones = torch.ones(2**24, device=place.device)
    torch.distributed.all_reduce(ones)
    require(bool((ones == 1).all()), "the sum over one process is not its own value")
    gathered = torch.empty(8, device=place.device)
    torch.distributed.all_gather_into_tensor(gathered, torch.arange(8.0, device=place.device))
    require(gathered.tolist() == list(range(8)), "gathering changed the values")
    start = time.perf_counter()
    torch.distributed.all_reduce(ones)
    total = float(ones.sum())  # waits
    figures: dict[str, Any] = {"64 MiB, seconds": time.perf_counter() - start, "sum": total}
    figures["backend"] = torch.distributed.get_backend(torch.distributed.group.WORLD)
    if place.gpus:
        figures["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return figures


def fsdp2(place: Place) -> dict[str, Any]:
    """Updates with one batch make tokens of positive advantage likelier than those of negative advantage."""
    engine, batch = build_engine(place), make_batch()
    advantages = torch.cat(
        [
            torch.cat([torch.zeros(len(prompt) - 1), row])
            for prompt, row in zip(batch["prompts"].unbind(), batch["advantages"].unbind(), strict=True)
        ]
    )

    def gain() -> float:
        return float((advantages * log_probs(engine, batch)).sum() / (advantages != 0).sum())

    before = gain()
    start = time.perf_counter()
    updates = [update(engine, batch) for _ in range(UPDATES)]
    seconds = (time.perf_counter() - start) / UPDATES
    after = gain()
    require(after > before + 0.01, f"{UPDATES} updates took sum A log p from {before:.4f} to {after:.4f} a token")
    sent, _ = engine.get_per_tensor_param()
    require(all(bool(weight.isfinite().all()) for _, weight in sent), "a weight is not finite")
    return {"A log p": [before, after], "grad_norm": updates[0]["grad_norm"], "seconds an update": seconds}


def _same_updates(place: Place, plain: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Log-probs before an update, its loss and gradient, and log-probs after it, both ways."""
    found = []
    for settings in (plain, other):
        engine, batch = build_engine(place, **settings), make_batch(**settings)
        before, step, after = log_probs(engine, batch), update(engine, batch), log_probs(engine, batch)
        found.append((before, step, after))
    (before, step, after), (other_before, other_step, other_after) = found
    # Adam makes a step of the learning rate of a gradient that is nothing but noise: after an update more differs
    bound, bound_after, relative = (0.02, 0.05, 0.05) if place.gpus else (1e-5, 1e-4, 1e-4)
    figures: dict[str, Any] = {
        "log-probs, mean difference": float((before - other_before).abs().mean()),
        "log-probs, largest difference": float((before - other_before).abs().max()),
        "log-probs after an update, mean difference": float((after - other_after).abs().mean()),
        "gradient norm, relative difference": abs(step["grad_norm"] / other_step["grad_norm"] - 1),
        "loss": [step["loss"], other_step["loss"]],
    }
    require_at_most("log-probs, mean difference", figures["log-probs, mean difference"], bound)
    after_update = "log-probs after an update, mean difference"
    require_at_most(after_update, figures[after_update], bound_after)
    require_at_most("gradient norm, relative difference", figures["gradient norm, relative difference"], relative)
    return figures


def packed(place: Place) -> dict[str, Any]:
    """One row without padding, with the attention that a run takes for it, against padded rows with sdpa."""
    return {"attention": packed_attention_name()} | _same_updates(place, {}, {"packed": True})


def fused(place: Place) -> dict[str, Any]:
    """verl's log-probs from hidden states in chunks against those of whole logits, both packed."""
    from transformers import Qwen2ForCausalLM

    forward = Qwen2ForCausalLM.forward
    try:
        figures = _same_updates(place, {"packed": True}, {"packed": True, "fused": True})
        require(Qwen2ForCausalLM.forward is not forward, "verl has not taken its fused log-probs")
        return figures
    finally:
        Qwen2ForCausalLM.forward = forward  # verl replaces it on the class


def resume(place: Place) -> dict[str, Any]:
    """An update, a checkpoint of shards, another update; a new engine that loads it makes the same one."""
    from transformers import AutoModelForCausalLM

    folder = place.folder / "checkpoint"
    first = build_engine(place)
    update(first, make_batch())
    start = time.perf_counter()
    first.save_checkpoint(str(folder), global_step=1)
    seconds = time.perf_counter() - start
    saved = AutoModelForCausalLM.from_pretrained(folder / "huggingface", dtype=torch.float32).state_dict()
    trained = parameters(first)
    differing = [name for name, value in trained.items() if not torch.equal(value, saved[name].to(value.dtype))]
    require(not differing, f"the checkpoint in Hugging Face form has other weights: {differing[:3]}")
    went_on = update(first, make_batch(seed=1))

    second = build_engine(place)
    second.load_checkpoint(str(folder), del_local_after_load=False)
    loaded = parameters(second)
    differing = [name for name in trained if not torch.equal(trained[name], loaded[name])]
    require(not differing, f"loaded weights are not those that were saved: {differing[:3]}")
    resumed = update(second, make_batch(seed=1))
    # sums of a GPU's attention come in any order
    bound = 0.01 if place.gpus else 1e-6
    differences = {name: abs(went_on[name] - resumed[name]) / max(abs(went_on[name]), 1e-3) for name in went_on}
    for name, difference in differences.items():
        require_at_most(f"{name} after the resume, relative difference", difference, bound)
    return {"went on": went_on, "resumed": resumed, "seconds to save": seconds}


def lora(place: Place) -> dict[str, Any]:
    """Before training the adapters change nothing; an update changes them alone, and only they go to the rollout."""
    plain, adapted = build_engine(place), build_engine(place, lora_rank=LORA_RANK)
    batch = make_batch()
    difference = float((log_probs(plain, batch) - log_probs(adapted, batch)).abs().mean())
    require_at_most("log-probs with new adapters, mean difference", difference, 0.02 if place.gpus else 1e-5)
    before = parameters(adapted)
    step = update(adapted, batch)
    changed = [name for name, value in parameters(adapted).items() if not torch.equal(value, before[name])]
    require(bool(changed) and all("lora_" in name for name in changed), f"an update changed {changed[:3] or 'nothing'}")
    sent, settings = adapted.get_per_tensor_param(base_sync_done=True)
    names = [name for name, _ in sent]
    require(bool(names) and all("lora_" in name for name in names), f"sent to the rollout: {names[:3]}")
    require(settings is not None and settings["r"] == LORA_RANK, f"the adapter's settings: {settings}")
    return {"adapters": len(names), "grad_norm": step["grad_norm"], "log-probs, mean difference": difference}
