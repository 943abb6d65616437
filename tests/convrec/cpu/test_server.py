"""The CPU rollout server's worker takes new weights in every layer, in every architecture of the table of families."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from convrec.cpu.kernels import PROVIDER
from tests.convrec.family_models import SHAPES, make_model

SCRIPT = Path(__file__).with_name("reloaded_engines.py")
ROOT = Path(__file__).resolve().parents[3]
# vLLM ties the head of Qwen by sharing the embedding's module, that of the others by its parameter. SmolLM3 runs by
# vLLM's classes around transformers' own. The others take minutes: a few in each process.
QUICK = "llama-tied"
OTHERS = [shape for shape in SHAPES if shape != QUICK]
GROUPS = [
    (QUICK,),
    *(pytest.param(tuple(group), marks=pytest.mark.slow) for group in (OTHERS[:4], OTHERS[4:8], OTHERS[8:])),
]


@pytest.mark.e2e
@pytest.mark.parametrize("shapes", GROUPS, ids=" ".join)
def test_an_engine_computes_with_the_weights_that_came_last(tmp_path: Path, shapes: tuple[str, ...]) -> None:
    """Sent by verl's sender, as in a rollout; read from a folder, as a sweep reads the next checkpoint."""
    folders = [str(make_model(tmp_path / shape, shape)) for shape in shapes]
    done = subprocess.run(
        [sys.executable, SCRIPT, *folders],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    differences = {Path(row["folder"]).name: row for row in map(json.loads, done.stdout.splitlines()[-len(shapes) :])}
    assert list(differences) == [*shapes]
    for name, row in differences.items():  # 0.1 to 6 where a head has stayed as it was
        assert max(row["sent"], row["read"]) < 1e-4, name
        assert row["norms"] == [PROVIDER, PROVIDER]
