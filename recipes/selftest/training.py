"""Phases of training: verl's FSDP2 engine in one process, and in two.

Bounds: fp32 sums in another order differ in the sixth digit; a bf16 number has a relative error of 2^-9 = 0.002,
log-probs of a pass about 0.01.
"""

import os
import time
from typing import Any

import torch

from convrec.base.files import read_json, write_json
from recipes.selftest.checks import Machine, require, require_at_most
from recipes.selftest.engine import (
    LORA_RANK,
    ROWS,
    build_engine,
    join_group,
    log_probs,
    make_batch,
    packed_attention_name,
    parameters,
    update,
)

UPDATES = 5


def fsdp2(machine: Machine) -> dict[str, Any]:
    """Updates with one batch make tokens of positive advantage likelier than those of negative advantage."""
    engine = build_engine(machine)
    batch = make_batch()
    advantages = batch["advantages"].values()

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


def _same_updates(machine: Machine, plain: dict[str, bool], other: dict[str, bool]) -> dict[str, Any]:
    """Log-probs before an update, its loss and gradient, and log-probs after it, both ways; of a model whose head is
    the embedding, and of one whose head is not, which FSDP2 gathers by itself."""
    return {tied: _same_update(machine, plain, other, tied == "tied") for tied in ("tied", "untied")}


def _same_update(machine: Machine, plain: dict[str, bool], other: dict[str, bool], tied: bool) -> dict[str, Any]:
    found = []
    for settings in (plain, other):
        engine = build_engine(machine, tied=tied, **settings)
        batch = make_batch(settings.get("packed", False))
        found.append((log_probs(engine, batch), update(engine, batch), log_probs(engine, batch)))
    (before, step, after), (other_before, other_step, other_after) = found
    differences = {
        "log-probs, mean difference": float((before - other_before).abs().mean()),
        "log-probs after an update, mean difference": float((after - other_after).abs().mean()),
        "gradient norm, relative difference": abs(step["grad_norm"] / other_step["grad_norm"] - 1),
    }
    # Adam makes a step of the learning rate of a gradient that is nothing but noise: after an update more differs
    bounds = (0.02, 0.05, 0.05) if machine.gpus else (1e-5, 1e-4, 1e-4)
    for (name, difference), bound in zip(differences.items(), bounds, strict=True):
        require_at_most(name, difference, bound)
    largest = float((before - other_before).abs().max())
    return {**differences, "log-probs, largest difference": largest, "loss": [step["loss"], other_step["loss"]]}


def packed(machine: Machine) -> dict[str, Any]:
    """One row without padding, with the attention that a run takes for it, against padded rows with sdpa."""
    return {"attention": packed_attention_name()} | _same_updates(machine, {}, {"packed": True})


def fused(machine: Machine) -> dict[str, Any]:
    """Log-probs from hidden states in chunks against those of whole logits, both packed."""
    return _same_updates(machine, {"packed": True}, {"packed": True, "fused": True})


def resume(machine: Machine) -> dict[str, Any]:
    """An update, a checkpoint of shards, another update; a new engine that loads it makes the same one."""
    from transformers import AutoModelForCausalLM

    folder = machine.folder / "checkpoint"
    first = build_engine(machine)
    update(first, make_batch())
    start = time.perf_counter()
    first.save_checkpoint(str(folder), global_step=1)
    seconds = time.perf_counter() - start
    saved = AutoModelForCausalLM.from_pretrained(folder / "huggingface", dtype=torch.float32).state_dict()
    trained = parameters(first)
    differing = [name for name, value in trained.items() if not torch.equal(value, saved[name].to(value.dtype))]
    require(not differing, f"the checkpoint in Hugging Face form has other weights: {differing[:3]}")
    went_on = update(first, make_batch(seed=1))

    second = build_engine(machine)
    second.load_checkpoint(str(folder), del_local_after_load=False)
    loaded = parameters(second)
    differing = [name for name in trained if not torch.equal(trained[name], loaded[name])]
    require(not differing, f"loaded weights are not those that were saved: {differing[:3]}")
    resumed = update(second, make_batch(seed=1))
    for name, value in went_on.items():  # sums of a GPU's attention come in any order
        difference = abs(value - resumed[name]) / max(abs(value), 1e-3)
        require_at_most(f"{name} after the resume, relative difference", difference, 0.01 if machine.gpus else 1e-6)
    return {"went on": went_on, "resumed": resumed, "seconds to save": seconds}


def lora(machine: Machine) -> dict[str, Any]:
    """Before training the adapters change nothing; an update changes them alone, and only they go to the rollout."""
    return {tied: _lora(machine, tied == "tied") for tied in ("tied", "untied")}


def _lora(machine: Machine, tied: bool) -> dict[str, Any]:
    plain = build_engine(machine, tied=tied)
    adapted = build_engine(machine, lora_rank=LORA_RANK, tied=tied)
    batch = make_batch()
    difference = float((log_probs(plain, batch) - log_probs(adapted, batch)).abs().mean())
    require_at_most("log-probs with new adapters, mean difference", difference, 0.02 if machine.gpus else 1e-5)
    before = parameters(adapted)
    step = update(adapted, batch)
    changed = [name for name, value in parameters(adapted).items() if not torch.equal(value, before[name])]
    require(bool(changed) and all("lora_" in name for name in changed), f"an update changed {changed[:3] or 'nothing'}")
    sent, settings = adapted.get_per_tensor_param(base_sync_done=True)
    names = [name for name, _ in sent]
    require(bool(names) and all("lora_" in name for name in names), f"sent to the rollout: {names[:3]}")
    require(settings is not None and settings["r"] == LORA_RANK, f"the adapter's settings: {settings}")
    return {"adapters": len(names), "grad_norm": step["grad_norm"], "log-probs, mean difference": difference}


def two_ranks(machine: Machine) -> dict[str, Any]:
    """Two data-parallel processes, each with half of a batch, make the update of one with it all."""
    machine.model()
    processes = torch.multiprocessing.spawn(_one_of_two, (machine,), nprocs=2, join=False)
    expected = update(build_engine(machine), make_batch())  # meanwhile
    while not processes.join():
        pass
    found = [read_json(machine.folder / f"rank-{rank}.json") for rank in range(2)]
    bound = 0.02 if machine.gpus else 1e-5
    # the engine's gradient is the mean over processes of gradients that are multiplied by their number
    mean_loss = sum(each["loss"] for each in found) / 2
    require_at_most("loss, difference", abs(mean_loss - expected["loss"]), bound)
    for each in found:
        require_at_most("gradient norm, relative difference", abs(each["grad_norm"] / expected["grad_norm"] - 1), bound)
    return {"one process": expected, "two processes": found}


def _one_of_two(rank: int, machine: Machine) -> None:
    join_group(machine, rank, 2, machine.folder / "meeting")
    result = update(build_engine(machine), make_batch(rows=range(rank, ROWS, 2)))
    write_json(machine.folder / f"rank-{rank}.json", result)
    os._exit(0)  # threads of the process group hold up the interpreter's shutdown
