"""Checkpoints in the format of the paper's release (docs/how-to/released.md): TRL with DeepSpeed, built by the test.

The layout is that of TRL 0.21 with the settings of the public code: transformers 4.5x's config.json, sharded weights,
no output head where it is tied to the embedding, and files written by torch.save that contain code.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from convrec.checkpoints.files import check_hugging_face, fingerprint
from convrec.checkpoints.models import check_model_path, resolve_model
from convrec.data.schema import format_prompt
from convrec.data.tokenizer import load_tokenizer
from recipes.tiny_model import make_tiny_model
from tests.user_errors import refuses


class Planted:
    """An object whose unpickling creates a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.folder,)


def add_training_state(checkpoint: Path, planted: Path, step: int, processes: int = 4) -> None:
    """Add optimizer, scheduler and random states, as transformers' Trainer and DeepSpeed ZeRO-3 write them."""
    states = checkpoint / f"global_step{step}"
    states.mkdir()
    code = Planted(planted)
    for rank in range(processes):
        torch.save({"optimizer_state_dict": code}, states / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        torch.save({"module": code}, states / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        torch.save({"python": code}, checkpoint / f"rng_state_{rank}.pth")
    torch.save(code, checkpoint / "training_args.bin")
    torch.save(code, checkpoint / "scheduler.pt")
    (checkpoint / "latest").write_text(f"global_step{step}")
    (checkpoint / "zero_to_fp32.py").write_text("raise SystemExit('not to be run')\n")
    state = {"global_step": step, "log_history": [{"loss": 1.5, "step": 10}], "best_metric": None}
    (checkpoint / "trainer_state.json").write_text(json.dumps(state))


@pytest.fixture(scope="module", params=["qwen2", "llama"])
def released(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return results/checkpoint-1500, with sharded weights."""
    from transformers import AutoModelForCausalLM

    results = tmp_path_factory.mktemp("released") / "results"
    checkpoint = make_tiny_model(
        results / "checkpoint-1500",
        [format_prompt("USER: Something like Heat (1995)?\n")],
        ["Heat", "Alien"],
        model_type=request.param,
        tie_word_embeddings=True,
    )
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    (checkpoint / "model.safetensors").unlink()
    model.save_pretrained(checkpoint, max_shard_size="1MB")
    config = json.loads((checkpoint / "config.json").read_text())
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.55.0"
    (checkpoint / "config.json").write_text(json.dumps(config))
    add_training_state(checkpoint, results / "planted", 1500)
    return checkpoint


def read_weight_map(checkpoint: Path) -> dict[str, str]:
    return json.loads((checkpoint / "model.safetensors.index.json").read_text())["weight_map"]


def test_the_fixture_has_the_intended_layout(released: Path) -> None:
    assert len(set(read_weight_map(released).values())) > 1
    assert "lm_head.weight" not in read_weight_map(released)
    assert len(list(released.glob("global_step1500/*.pt"))) == 8


def test_it_loads_unchanged_and_no_code_in_it_runs(released: Path) -> None:
    from transformers import AutoModelForCausalLM

    assert resolve_model(released) == str(released)
    check_hugging_face(released)
    tokenizer, _ = load_tokenizer(str(released))
    assert tokenizer.chat_template
    model = AutoModelForCausalLM.from_pretrained(released)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.dtype == torch.float32
    assert torch.isfinite(model(torch.tensor([[1, 2, 3]])).logits).all()
    assert not (released.parent / "planted").exists()


def test_the_training_state_does_not_change_the_fingerprint(released: Path) -> None:
    """Deleting the optimizer to save disk space must not invalidate lists that were generated before."""
    before = fingerprint(released)
    content = (released / "training_args.bin").read_bytes()
    (released / "training_args.bin").unlink()
    assert fingerprint(released) == before
    (released / "training_args.bin").write_bytes(content)


def test_a_weight_file_that_was_not_downloaded_is_named(released: Path) -> None:
    missing = released / sorted(set(read_weight_map(released).values()))[-1]
    moved = missing.rename(missing.with_suffix(".moved"))
    try:
        with refuses("checkpoint.missing-weights", released, missing.name):
            check_hugging_face(released)
    finally:
        moved.rename(missing)


def test_the_parent_folder_error_lists_the_checkpoints_in_it(released: Path) -> None:
    with refuses("model.not-a-model-folder", released.parent, "checkpoint-1500"):
        check_model_path(released.parent)
