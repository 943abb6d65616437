"""Phases of training: verl's FSDP2 engine in one process, and in two.

Bounds: fp32 sums in another order differ in the sixth digit; a bf16 number has a relative error of 2^-9 = 0.002, and
log-probs of a bf16 pass have an error of about 0.01.
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
    compute_log_probs,
    gather_parameters,
    get_packed_attention_name,
    join_group,
    make_batch,
    run_update,
)

UPDATES = 5


def check_fsdp2(machine: Machine) -> dict[str, Any]:
    """Check that updates on one batch raise the probability of tokens in proportion to their advantage."""
    engine = build_engine(machine)
    batch = make_batch()
    advantages = batch["advantages"].values()

    def gain() -> float:
        return float((advantages * compute_log_probs(engine, batch)).sum() / (advantages != 0).sum())

    before = gain()
    start = time.perf_counter()
    updates = [run_update(engine, batch) for _ in range(UPDATES)]
    seconds = (time.perf_counter() - start) / UPDATES
    after = gain()
    require(after > before + 0.01, f"{UPDATES} updates changed A log p per token from {before:.4f} to {after:.4f}")
    sent, _ = engine.get_per_tensor_param()
    require(all(bool(weight.isfinite().all()) for _, weight in sent), "a weight is not finite")
    return {"A log p": [before, after], "grad_norm": updates[0]["grad_norm"], "seconds an update": seconds}


def _compare_updates(machine: Machine, plain: dict[str, bool], other: dict[str, bool]) -> dict[str, Any]:
    """Compare two settings of the engine: log-probs before and after an update, its loss and gradient.

    With tied embeddings, and with untied ones, whose head FSDP2 gathers separately.
    """
    return {tied: _compare_update(machine, plain, other, tied == "tied") for tied in ("tied", "untied")}


def _compare_update(machine: Machine, plain: dict[str, bool], other: dict[str, bool], tied: bool) -> dict[str, Any]:
    results = []
    for settings in (plain, other):
        engine = build_engine(machine, tied=tied, **settings)
        batch = make_batch(settings.get("packed", False))
        results.append((compute_log_probs(engine, batch), run_update(engine, batch), compute_log_probs(engine, batch)))
    (before, step, after), (other_before, other_step, other_after) = results
    differences = {
        "log-probs, mean difference": float((before - other_before).abs().mean()),
        "log-probs after an update, mean difference": float((after - other_after).abs().mean()),
        "gradient norm, relative difference": abs(step["grad_norm"] / other_step["grad_norm"] - 1),
    }
    # Adam turns gradients that are mere noise into steps of the learning rate: differences grow after an update
    bounds = (0.02, 0.05, 0.05) if machine.gpus else (1e-5, 1e-4, 1e-4)
    for (name, difference), bound in zip(differences.items(), bounds, strict=True):
        require_at_most(name, difference, bound)
    largest = float((before - other_before).abs().max())
    return {**differences, "log-probs, largest difference": largest, "loss": [step["loss"], other_step["loss"]]}


def check_packed(machine: Machine) -> dict[str, Any]:
    """Check packed rows, with the attention that runs use for them, against padded rows with sdpa."""
    return {"attention": get_packed_attention_name()} | _compare_updates(machine, {}, {"packed": True})


def check_fused(machine: Machine) -> dict[str, Any]:
    """Check log-probs computed in chunks of hidden states against those of full logits, both packed."""
    return _compare_updates(machine, {"packed": True}, {"packed": True, "fused": True})


def check_resume(machine: Machine) -> dict[str, Any]:
    """Check that an engine that loads a sharded checkpoint repeats the update that followed it."""
    from transformers import AutoModelForCausalLM

    folder = machine.folder / "checkpoint"
    first = build_engine(machine)
    run_update(first, make_batch())
    start = time.perf_counter()
    first.save_checkpoint(str(folder), global_step=1)
    seconds = time.perf_counter() - start
    saved = AutoModelForCausalLM.from_pretrained(folder / "huggingface", dtype=torch.float32).state_dict()
    trained = gather_parameters(first)
    differing = [name for name, value in trained.items() if not torch.equal(value, saved[name].to(value.dtype))]
    require(not differing, f"the checkpoint's Hugging Face files hold other weights: {differing[:3]}")
    continued = run_update(first, make_batch(seed=1))

    second = build_engine(machine)
    second.load_checkpoint(str(folder), del_local_after_load=False)
    loaded = gather_parameters(second)
    differing = [name for name in trained if not torch.equal(trained[name], loaded[name])]
    require(not differing, f"loaded weights differ from the saved ones: {differing[:3]}")
    resumed = run_update(second, make_batch(seed=1))
    for name, value in continued.items():  # sums in a GPU's attention are not deterministic
        difference = abs(value - resumed[name]) / max(abs(value), 1e-3)
        require_at_most(f"{name} after the resume, relative difference", difference, 0.01 if machine.gpus else 1e-6)
    return {"went on": continued, "resumed": resumed, "seconds to save": seconds}


def check_lora(machine: Machine) -> dict[str, Any]:
    """Check that new adapters change nothing, that an update changes only them, and that only they are sent."""
    return {tied: _lora(machine, tied == "tied") for tied in ("tied", "untied")}


def _lora(machine: Machine, tied: bool) -> dict[str, Any]:
    plain = build_engine(machine, tied=tied)
    adapted = build_engine(machine, lora_rank=LORA_RANK, tied=tied)
    batch = make_batch()
    difference = float((compute_log_probs(plain, batch) - compute_log_probs(adapted, batch)).abs().mean())
    require_at_most("log-probs with new adapters, mean difference", difference, 0.02 if machine.gpus else 1e-5)
    before = gather_parameters(adapted)
    step = run_update(adapted, batch)
    changed = [name for name, value in gather_parameters(adapted).items() if not torch.equal(value, before[name])]
    require(bool(changed) and all("lora_" in name for name in changed), f"an update changed {changed[:3] or 'nothing'}")
    sent, settings = adapted.get_per_tensor_param(base_sync_done=True)
    names = [name for name, _ in sent]
    require(bool(names) and all("lora_" in name for name in names), f"sent to the rollout: {names[:3]}")
    require(settings is not None and settings["r"] == LORA_RANK, f"the adapter's settings: {settings}")
    return {"adapters": len(names), "grad_norm": step["grad_norm"], "log-probs, mean difference": difference}


def check_two_ranks(machine: Machine) -> dict[str, Any]:
    """Check that two data-parallel processes with half a batch each make the update of one process."""
    machine.make_model()
    processes = torch.multiprocessing.spawn(_one_of_two, (machine,), nprocs=2, join=False)
    expected = run_update(build_engine(machine), make_batch())  # meanwhile
    while not processes.join():
        pass
    results = [read_json(machine.folder / f"rank-{rank}.json") for rank in range(2)]
    bound = 0.02 if machine.gpus else 1e-5
    # the engine averages gradients that are multiplied by the number of processes
    mean_loss = sum(result["loss"] for result in results) / 2
    require_at_most("loss, difference", abs(mean_loss - expected["loss"]), bound)
    for result in results:
        require_at_most(
            "gradient norm, relative difference", abs(result["grad_norm"] / expected["grad_norm"] - 1), bound
        )
    return {"one process": expected, "two processes": results}


def _one_of_two(rank: int, machine: Machine) -> None:
    join_group(machine, rank, 2, machine.folder / "meeting")
    result = run_update(build_engine(machine), make_batch(rows=range(rank, ROWS, 2)))
    write_json(machine.folder / f"rank-{rank}.json", result)
    os._exit(0)  # threads of the process group would block the interpreter's exit
