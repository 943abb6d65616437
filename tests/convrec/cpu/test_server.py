"""The CPU rollout server's worker takes new weights in every layer, whatever way the model's head is tied."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipes.tiny_model import make_tiny_model

SCRIPT = Path(__file__).with_name("reloaded_engines.py")
ROOT = Path(__file__).resolve().parents[3]
SIZES = {"hidden_size": 64, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1, "max_positions": 512}
TEXTS = ["Toy Story (1995)\nAmélie (2001)\nUSER: SYSTEM: "] * 30
# How vLLM ties the head: Qwen's is the embedding's module, that of the others has its parameter. SmolLM3 runs by
# vLLM's classes around transformers' own. Mistral and Phi-3 are vLLM's Llama.
TIED = [("llama",), pytest.param(("gemma3_text", "smollm3", "qwen3"), marks=pytest.mark.slow)]


@pytest.mark.e2e
@pytest.mark.parametrize("model_types", TIED)
def test_a_tied_head_computes_with_the_weights_that_came_last(tmp_path: Path, model_types: tuple[str, ...]) -> None:
    """Sent by verl's sender, as in a rollout; read from a folder, as a sweep reads the next checkpoint."""
    folders = []
    for model_type in model_types:
        folder = tmp_path / model_type
        make_tiny_model(folder, TEXTS, vocab_size=400, tie_word_embeddings=True, model_type=model_type, **SIZES)
        folders.append(str(folder))
    done = subprocess.run(
        [sys.executable, SCRIPT, *folders],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    differences = {
        Path(row["folder"]).name: row for row in map(json.loads, done.stdout.splitlines()[-len(model_types) :])
    }
    assert list(differences) == [*model_types]
    for name, row in differences.items():  # 0.1 to 6 where a head has stayed as it was
        assert max(row["sent"], row["read"]) < 1e-4, name
